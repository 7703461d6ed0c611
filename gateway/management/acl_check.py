"""Which topic or filter rules are checked for: names that begin with `$` stand for others (see `matcher.reserved`)."""

from time import time

from gateway.mqtt.packets import SubscriptionRequest
from gateway.topics.destination import InvalidDestination, parse_destination
from gateway.topics.subscribe_request import SubscribeRequest
from matcher.reserved import inbox_of


class UnusableName(Exception):
    """The name is refused before any rule is checked. The message says why."""


def published_topic(topic: bytes) -> bytes:
    """The topic that rules are checked for when a message is published_topic to `topic`. Raises UnusableName."""
    try:
        return parse_destination(topic, int(time() * 1000)).topic
    except InvalidDestination as refused:
        raise UnusableName(str(refused)) from refused


def subscribed_filter(topic_filter: bytes, client_id: bytes) -> bytes:
    """The filter that rules are checked for when a client subscribes to `topic_filter`. b"": none are.

    Raises UnusableName.
    """
    request = SubscribeRequest(SubscriptionRequest(topic_filter, 0, False, False, 0), b"", 0)
    request.check_name(client_id)
    if not request.is_granted:
        raise UnusableName(request.why.decode())
    return b"" if request.read_filter == inbox_of(client_id) else request.read_filter
