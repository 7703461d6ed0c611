"""How many messages a source asks for at once, where a request cannot name bytes."""


class BatchSize:
    """Begins with one message, grows while messages are small, and shrinks after a large one.

    So a request brings at most `most` times the largest message, and that only once after small ones.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        """most_bytes: of a request whose messages are as large as the largest of the last one."""
        self.count = 1  # of the next request
        self._most = most
        self._most_bytes = most_bytes

    def note(self, largest: int) -> None:
        """Note how many bytes the largest message of a request had."""
        self.count = min(self._most, 4 * self.count, max(1, self._most_bytes // max(1, largest)))
