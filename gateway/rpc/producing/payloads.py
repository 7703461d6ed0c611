"""Holds the payloads of services' messages against the schemas of their topics."""

import record
from gateway.schemas.errors import InvalidPayload
from gateway.schemas.payload_checks import PayloadChecks
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_RETAIN


def checked_frame(frame: bytes, checks: PayloadChecks) -> bytes:
    """The unsealed record of a message as it is stored: as it is, marked, or with the topic for quarantine.

    Raises `InvalidPayload` if the message is to be refused, which a half message is in place of quarantine: the
    producer ends its transaction by the position that it got.
    """
    kind, flags, packet_id, topic, publisher, block, payload = record.decode(frame, 0)
    removes = flags & FLAG_RETAIN and not payload  # the retained message; that says nothing
    fault = None if removes else checks.fault(topic, payload)
    if fault is None:
        return frame
    if fault.mode == "refuse" or (fault.quarantine and flags & FLAG_HALF):
        raise InvalidPayload(fault.reason)
    due_ms = record.trailer_of(frame, 0) if flags & FLAG_DELAYED else None
    block += fault.properties(topic)
    if fault.quarantine:
        topic, flags, due_ms = fault.quarantine, flags & ~(FLAG_DELAYED | FLAG_RETAIN), None
    return record.frame(kind, flags, packet_id, topic, publisher, block, payload, due_ms)
