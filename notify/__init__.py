"""Who has to hear of a commit: topic events to gateway nodes. May import `record`, `matcher`, `store`."""

from notify.events import TopicEvents
from notify.notifier import Notifier, Sink

__all__ = ["Notifier", "Sink", "TopicEvents"]
