"""Calls in progress, in asyncio."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

_Info = TypeVar("_Info")


def awaited(wait: Callable[[], _Info]) -> Generator[Any, None, _Info]:
    """Awaits `wait()`, which a thread of its own runs: unlike one of the loop's executor, it delays no exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Info] = loop.create_future()

    def settle(setter: Callable[[Any], None], outcome: object) -> None:
        if not future.done():  # it may be cancelled
            setter(outcome)

    def run() -> None:
        setter: Callable[[Any], None] = future.set_result
        outcome: object
        try:
            outcome = wait()
        except BaseException as error:
            setter, outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, setter, outcome)

    threading.Thread(target=run, name="psd-wait", daemon=True).start()
    return future.__await__()
