"""Dead letters on a topic: messages as they were published, with headers that say why, as Kafka Connect has them."""

from collections.abc import Sequence
from typing import Final

from cloud_sdk import OutgoingMessage, SluiceError
from connect.api import ConnectError, SinkRecord
from connect.runtime.job import Job, Runner, is_transient
from connect.runtime.retries import sleep

_PAUSE_S: Final = 1.0  # after the node could not be reached
_PREFIX: Final = "__connect.errors."


def dead_letter_of(job: Job, record: SinkRecord, error: Exception) -> OutgoingMessage:
    """The message for the topic of dead letters."""
    common = job.configuration.common
    headers = list(record.headers)
    if common["errors.deadletterqueue.context.headers.enable"]:
        context = {
            "topic": record.topic,
            "partition": record.partition.number,
            "offset": record.offset,
            "connector.name": job.id.connector,
            "task.id": job.id.number,
            "exception.class.name": type(error).__name__,
            "exception.message": job.figures.text(error),
        }
        headers += [(_PREFIX + name, str(value)) for name, value in context.items()]
    return OutgoingMessage(
        common["errors.deadletterqueue.topic.name"],
        record.payload,
        qos=record.qos,
        properties=headers,
        content_type=record.content_type,
        response_topic=record.response_topic,
        correlation_data=record.correlation_data,
    )


async def send_dead_letters(runner: Runner, messages: Sequence[OutgoingMessage]) -> None:
    """Store messages on the topic of dead letters, however long the node is away. Raises `ConnectError`."""
    while True:
        try:
            await runner.job.client.send_many(messages)
        except SluiceError as error:
            if not is_transient(error):
                raise ConnectError(f"dead letters cannot be sent: {error}") from error
            runner.note_retry(error)
            await sleep(_PAUSE_S, runner.job.stopping)
        else:
            runner.figures.dead += len(messages)
            return
