"""What peers do, made from a seed: the same seed and number make the same batch, whatever ran before."""

import json
import random
from dataclasses import dataclass
from functools import lru_cache

from tests.fuzz.framing import frames, proxy_header, upgrade
from tests.fuzz.packets import USERS, Maker

PEERS = 256  # in a batch; one peer's whole life is one input
_POOL = 3000  # packets that a pool has of each version
_POOLS = 64  # different pools; then they come again
_INTERESTING = (0x00, 0x01, 0x02, 0x10, 0x26, 0x30, 0x7F, 0x80, 0x82, 0xC0, 0xFE, 0xFF)

# How a peer comes, its first step: without one it is anonymous, and there is no socket.
LOGIN = "login"  # where users are asked for
SCRAM = "scram "  # the same, and it proves the password of the user who is named behind it
SOCKET = "socket"
PROXY = "proxy"  # by a socket, with a PROXY header first
WEBSOCKET = "websocket"  # by a socket
_WAYS = (("", 60), (LOGIN, 10), (SCRAM, 4), (SOCKET, 12), (PROXY, 7), (WEBSOCKET, 7))

# What a peer does beside sending bytes.
SETTLE = "settle"  # waits for what the node answers
ANSWER = "answer"  # acknowledges what came, as it should
CONGEST = "congest"  # takes nothing more
RELIEVE = "relieve"  # takes what waits for it
HALF = "half"  # sends no more, and stays to hear
BREAK = "break"  # is gone

Step = bytes | str


@dataclass
class Pool:
    """Packets to choose from: making each anew would take longer than serving it."""

    connects: dict[int, list[bytes]]
    logins: dict[int, list[bytes]]
    scrams: list[tuple[str, bytes]]  # and who it is
    packets: dict[int, list[bytes]]


@lru_cache(maxsize=2)
def pool(seed: int, number: int) -> Pool:
    chance = random.Random(f"pool {seed} {number}")
    maker = Maker(chance)
    few = range(_POOL // 10)
    names = [chance.choice(USERS)[0] for _ in few]
    return Pool(
        {version: [maker.connect(version) for _ in few] for version in (4, 5)},
        {version: [maker.login(version) for _ in few] for version in (4, 5)},
        [(name.decode(), maker.scram(name)) for name in names],
        {version: [maker.packet(version) for _ in range(_POOL)] for version in (4, 5)},
    )


def batch(seed: int, number: int, peers: int = PEERS) -> list[list[Step]]:
    """The steps of each peer."""
    chance = random.Random(f"batch {seed} {number}")
    made = pool(seed, number // 16 % _POOLS)
    return [_peer(chance, made) for _ in range(peers)]


def _peer(chance: random.Random, made: Pool) -> list[Step]:
    way = chance.choices([way for way, _ in _WAYS], [weight for _, weight in _WAYS])[0]
    version = 5 if chance.random() < 0.6 or way == SCRAM else 4
    if way == SCRAM:
        name, connect = made.scrams[int(chance.random() * len(made.scrams))]
        way += name
    else:
        connect = _pick(chance, (made.logins if way == LOGIN else made.connects)[version])
    steps = _life(chance, made, version, [connect] if chance.random() < 0.97 else [])
    if way.startswith(SCRAM):
        steps[1:1] = [SETTLE, ANSWER] * 3
    if way == PROXY:
        header = proxy_header(chance)
        steps[:0] = _split(chance, header if chance.random() < 0.8 else mutated(chance, header, [header]))
    elif way == WEBSOCKET:
        steps = _framed(chance, steps)
    if way in (SOCKET, PROXY, WEBSOCKET) and chance.random() < 0.1:
        steps[-1:] = [HALF, *[SETTLE] * 9, BREAK]
    return [way, *steps] if way else steps


def way_of(steps: list[Step]) -> str:
    """How the peer comes that does these steps."""
    first = steps[0] if steps else b""
    is_way = isinstance(first, str) and (first in (LOGIN, SOCKET, PROXY, WEBSOCKET) or first.startswith(SCRAM))
    return first if is_way and isinstance(first, str) else ""


def _framed(chance: random.Random, steps: list[Step]) -> list[Step]:
    """As a WebSocket carries it."""
    request = upgrade(chance)
    found: list[Step] = [*_split(chance, request if chance.random() < 0.95 else mutated(chance, request, [request]))]
    for step in steps:
        if isinstance(step, bytes):
            data = frames(chance, step)
            found += _split(chance, data if chance.random() < 0.98 else mutated(chance, data, [data]))
        else:
            found.append(step)
    return found


def _life(chance: random.Random, made: Pool, version: int, packets: list[bytes]) -> list[Step]:
    """What a peer says and does, beginning with its CONNECT if it has one."""
    packets += [_pick(chance, made.packets[version]) for _ in range(int(chance.expovariate(0.08)))]
    if chance.random() < 0.02:
        packets.insert(chance.randrange(len(packets) + 1), _pick(chance, made.connects[9 - version]))
    if chance.random() < 0.3 and packets:
        at = 0 if chance.random() < 0.2 else chance.randrange(len(packets))
        packets[at] = mutated(chance, packets[at], packets)
    if packets and chance.random() < 0.1:
        stream = mutated(chance, b"".join(packets), packets)
        return [*_split(chance, stream), BREAK]
    steps: list[Step] = []
    while packets:
        take = 1 + int(chance.expovariate(0.5))
        steps += _split(chance, b"".join(packets[:take]))
        packets = packets[take:]
        steps += chance.choice(((SETTLE,), (SETTLE, ANSWER), (ANSWER,), (), (), (CONGEST,), (RELIEVE,)))
    return [*steps, *chance.choice(((SETTLE,), (SETTLE, ANSWER, SETTLE, ANSWER), ())), BREAK]


def _pick(chance: random.Random, choices: list[bytes]) -> bytes:
    return choices[int(chance.random() * len(choices))]


def _split(chance: random.Random, data: bytes) -> list[Step]:
    """As reads of a socket bring it: mostly whole."""
    kind = chance.random()
    if kind < 0.6 or len(data) < 2:
        return [data] if data else []
    if kind < 0.63:
        return [data[at : at + 1] for at in range(len(data))] if len(data) < 200 else [data]
    cuts = sorted({chance.randrange(1, len(data)) for _ in range(1 + int(chance.expovariate(0.7)))})
    return [data[at:end] for at, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def mutated(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The data with a few bytes changed, added, taken away, or of another packet."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(out) + 1) if chance.random() < 0.7 else min(chance.randrange(14), len(out))
        kind = chance.randrange(8)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = chance.choice(_INTERESTING)
        elif kind == 2 and at < len(out):
            out[at] = chance.randrange(256)
        elif kind == 3:
            out[at:at] = bytes(chance.choices(_INTERESTING, k=chance.choice((1, 1, 2, 9))))
        elif kind == 4:
            del out[at : at + chance.choice((1, 1, 2, 4, 30))]
        elif kind == 5:
            out[at:at] = out[max(0, at - 20) : at]
        elif kind == 6:
            del out[at:]
        else:
            other = others[chance.randrange(len(others))]
            out[at:] = other[chance.randrange(len(other) + 1) :]
    return bytes(out)


def to_json(peers: list[list[Step]]) -> str:
    """For a file: bytes as hexadecimal digits behind a colon."""
    return json.dumps([[step if isinstance(step, str) else ":" + step.hex() for step in peer] for peer in peers])


def from_json(text: str) -> list[list[Step]]:
    """What `to_json` wrote."""
    return [[bytes.fromhex(step[1:]) if step[0] == ":" else step for step in peer] for peer in json.loads(text)]
