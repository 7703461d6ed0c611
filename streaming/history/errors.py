"""Errors of histories."""


class HistoryError(RuntimeError):
    """A history cannot be read or continued. The message names the part and the problem."""


class HistoryChanged(HistoryError):
    """Another writer has changed the same history meanwhile."""
