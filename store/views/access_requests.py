"""The view of requests for access: those that are open, and the latest that were decided."""

from struct import Struct
from typing import Final

from store.api import AccessRequest, Outcome
from store.control import AccessDecided, AccessRequested
from store.views.access import packed_rule, rules_of
from store.views.database.count import Count
from store.views.database.state import State

MAX_DECIDED: Final = 10_000  # that are kept; the oldest decision goes first. Part of the format: docs/format.md

_OPEN: Final = b"Q"  # by number
_DECIDED: Final = b"J"  # by the number of decisions before it

_NUMBER: Final = Struct(">Q")
_REQUEST: Final = Struct(">QQHH")  # since, until (ms), lengths of user and reason; these and the rule follow
# Number of the request, time (ms), outcome, lengths of who decided and of why; these and the row of the request follow.
_DECISION: Final = Struct(">QQBHH")


class AccessRequests:
    """Requests for access."""

    __slots__ = ("_decisions", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._decisions = Count(state, _DECIDED)  # all that there ever were

    def requested(self, user: bytes, event: AccessRequested, position: int, time: int) -> None:
        """Apply ACCESS_REQUESTED, which is at `position` and was stored at `time` (ms)."""
        head = _REQUEST.pack(time, event.until_ms, len(user), len(event.reason))
        row = head + user + event.reason + packed_rule(event.rule)
        self._state.put(_OPEN, _NUMBER.pack(position), row)

    def decided(self, user: bytes, event: AccessDecided, time: int) -> None:
        """Apply ACCESS_DECIDED, which was stored at `time` (ms)."""
        request = self.open_one(event.request)
        if request is None or request.user != user:
            return
        key = _NUMBER.pack(event.request)
        row = self._state.get(_OPEN, key) or b""
        self._state.delete(_OPEN, key)
        head = _DECISION.pack(event.request, time, event.outcome, len(event.by), len(event.reason))
        decision = self._decisions.value
        self._state.put(_DECIDED, _NUMBER.pack(decision), head + event.by + event.reason + row)
        self._decisions.change(1)
        if decision >= MAX_DECIDED:
            self._state.delete(_DECIDED, _NUMBER.pack(decision - MAX_DECIDED))

    def user_removed(self, user: bytes) -> None:
        """Drop the open requests of a user."""
        for request in self.all_open(user):
            self._state.delete(_OPEN, _NUMBER.pack(request.number))

    def open_one(self, number: int) -> AccessRequest | None:
        """The open request of this number."""
        key = _NUMBER.pack(number)
        row = self._state.get(_OPEN, key)
        return None if row is None else _request(key, row)

    def all_open(self, user: bytes | None = None) -> list[AccessRequest]:
        """The open requests of a user, or (None) of all, the oldest first."""
        found = [_request(key, row) for key, row in self._state.all(_OPEN)]
        return [request for request in found if user is None or request.user == user]

    def decided_before(self, before: int, limit: int) -> list[AccessRequest]:
        """Up to `limit` of the latest decisions before one, the latest first."""
        end = min(before, self._decisions.value)
        begin = max(end - limit, self._decisions.value - MAX_DECIDED, 0)
        rows = [(number, self._state.get(_DECIDED, _NUMBER.pack(number))) for number in range(end - 1, begin - 1, -1)]
        return [_decided(number, row) for number, row in rows if row is not None]


def _request(key: bytes, row: bytes) -> AccessRequest:
    since_ms, until_ms, user_length, reason_length = _REQUEST.unpack_from(row)
    at = _REQUEST.size + user_length
    user, reason = row[_REQUEST.size : at], row[at : at + reason_length]
    (rule,) = rules_of(row[at + reason_length :])
    return AccessRequest(_NUMBER.unpack(key)[0], user, rule, reason, since_ms, until_ms)


def _decided(decision: int, row: bytes) -> AccessRequest:
    number, decided_ms, outcome, by_length, why_length = _DECISION.unpack_from(row)
    at = _DECISION.size + by_length
    by, why = row[_DECISION.size : at], row[at : at + why_length]
    asked = _request(_NUMBER.pack(number), row[at + why_length :])
    return AccessRequest(
        number,
        asked.user,
        asked.rule,
        asked.reason,
        asked.since_ms,
        asked.until_ms,
        Outcome(outcome),
        decision,
        by,
        why,
        decided_ms,
    )
