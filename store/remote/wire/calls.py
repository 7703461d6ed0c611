"""The remote calls of `store.api.Store`: their numbers, and the encoding of arguments and results.

Arguments are a MessagePack array, results are one value. The signatures of `Store` give the types of both.
"""

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from store.api import Store

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

encode: Final = msgspec.msgpack.Encoder().encode


class Method:
    """A method of `Store` that can be called remotely. `is_read`: it can be called twice without harm."""

    __slots__ = ("arguments", "is_read", "name", "number", "parameters", "result")

    def __init__(self, method: Callable[..., object], is_read: bool) -> None:
        hints = typing.get_type_hints(method)
        result = hints.pop("return")
        self.name = method.__name__
        self.is_read = is_read
        self.number = len(METHODS)
        self.parameters = list(inspect.signature(method).parameters.values())[1:]
        self.arguments: msgspec.msgpack.Decoder[tuple[Any, ...]] = msgspec.msgpack.Decoder(
            tuple.__class_getitem__(tuple(hints.values()))
        )
        self.result: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(result)
        METHODS.append(self)


METHODS: Final[list[Method]] = []  # by number


def _remote(
    method: Callable[Concatenate[Store, Arguments], Coroutine[Any, Any, Result]], *, is_read: bool = True
) -> Callable[Concatenate["RemoteCalls", Arguments], Coroutine[Any, Any, Result]]:
    """Turn a method of `Store` into a remote call."""
    remote = Method(method, is_read)

    @wraps(method)
    async def call(self: "RemoteCalls", /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        rest = tuple(named.pop(each.name, each.default) for each in remote.parameters[len(arguments) :])
        if named or inspect.Parameter.empty in rest:
            raise TypeError(f"{remote.name} takes {inspect.signature(method)}")
        return typing.cast("Result", await self._ask(remote, arguments + rest))

    return call


class RemoteCalls(ABC):
    """The methods of `Store` as remote calls. Their order gives their numbers: append new ones at the end."""

    @abstractmethod
    async def _ask(self, method: Method, arguments: tuple[object, ...]) -> object:
        """Call a method of the store, and return its decoded result. Raises what the store raises."""

    bounds = _remote(Store.bounds)
    fetch = _remote(Store.fetch)
    read = _remote(Store.read)
    position_at = _remote(Store.position_at)
    retention_floor = _remote(Store.retention_floor)
    offset_at = _remote(Store.offset_at)
    by_key = _remote(Store.by_key)
    message = _remote(Store.message)
    session = _remote(Store.session)
    subscriptions = _remote(Store.subscriptions)
    sessions = _remote(Store.sessions)
    sessions_of = _remote(Store.sessions_of)
    session_count_of = _remote(Store.session_count_of)
    will = _remote(Store.will)
    wills = _remote(Store.wills)
    wills_waiting = _remote(Store.wills_waiting)
    sessions_open = _remote(Store.sessions_open)
    sessions_expired = _remote(Store.sessions_expired)
    retained = _remote(Store.retained)
    group_offsets = _remote(Store.group_offsets)
    pop = _remote(Store.pop, is_read=False)
    settle = _remote(Store.settle, is_read=False)
    dead_letter = _remote(Store.dead_letter, is_read=False)
    release_leases = _remote(Store.release_leases, is_read=False)
    hand_over = _remote(Store.hand_over, is_read=False)
    transient_shares = _remote(Store.transient_shares)
    join_gateway = _remote(Store.join_gateway, is_read=False)
    heartbeat = _remote(Store.heartbeat, is_read=False)
    leave_gateway = _remote(Store.leave_gateway, is_read=False)
    claim_client = _remote(Store.claim_client, is_read=False)
    release_clients = _remote(Store.release_clients, is_read=False)
    reset_group = _remote(Store.reset_group, is_read=False)
    remove_group = _remote(Store.remove_group, is_read=False)
    groups = _remote(Store.groups)
    timers = _remote(Store.timers)
    recall = _remote(Store.recall, is_read=False)
    end_transaction = _remote(Store.end_transaction, is_read=False)
    topics = _remote(Store.topics)
    children = _remote(Store.children)
    user = _remote(Store.user)
    users = _remote(Store.users)
    rules = _remote(Store.rules)
    rules_of_all = _remote(Store.rules_of_all)
    produced = _remote(Store.produced)
    session_row = _remote(Store.session_row)
    partition_bounds = _remote(Store.partition_bounds)
    group_creator = _remote(Store.group_creator)
    user_state = _remote(Store.user_state)
    user_states = _remote(Store.user_states)
    role = _remote(Store.role)
    roles = _remote(Store.roles)
    ban = _remote(Store.ban)
    bans = _remote(Store.bans)
    ban_count = _remote(Store.ban_count)
    access_request = _remote(Store.access_request)
    open_access_requests = _remote(Store.open_access_requests)
    decided_access_requests = _remote(Store.decided_access_requests)
    group_pause = _remote(Store.group_pause)
    answer_question = _remote(Store.answer_question, is_read=False)
    fetch_selected = _remote(Store.fetch_selected)
    event_rule = _remote(Store.event_rule)
    event_rules = _remote(Store.event_rules)
    event_rule_count = _remote(Store.event_rule_count)
    entry = _remote(Store.entry)
    entries = _remote(Store.entries)
    bucket_changes = _remote(Store.bucket_changes)
    entry_change = _remote(Store.entry_change)


_BY_NAME: Final = {method.name: method for method in METHODS}
FETCH, FETCH_SELECTED, POP, PRODUCED, READ = (
    _BY_NAME[name] for name in ("fetch", "fetch_selected", "pop", "produced", "read")
)
