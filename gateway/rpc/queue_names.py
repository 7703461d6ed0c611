"""Names of queues for people."""


def display_name(queue: bytes) -> str:
    """A parent topic with its partition, `home[0]`; a topic; a filter; or `dead letters of g`."""
    if queue[:1] == b"p":
        return f"{queue[1:-3].decode()}[{int.from_bytes(queue[-2:], 'big')}]"
    return f"dead letters of {queue[1:].decode()}" if queue[:1] == b"d" else queue[1:].decode()
