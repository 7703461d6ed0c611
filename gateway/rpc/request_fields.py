"""Fields that requests have in common, off the wire: names, and numbers that have a limit."""

from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import invalid


def parent_name(text: str) -> bytes:
    """A parent topic: the first level of a topic, which may be empty."""
    if any(mark in text for mark in "/+#\0"):
        raise invalid(f"{text!r} is not a parent topic: it is the first level of a topic, without '/', '+' or '#'")
    name = text.encode()
    if len(name) > 0xFFFF:
        raise invalid("a parent topic has at most 65535 bytes")
    return name


def group_name(text: str, limits: RpcLimits) -> bytes:
    """The name of a group."""
    name = text.encode()
    if not 0 < len(name) <= limits.max_group_name or "\0" in text:
        raise invalid(f"a group's name has 1 to {limits.max_group_name} bytes, none of them NUL")
    return name


def member_name(text: str) -> bytes:
    """Who of a group asks; empty: it does not say."""
    name = text.encode()
    if len(name) > 0xFFFF:
        raise invalid("the name of a member has at most 65535 bytes")
    return name


def within(asked: int, limit: int) -> int:
    """How many are given: 0 asks for as many as may be."""
    return min(asked, limit) if asked else limit
