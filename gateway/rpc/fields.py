"""Fields that requests have in common, off the wire: names, and numbers that have a limit."""

from gateway.rpc.status import invalid


def parent_name(text: str) -> bytes:
    """A parent topic: the first level of a topic, which may be empty."""
    if any(mark in text for mark in "/+#\0"):
        raise invalid(f"{text!r} is not a parent topic: it is the first level of a topic, without '/', '+' or '#'")
    name = text.encode()
    if len(name) > 0xFFFF:
        raise invalid("a parent topic has at most 65535 bytes")
    return name


def within(asked: int, limit: int) -> int:
    """How many are given: 0 asks for as many as may be."""
    return min(asked, limit) if asked else limit
