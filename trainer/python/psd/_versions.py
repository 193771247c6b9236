"""Versions in memory, and waiting for the next one: what Follower and SharedVersions have in common."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import abc
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _arguments, _dtypes, _pending, _psd
from .errors import DeadlineExceeded, InvalidArgument

if TYPE_CHECKING:
    import torch

_PIECE = 1.0  # seconds of a wait of next(), after which it notices that it was cancelled


@dataclasses.dataclass(frozen=True)
class _Awaited:
    """A call that asyncio awaits on a thread of its own."""
    wait: Callable[[], int]

    def __await__(self) -> Generator[Any, None, int]:
        return _pending.awaited(self.wait)


class Content(NamedTuple):
    """A tensor as the file has it."""
    dtype: str
    shape: tuple[int, ...]
    bytes: np.ndarray


class Held:
    """A version in memory. Immutable, except for arrays of PyTorch, which has no read-only ones. `tensors`: name, dtype, shape
    and place in `file` of each."""

    def __init__(self, info: _psd.PublishedVersion, tensors: Iterable[Any], file: np.ndarray):
        self.info = info
        self._tensors = tensors
        self._writable = file
        self._file = np.frombuffer(self._writable.data.toreadonly(), np.uint8)

    @property
    def file(self) -> memoryview:
        """The whole `.safetensors` file."""
        return self._file.data

    def contents(self) -> dict[str, Content]:
        return {name: Content(dtype, tuple(shape), self._file[begin:end]) for name, dtype, shape, begin, end in self._tensors}

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {}
        for name, dtype, shape, begin, end in self._tensors:
            array = _dtypes.version_view(self._file[begin:end], dtype).reshape(shape)
            if not array.flags.aligned:  # the tensor before it has an odd number of 16-bit elements
                array = array.copy()
                array.setflags(write=False)
            arrays[name] = array
        return arrays

    def torch_tensors(self) -> dict[str, torch.Tensor]:
        import torch
        tensors = {}
        for name, dtype, shape, begin, end in self._tensors:
            part = self._writable[begin:end]
            if part.ctypes.data % _dtypes.version_bytes(dtype):
                part = part.copy()
            tensors[name] = _dtypes.version_view(torch.from_numpy(part), dtype).reshape(shape)
        return tensors


class VersionHolder(abc.ABC):
    """Holds one version, the newest that wait() has read."""

    def __init__(self) -> None:
        self._waiting = threading.Lock()  # held within wait()
        self._held: Held | None = None
        # Numbers of the version held, and of the one that wait() returned last; 0: none of the present history.
        self._seen = self._returned = 0

    @abc.abstractmethod
    def _read(self, least: int, timeout: float | None) -> Held | None:
        """Waits for a version of at least this number and reads the newest; None: it is the one held."""

    def wait(self, at_least: int | None = None, timeout: float | None = None) -> int:
        """Waits until a version newer than the one that the previous call returned exists, or one with the number `at_least`
        or a larger one, reads the newest and holds it. Returns its number. Returns at once if the version held is that new
        already. DeadlineExceeded, a TimeoutError, after `timeout` seconds; None: the wait is unlimited."""
        self._returned = self._obtain(at_least, timeout)
        return self._returned

    async def next(self, at_least: int | None = None, timeout: float | None = None) -> int:
        """wait() for asyncio, on a thread of its own. After a cancellation the next call gets the version that this one
        would have returned; the thread ends within a second."""
        cancelled = threading.Event()
        until = deadline(timeout)

        def obtain() -> int:
            while True:
                left = until - time.monotonic()
                try:
                    return self._obtain(at_least, min(_PIECE, max(0.0, left)), cancelled)
                except DeadlineExceeded:
                    if cancelled.is_set() or left <= _PIECE:
                        raise

        try:
            self._returned = await _Awaited(obtain)
        finally:
            cancelled.set()
        return self._returned

    def _obtain(self, at_least: int | None, timeout: float | None, cancelled: threading.Event | None = None) -> int:
        """Reads a version as wait() does, but does not count as its return."""
        least = None if at_least is None else _arguments.integer("at_least", at_least)
        with self._waits_alone(timeout) as left:
            least = self._returned + 1 if least is None else least
            if 0 < self._seen >= least:
                return self._seen
            held = self._read(least, left())
            if held is not None:
                if cancelled is not None and cancelled.is_set():
                    raise DeadlineExceeded("the wait was cancelled", True)
                self._hold(held)
            return self._seen

    @contextlib.contextmanager
    def _waits_alone(self, timeout: float | None) -> Iterator[Callable[[], float | None]]:
        """A block in which no other thread waits for a version; gives what is left of the timeout."""
        until = deadline(timeout)

        def left() -> float | None:
            return None if timeout is None else max(0.0, until - time.monotonic())

        if not self._waiting.acquire(timeout=-1 if timeout is None else max(0.0, until - time.monotonic())):
            raise DeadlineExceeded(f"another thread of this follower waited longer than {timeout} seconds for a version", True)
        try:
            yield left
        finally:
            self._waiting.release()

    def _hold(self, held: Held) -> None:
        self._held, self._seen = held, held.info.number

    @property
    def version(self) -> int | None:
        """The number of the version held; None before the first wait()."""
        return None if self._held is None else self._held.info.number

    @property
    def info(self) -> _psd.PublishedVersion | None:
        """The version held: its number, step, created, moment, bytes and history; None before the first wait()."""
        return None if self._held is None else self._held.info

    def tensors(self) -> dict[str, np.ndarray]:
        """The tensors of the version held, by name: read-only views of its bytes, without a copy. They stay valid and
        unchanged after later calls, also after close(). Those of bfloat16 and float8 have the dtypes of the package
        ml_dtypes if it is installed, otherwise uint16 and uint8 with the same bits."""
        return self._holds("tensors()").arrays()

    def torch_tensors(self) -> dict[str, torch.Tensor]:
        """tensors() as PyTorch's, also without a copy. PyTorch has no read-only tensors: do not write to them, since they
        share memory with those of tensors(); model.load_state_dict() copies them."""
        return self._holds("torch_tensors()").torch_tensors()

    def _holds(self, what: str) -> Held:
        if self._held is None:
            raise InvalidArgument(f"{what} before the first version: call wait() first, which reads one")
        return self._held

    @property
    def _shown(self) -> str:
        return "no version yet" if self._held is None else f"version {self._held.info.number}"


def deadline(timeout: Any) -> float:
    """When a wait of `timeout` seconds ends."""
    if timeout is None:
        return math.inf
    seconds = _arguments.number("timeout", timeout)
    if not 0 <= seconds <= threading.TIMEOUT_MAX:
        raise InvalidArgument(f"timeout is {seconds:g}; expected a number of seconds from 0 on, or None: without a limit")
    return time.monotonic() + seconds
