"""`sluice trace`: the packets of one client, as they come and go."""

import time
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, declare, print_result, within
from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice trace meter-17 --seconds 60 --data-dir /var/lib/sluice"
_MAX_S: Final = 3600
_SENDERS: Final = {"client": "from the client:", "node": "to the client:"}


def add(subparsers: Subparsers) -> None:
    about = "show the packets of one client as they come and go, without payloads"
    parser = declare(subparsers, "trace", about, EXAMPLE, _trace)
    parser.add_argument("client", metavar="CLIENT", help="the client id; it need not be connected yet")
    text = f"how long, 1 to {_MAX_S} (default: 60); Ctrl-C ends it earlier"
    parser.add_argument("--seconds", type=within(1, _MAX_S), default=60, metavar="N", help=text)
    management.add_arguments(parser)


def _trace(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        begin = pb.BeginTraceRequest(client_id=arguments.client, seconds=arguments.seconds)
        trace = link.call("BeginTrace", begin, pb.Trace)
        read = pb.ReadTraceRequest(client_id=arguments.client, trace=trace.trace)
        while True:
            reply = link.call("ReadTrace", read, pb.ReadTraceReply)
            for packet in reply.packets:
                print_result(arguments, facts(packet), _line(packet))
            if reply.dropped:
                lost = {"time_ms": int(time.time() * 1000), "dropped": reply.dropped}
                print_result(arguments, lost, f"{reply.dropped} packets came too fast to be shown")
            if reply.over:
                return 0


def _line(packet: "pb.TracedPacket") -> str:
    who = _SENDERS.get(packet.sender, "*")
    where = f" [{printable(packet.gateway)}]" if packet.gateway else ""
    return f"{format_time(packet.time_ms)}{where} {who} {printable(packet.text)}"
