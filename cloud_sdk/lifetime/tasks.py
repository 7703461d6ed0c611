"""The cancellation of asyncio tasks."""

import asyncio


def is_cancelled() -> bool:
    """Whether the current task was asked to cancel. If not, a `CancelledError` comes from what the task waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
