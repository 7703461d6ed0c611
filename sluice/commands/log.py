"""`sluice log verify|dump|repair`: look at a data folder's log, and mend it."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from sluice.console.command import Arguments, Subparsers, declare, position, positive, topic_filter
from sluice.console.records import describe, human

DAMAGED: Final = 1


def add(subparsers: Subparsers) -> None:
    example = "sluice log verify --data-dir /var/lib/sluice"
    parser = declare(subparsers, "log", "verify, dump or repair the log of a data folder", example, run)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    verify = declare(actions, "verify", "read the whole log and tell where it is damaged", example, run)
    example = "sluice log dump --data-dir /var/lib/sluice --topic 'home/#' --kind message --json"
    dump = declare(actions, "dump", "print records of the log, a line each", example, run)
    example = "sluice log repair --data-dir /var/lib/sluice --yes"
    repair = declare(actions, "repair", "cut the log at its first damage, keeping a copy", example, run)
    for action, work in ((verify, run_verify), (dump, run_dump), (repair, run_repair)):
        action.set_defaults(action=work)
        action.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="default: data")
    for action in (verify, dump):
        action.add_argument("--json", action="store_true", help="print JSON: verify an object, dump a line a record")
    dump.add_argument("--from", type=position, default=0, dest="begin", metavar="POSITION", help="first position")
    dump.add_argument("--to", type=position, dest="end", metavar="POSITION", help="the position to stop before")
    dump.add_argument("--topic", type=topic_filter, metavar="FILTER", help="messages whose topic matches")
    dump.add_argument("--kind", metavar="KIND", help="records of this kind: message, subscribed, …")
    dump.add_argument("--limit", type=positive, metavar="N", help="stop after so many records")
    repair.add_argument("--yes", action="store_true", help="do it: what is behind the damage leaves the log")


def run(arguments: Arguments) -> int:
    """Run the action, its errors told in a line."""
    from store.errors import StoreError  # noqa: PLC0415

    try:
        return int(arguments.action(arguments))
    except BrokenPipeError:  # the whole command's matter
        raise
    except (StoreError, OSError, ValueError) as error:
        print(f"sluice log: {error}", file=sys.stderr)
        return 1


def run_verify(arguments: Arguments) -> int:
    from store.repair.verify import audit  # noqa: PLC0415

    found = audit(arguments.data_dir)
    if arguments.json:
        from dataclasses import asdict  # noqa: PLC0415

        print(json.dumps(asdict(found) | {"records": found.records}))
    else:
        for segment in found.segments:
            print(f"{segment.name}  {segment.records} records, up to {segment.end}")
        torn = f", {found.torn} bytes of a torn tail behind it" if found.torn else ""
        print(f"{len(found.segments)} segments, {found.records} records, valid end {found.end}{torn}")
        for damage in found.damage:
            print(f"{'KNOWN' if damage.is_known else 'DAMAGED'}: {_told_damage(damage)}")
    return DAMAGED if found.unknown_damage else 0


def run_repair(arguments: Arguments) -> int:
    from sluice.node.ownership import left_to_owner  # noqa: PLC0415
    from store.log.disk import Disk  # noqa: PLC0415
    from store.repair.verify import audit, repair  # noqa: PLC0415

    path = arguments.data_dir
    if not arguments.yes:
        found = audit(path)
        for damage in found.unknown_damage:
            print(f"DAMAGED: {_told_damage(damage)}")
        if found.unknown_damage:
            where = found.unknown_damage[0].position
            print(f"would cut the log at {where} (of {found.end}); say --yes to do it", file=sys.stderr)
            print("a node told to --serve-damaged loses nothing that is whole", file=sys.stderr)
        else:
            print("all records are whole: there is nothing to repair", file=sys.stderr)
        return DAMAGED if found.unknown_damage else 0
    with left_to_owner(path):
        cut, aside = repair(path, Disk())
    if cut is None:
        print("nothing to repair")
        return 0
    print(f"was damaged: {_told_damage(cut)}")
    print(f"cut at {cut.position}; what was there is in {aside}; the next start folds the views anew")
    return 0


def run_dump(arguments: Arguments) -> int:
    from record.layout import Kind  # noqa: PLC0415

    if arguments.kind is not None and arguments.kind.upper() not in Kind.__members__:
        known = ", ".join(kind.name.lower() for kind in Kind)
        print(f"sluice log dump: {arguments.kind} is no kind of record; there are {known}", file=sys.stderr)
        return 2
    for number, (line, is_damage) in enumerate(_lines(arguments), 1):
        if is_damage:
            print(f"sluice log dump: {line}", file=sys.stderr)
            return DAMAGED
        print(line)
        if number == arguments.limit:
            break
    return 0


def _lines(arguments: Arguments) -> Iterator[tuple[str, bool]]:
    """(line, whether it tells of damage) for what `arguments` wants of the log."""
    import record  # noqa: PLC0415
    from store.repair.verify import Damage, known_damage, open_segments, pieces  # noqa: PLC0415

    segments, _ = open_segments(arguments.data_dir)
    with closing(segments):
        # A segment begins with a record, wherever the range begins.
        start = max([segments.base_of(arguments.begin), *segments.bases[:1]])
        for damage in known_damage(segments):
            if arguments.begin < (damage.resumes or 0) and (arguments.end is None or damage.position < arguments.end):
                print(f"sluice log dump: {_told_damage(damage)}", file=sys.stderr)
        for piece in pieces(segments, start):
            if isinstance(piece, Damage):
                if piece.resumes is not None and piece.resumes <= arguments.begin:
                    continue
                yield _told_damage(piece), True
                return
            for at in record.split(piece.data):
                where = piece.position + at
                if arguments.end is not None and where >= arguments.end:
                    return
                if where >= arguments.begin and _is_wanted(arguments, piece.data, at):
                    row = describe(piece.data, at)
                    yield json.dumps(row) if arguments.json else human(row), False


def _is_wanted(arguments: Arguments, data: bytes, at: int) -> bool:
    import record  # noqa: PLC0415
    from matcher.names import matches  # noqa: PLC0415
    from record.layout import Kind  # noqa: PLC0415

    kind, _, _, topic, _, _, _ = record.decode(data, at)
    if arguments.kind is not None and Kind[arguments.kind.upper()] != kind:
        return False
    return arguments.topic is None or (kind == Kind.MESSAGE and matches(arguments.topic.encode(), topic))


def _told_damage(damage: Any) -> str:
    resumes = "nothing sound behind it" if damage.resumes is None else f"the next sound record is at {damage.resumes}"
    return f"{damage.what} in segment {damage.segment} at position {damage.position}; {resumes}"
