"""Tests on more than the loop of asyncio: nodes run on uvloop, whose connections differ in places."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine

import pytest
import uvloop

Factory = Callable[[], asyncio.AbstractEventLoop]
Test = Callable[..., Coroutine[object, object, None]]


def on(*loops: Factory) -> Callable[[Test], Callable[..., None]]:
    """Run an async test once on each of these loops. Its fixtures must not be async."""

    def decorate(test: Test) -> Callable[..., None]:
        def run(loop_factory: Factory, **given: object) -> None:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(test(**given))

        own = inspect.signature(test)
        added = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = own.replace(parameters=[*own.parameters.values(), added])  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.pytestmark = list(getattr(test, "pytestmark", ()))  # type: ignore[attr-defined]
        return pytest.mark.parametrize("loop_factory", loops, ids=lambda loop: loop.__module__.partition(".")[0])(run)

    return decorate


on_each_loop = on(asyncio.new_event_loop, uvloop.new_event_loop)
on_uvloop = on(uvloop.new_event_loop)
