"""What connectors raise."""


class ConnectError(Exception):
    """A task cannot go on. The message says why, in one line, without secrets."""


class DataError(ConnectError):
    """A record cannot be converted or transformed. `errors.tolerance` says what becomes of it."""


class RetriableError(ConnectError):
    """The same call may succeed later: the other system is away, or asks to wait."""

    def __init__(self, text: str, *, retry_after_s: float | None = None) -> None:
        """retry_after_s: how long the other system asks to wait; None: the worker's own pauses."""
        super().__init__(text)
        self.retry_after_s = retry_after_s


class InvalidSettings(ConnectError):
    """Settings are refused. `errors` has the reasons, by the name of the setting."""

    def __init__(self, errors: dict[str, list[str]]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, texts in errors.items() for text in texts))
        self.errors = errors
