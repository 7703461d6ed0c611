"""Where ordered groups stand when their parent topic got more partitions.

From then on messages of an ordering key may enter another partition than older ones. So a message from after the growth
waits until the group has examined every partition up to where it ended then, and for the older messages of its key that
are not finished.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from store.groups.queue_decision import QueueDecision
from store.views.queues.partitions import PartitionGrowth, Partitions

_NO_LIMIT: Final = 1 << 63


def unfinished_growths(partitions: Partitions, queues: Sequence[QueueDecision]) -> list[PartitionGrowth]:
    """The growths from before which a group may have unfinished messages in these queues, the oldest first."""
    if not partitions.have_grown:
        return []
    floors = {each.queue: each.next if each.state is None else each.state.floor for each in queues}
    parents = dict.fromkeys([queue[1:-3] for queue in floors if queue[:1] == b"p"])
    return not_passed([growth for parent in parents for growth in partitions.growths(parent)], floors)


def not_passed(growths: Sequence[PartitionGrowth], offsets: Mapping[bytes, int]) -> list[PartitionGrowth]:
    """The growths that came after some of these offsets, which are by queue."""
    return [each for each in growths if any(offsets.get(queue, end) < end for queue, end in each.ends.items())]


def limit_of(queue: bytes, unexamined: Sequence[PartitionGrowth]) -> int:
    """The offset of a queue up to which a group may examine messages, while not all from before some growths are
    examined."""
    return min([growth.begin(queue) for growth in unexamined], default=_NO_LIMIT)
