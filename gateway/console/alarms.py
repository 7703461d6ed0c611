"""What is wrong with a node, in plain words."""

from typing import Final, NamedTuple

from gateway.console.texts import count, counted, letters, seconds, size
from gateway.management.proto import management_pb2 as pb

_BEHIND: Final = 16 << 20  # bytes of the log that a node may lack


class Alarm(NamedTuple):
    """Something that needs a person."""

    is_severe: bool
    text: str
    page: str  # of the console, where there is more about it


def of_store(store: pb.Store) -> list[Alarm]:
    found = []
    if store.failed:
        text = "The log accepts no more messages, because a write failed. Look at the disk, and restart the node."
        found.append(Alarm(True, text, "store"))
    if store.damage or store.damage_met:
        places = counted(len(store.damage) + store.damage_met, "place", "places")
        found.append(Alarm(True, f"Stored messages are damaged in {places}. Reads skip them.", "store"))
    if store.is_disk_low:
        text = f"The disk is nearly full: {size(store.free_bytes)} are free, fewer than the configuration wants."
        found.append(Alarm(True, text, "store"))
    if store.max_held and store.held * 10 >= store.max_held * 9:
        text = f"{count(store.held)} of {count(store.max_held)} places for delayed messages are taken."
        found.append(Alarm(False, text, "held"))
    return found


def of_figures(figures: pb.Figures, recent: dict[str, int], period_s: float) -> list[Alarm]:
    """recent: the growth of some totals in that period."""
    found = []
    if figures.HasField("tier") and figures.tier.error:
        waiting = size(figures.tier.waiting_bytes)
        text = f"Old segments cannot be written to the object storage ({waiting} wait): {figures.tier.error}"
        found.append(Alarm(True, text, "store"))
    for field, what in (
        ("logins_failed", "Wrong user names or passwords"),
        ("messages_refused", "Messages of devices that were not accepted"),
        ("messages_dropped", "Messages that did not reach a subscriber"),
        ("limits_reached", "Connections and subscriptions that a limit of clients and users has refused"),
        ("protocol_errors", "Connections that were closed because of a protocol error"),
    ):
        if recent.get(field):
            text = f"{what}, in the last {seconds(period_s)}: {count(recent[field])}."
            found.append(Alarm(False, text, "clients"))
    return found


def of_groups(groups: list[pb.GroupSummary]) -> list[Alarm]:
    dead = [each for each in groups if each.dead_letters]
    if not dead:
        return []
    total, of = letters(sum(each.dead_letters for each in dead)), counted(len(dead), "group", "groups")
    return [Alarm(False, f"Somebody has to decide about {total} of {of}.", "dead-letters")]


def of_access_requests(requests: list[pb.AccessRequest], has_more: bool) -> list[Alarm]:
    waiting = sum(each.may_decide for each in requests)
    if not waiting:
        return []
    what = f"At least {count(waiting)} requests" if has_more else counted(waiting, "request", "requests")
    return [Alarm(False, f"{what} for access: somebody has to decide.", "requests")]


def of_cluster(status: pb.ClusterStatus) -> list[Alarm]:
    found = []
    if not status.node.leader:
        found.append(Alarm(True, "No node leads the cluster, so nothing can be published.", "cluster"))
    if not status.HasField("shared_log"):
        found.append(Alarm(True, "The service that has the shared log does not answer.", "cluster"))
    nodes = (status.node, *status.others)
    newest = max(node.position for node in nodes)
    for node in nodes:
        who = node.node or node.address
        if node.trouble:
            found.append(Alarm(True, f"Node {who}: {node.trouble}", "cluster"))
        if node.unreached_s:
            text = f"Node {who} does not reach the shared log since {seconds(node.unreached_s)}: {node.unreached}"
            found.append(Alarm(True, text, "cluster"))
        if node.node and newest - node.position > _BEHIND:
            found.append(Alarm(False, f"Node {who} is behind by {size(newest - node.position)} of the log.", "cluster"))
        if node.drained:
            found.append(Alarm(False, f"Node {who} is drained: it sends its clients away.", "cluster"))
    return found
