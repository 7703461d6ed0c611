"""What clients and services do at each front, and the rules that it takes: the table of docs/security.md.

`tests/gateway/auth/test_who_may_what.py` does each with exactly these rules, and without each of them.
"""

from typing import Final, NamedTuple

from tests.openapi.protos import ROOT

PAGE: Final = ROOT / "docs/security.md"
_BEGIN: Final = "<!-- table of calls: written by `make proto` -->\n"
_END: Final = "<!-- end of the table -->\n"


class Call(NamedTuple):
    """Something that is allowed if all of its rules are there."""

    front: str
    name: str
    rules: tuple[str, ...]


_READ: Final = "allow SUB topic:home/#"
_READ_ALL: Final = "allow SUB topic:#"
_MEMBER: Final = "allow SUB group:billing"
CALLS: Final = (
    Call("MQTT", "CONNECT with a will", ("allow PUB topic:home/will",)),
    Call("MQTT", "PUBLISH", ("allow PUB topic:home/x",)),
    Call("MQTT", "PUBLISH delayed", ("allow PUB topic:home/x",)),
    Call("MQTT", "SUBSCRIBE", (_READ,)),
    Call("MQTT", "SUBSCRIBE replay", (_READ,)),
    Call("MQTT", "SUBSCRIBE shared", (_READ,)),
    Call("MQTT", "SUBSCRIBE $topics", ("allow LIST topic:home/#",)),
    Call("gRPC", "Produce", ("allow PUB topic:home/x",)),
    Call("gRPC", "Partitions", (_READ,)),
    Call("gRPC", "Pull", (_READ,)),
    Call("gRPC", "OffsetAt", (_READ,)),
    Call("gRPC", "Find by key", (_READ,)),
    Call("gRPC", "Trace", (_READ_ALL,)),
    Call("gRPC", "Timers", (_READ_ALL,)),
    Call("gRPC", "Topics", ("allow LIST topic:home/#",)),
    Call("gRPC", "Children", ("allow LIST topic:home/#",)),
    Call("gRPC", "Receive", (_READ, _MEMBER)),
    Call("gRPC", "Acknowledge", (_READ, _MEMBER)),
    Call("gRPC", "CommitOffsets", (_READ, _MEMBER)),
    Call("gRPC", "CommittedOffsets", (_READ,)),
    Call("gRPC", "ResetGroup", (_READ, "allow UPDATE group:billing")),
    Call("gRPC", "RemoveGroup", (_READ_ALL, "allow DELETE group:billing")),
    Call("gRPC", "Groups", ("allow LIST group:*",)),
    Call("gRPC", "Recall", ("allow PUB topic:home/later",)),
    Call("gRPC", "EndTransaction", ("allow PUB topic:home/half",)),
    Call("RocketMQ", "SendMessage", ("allow PUB topic:home",)),
    Call("RocketMQ", "ReceiveMessage", (_READ, _MEMBER)),
    Call("RocketMQ", "QueryOffset", (_READ,)),
    Call("HTTP", "GET /metrics", ("allow SUB topic:$SYS/#",)),
)


def table() -> str:
    """The table, in Markdown."""
    lines = ["| front | call | rules that give it |", "| --- | --- | --- |"]
    lines += [f"| {each.front} | {each.name} | {'<br>'.join(f'`{rule}`' for rule in each.rules)} |" for each in CALLS]
    return "\n".join(lines) + "\n"


def within_marks(page: str) -> str:
    """The part of the page that is the table."""
    return page.partition(_BEGIN)[2].partition(_END)[0]


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, begin, rest = page.partition(_BEGIN)
    return before + begin + table() + _END + rest.partition(_END)[2]
