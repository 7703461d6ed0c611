"""`sluice log verify|dump|repair`: check, print or repair the log of a data folder."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.console.command import (
    Arguments,
    CommandError,
    Subparsers,
    add_actions,
    add_data_dir,
    add_json,
    declare,
    position,
    positive,
    print_result,
    topic_filter,
)
from sluice.console.records import describe, human

if TYPE_CHECKING:
    from store.config import TierConfig

DAMAGED: Final = 1


def add(subparsers: Subparsers) -> None:
    example = "sluice log verify --data-dir /var/lib/sluice"
    actions = add_actions(declare(subparsers, "log", "verify, dump or repair the log of a data folder", example))
    verify = declare(actions, "verify", "read the whole log and report damage", example, run_verify)
    example = "sluice log dump --data-dir /var/lib/sluice --topic 'home/#' --kind message --json"
    dump = declare(actions, "dump", "print the records of the log, one per line", example, run_dump)
    summary = "cut the log at its first damage, and keep a copy of the rest"
    repair = declare(actions, "repair", summary, "sluice log repair --data-dir /var/lib/sluice --yes", run_repair)
    for action in (verify, dump, repair):
        add_data_dir(action)
    text = "the configuration of the node: read what is in its [tier], too"
    verify.add_argument("--config", type=Path, metavar="FILE", help=text)
    for action in (verify, dump):
        add_json(action)
    text = "the first position to print"
    dump.add_argument("--from", type=position, default=0, dest="begin", metavar="POSITION", help=text)
    dump.add_argument("--to", type=position, dest="end", metavar="POSITION", help="stop before this position")
    dump.add_argument("--topic", type=topic_filter, metavar="FILTER", help="print only messages whose topic matches")
    dump.add_argument("--kind", metavar="KIND", help="print only records of this kind: message, subscribed, …")
    dump.add_argument("--limit", type=positive, metavar="N", help="print at most N records")
    text = "print settings of connectors and event rules with headers, too, which may have passwords"
    dump.add_argument("--secrets", action="store_true", help=text)
    repair.add_argument("--yes", action="store_true", help="cut the log; without this, only report what would be cut")


def run_verify(arguments: Arguments) -> int:
    from store.log.tiered import read_tiered  # noqa: PLC0415
    from store.repair.verify import audit  # noqa: PLC0415
    from store.repair.verify_tier import audit_tier  # noqa: PLC0415

    found = audit(arguments.data_dir)
    lines = [f"{segment.name}  {segment.records} records, up to {segment.end}" for segment in found.segments]
    torn = f", followed by {found.torn} bytes of a torn record" if found.torn else ""
    lines.append(f"{len(found.segments)} segments, {found.records} records, valid end {found.end}{torn}")
    tiered = len(read_tiered(arguments.data_dir / "log").segments)
    if arguments.config is not None:
        count, damage_there = audit_tier(arguments.data_dir, _tier_of(arguments.config))
        found.damage += damage_there
        lines.append(f"{count} segments in the tier were read")
    elif tiered:
        lines.append(f"{tiered} segments are in the tier, and --config reads them there")
    for damage in found.damage:
        lines.append(f"{'KNOWN' if damage.is_known else 'DAMAGED'}: {_describe_damage(damage)}")
    print_result(arguments, asdict(found) | {"records": found.records}, "\n".join(lines))
    return DAMAGED if found.unknown_damage else 0


def _tier_of(path: Path) -> "TierConfig":
    from gateway.config.config import ConfigError, load  # noqa: PLC0415
    from gateway.config.store import store_config  # noqa: PLC0415

    try:
        config = store_config(load(path, {})).tier
    except ConfigError as error:
        raise CommandError(str(error)) from None
    if not config.is_on:
        raise CommandError(f"{path} has no [tier]")
    return config


def run_repair(arguments: Arguments) -> int:
    from sluice.node.ownership import left_to_owner  # noqa: PLC0415
    from store.log.disk import Disk  # noqa: PLC0415
    from store.repair.verify import audit, repair  # noqa: PLC0415

    path = arguments.data_dir
    if not arguments.yes:
        found = audit(path)
        for damage in found.unknown_damage:
            print(f"DAMAGED: {_describe_damage(damage)}")
        if found.unknown_damage:
            where = found.unknown_damage[0].position
            print(f"would cut the log at {where} (of {found.end}); use --yes to do so", file=sys.stderr)
            print("`sluice serve --serve-damaged` keeps every intact record instead", file=sys.stderr)
        else:
            print("all records are intact: there is nothing to repair", file=sys.stderr)
        return DAMAGED if found.unknown_damage else 0
    with left_to_owner(path):
        cut, copy = repair(path, Disk())
    if cut is None:
        print("nothing to repair")
        return 0
    print(f"was damaged: {_describe_damage(cut)}")
    print(f"cut at {cut.position}; the removed part is in {copy}; the next start rebuilds the views")
    return 0


def run_dump(arguments: Arguments) -> int:
    from record.layout import Kind  # noqa: PLC0415

    if arguments.kind is not None and arguments.kind.upper() not in Kind.__members__:
        known = ", ".join(kind.name.lower() for kind in Kind)
        print(f"sluice log dump: {arguments.kind} is not a kind of record; the kinds are {known}", file=sys.stderr)
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
    """Yield (line, whether it reports damage) for each record that `arguments` select."""
    import record  # noqa: PLC0415
    from store.repair.verify import Damage, known_damage, open_segments, pieces  # noqa: PLC0415

    segments, _ = open_segments(arguments.data_dir)
    with closing(segments):
        first = segments.tiered.first
        if first is not None and max(first.base, arguments.begin) < segments.begin:
            text = f"what is before position {segments.begin} is in the tier: the SDK and `sluice history` read it"
            print(f"sluice log dump: {text}", file=sys.stderr)
        # A segment begins with a record; the range may not.
        start = max([segments.base_of(arguments.begin), *segments.bases[:1]])
        for damage in known_damage(segments):
            if arguments.begin < (damage.resumes or 0) and (arguments.end is None or damage.position < arguments.end):
                print(f"sluice log dump: {_describe_damage(damage)}", file=sys.stderr)
        for piece in pieces(segments, start):
            if isinstance(piece, Damage):
                if piece.resumes is not None and piece.resumes <= arguments.begin:
                    continue
                yield _describe_damage(piece), True
                return
            for at in record.split(piece.data):
                where = piece.position + at
                if arguments.end is not None and where >= arguments.end:
                    return
                if where >= arguments.begin and _is_wanted(arguments, piece.data, at):
                    row = describe(piece.data, at, secrets=arguments.secrets)
                    yield json.dumps(row) if arguments.json else human(row), False


def _is_wanted(arguments: Arguments, data: bytes, at: int) -> bool:
    import record  # noqa: PLC0415
    from matcher.names import matches  # noqa: PLC0415
    from record.layout import Kind  # noqa: PLC0415

    kind, _, _, topic, _, _, _ = record.decode(data, at)
    if arguments.kind is not None and Kind[arguments.kind.upper()] != kind:
        return False
    return arguments.topic is None or (kind == Kind.MESSAGE and matches(arguments.topic.encode(), topic))


def _describe_damage(damage: Any) -> str:
    resumes = "no intact record follows" if damage.resumes is None else f"the next intact record is at {damage.resumes}"
    return f"{damage.what} in segment {damage.segment} at position {damage.position}; {resumes}"
