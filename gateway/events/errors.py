"""What is wrong with an event or with the definition of an event rule."""


class EventError(Exception):
    """The base class of these errors."""


class InvalidEvent(EventError):
    """A request or a message is not a CloudEvent. The message says why."""


class InvalidRule(EventError):
    """The definition of an event rule cannot be used. The message says which part, and why."""


class EvaluationFailed(EventError):
    """A rule cannot handle this event. To try again is of no use."""
