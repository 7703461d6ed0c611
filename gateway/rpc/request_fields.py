"""Checks of fields that several requests have: names, and numbers with a limit."""

from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import invalid
from store.api import EVENT_RULE


def parent_name(text: str) -> bytes:
    """A parent topic: the first level of a topic, which may be empty. Raises `RequestError`."""
    if any(mark in text for mark in "/+#\0"):
        raise invalid(
            f"{text!r} is not a parent topic: a parent topic is the first level of a topic, without '/', '+' or '#'"
        )
    name = text.encode()
    if len(name) > 0xFFFF:
        raise invalid("a parent topic has at most 65535 bytes")
    return name


def group_name(text: str, limits: RpcLimits) -> bytes:
    """The name of a group. Raises `RequestError`."""
    name = text.encode()
    if not 0 < len(name) <= limits.max_group_name or "\0" in text:
        raise invalid(f"a group's name has 1 to {limits.max_group_name} bytes, none of them NUL")
    return name


def client_group_name(text: str, limits: RpcLimits) -> bytes:
    """The name of a group that clients may be members of, move and remove. Raises `RequestError`."""
    name = group_name(text, limits)
    if name.startswith(EVENT_RULE):
        raise invalid(f"{text!r} is the group of an event rule: use the commands and methods about rules")
    return name


def member_name(text: str) -> bytes:
    """The name of a group's member; empty if the request has none. Raises `RequestError`."""
    name = text.encode()
    if len(name) > 0xFFFF:
        raise invalid("the name of a member has at most 65535 bytes")
    return name


def within(requested: int, limit: int) -> int:
    """The requested number, at most `limit`. 0 requests the limit."""
    return min(requested, limit) if requested else limit
