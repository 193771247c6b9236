"""Follows the versions of a model that a daemon publishes."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import atexit
import contextlib
import dataclasses
import inspect
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import _arguments, _dtypes, _pending, _psd
from .client import _log_event
from .errors import DeadlineExceeded, Error, InvalidArgument, ModelMismatch

if TYPE_CHECKING:
    import torch

_PIECE = 1.0  # seconds of a wait of next(), after which it notices that it was cancelled
_LEASE_MAX = 600  # seconds
_Answer = TypeVar("_Answer")
_open: weakref.WeakSet[_psd.VersionReader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes all readers at exit, while threads within their calls can still return to Python."""
    for reader in list(_open):
        reader.close()


@dataclasses.dataclass(frozen=True)
class _Awaited:
    """A call that asyncio awaits on a thread of its own."""
    wait: Callable[[], int]

    def __await__(self) -> Generator[Any, None, int]:
        return _pending.awaited(self.wait)


class _Held:
    """A version in memory. Immutable, except for arrays of PyTorch, which has no read-only ones."""

    def __init__(self, fetched: _psd.FetchedVersion):
        self.info = fetched.info
        self._tensors = fetched.tensors
        self._writable = fetched.file
        self._file = np.frombuffer(self._writable.data.toreadonly(), np.uint8)

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {}
        for name, dtype, shape, begin, end in self._tensors:
            array = _dtypes.view(self._file[begin:end], dtype).reshape(shape)
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
            if part.ctypes.data % _dtypes.BYTES[dtype]:
                part = part.copy()
            tensors[name] = _dtypes.view(torch.from_numpy(part), dtype).reshape(shape)
        return tensors


class Follower:
    """Reads the versions that a daemon publishes (docs/guides/published_versions.md), for a program that serves or
    evaluates a model while it is trained. It holds one version in memory, the newest that wait() has read, whole and with
    verified checksums. It needs role reader. When the connection breaks or the daemon restarts, the call in progress
    reconnects and continues.

        with psd.Follower("tcp://localhost:5500") as follower:
            while True:
                number = follower.wait()
                weights = follower.tensors()

    Calls can be made from any thread; of several threads in wait() one waits at a time. A signal whose handler raises, such
    as Ctrl-C, ends a call. ModelMismatch: the daemon has lost its versions, and numbers start again from 1; the next
    call continues with the new ones."""

    def __new__(cls, *_: object, **options: object) -> Follower:
        if cls.__init__ is Follower.__init__:
            _arguments.options(options, _OPTIONS, "psd.Follower")
        return super().__new__(cls)

    def __init__(self, servers: str | Sequence[str] | None = None, *, connect_timeout: float = 30.0,
                 retry_timeout: float = 60.0, on_event: Callable[[str, str], None] | None = None, token: str | None = None,
                 token_file: str | os.PathLike[str] | None = None, tls_ca: str | os.PathLike[str] | None = None,
                 tls_cert: str | os.PathLike[str] | None = None, tls_key: str | os.PathLike[str] | None = None):
        """Connects to the first of `servers` that answers; all arguments are as for psd.Client. `retry_timeout`: how long a
        call without a timeout of its own tries to reconnect."""
        if servers is None:
            servers = os.environ.get("PSD_SERVER", "")
            if not servers:
                raise InvalidArgument('no server is given: "tcp://host:port", or the environment\'s PSD_SERVER')
        number, text = _arguments.number, _arguments.text
        self._reader = _psd.VersionReader(servers.split(",") if isinstance(servers, str) else _arguments.texts("a server", servers),
                                          number("connect_timeout", connect_timeout), number("retry_timeout", retry_timeout),
                                          _arguments.function("on_event", on_event or _log_event),
                                          token if token is None else text("token", token),
                                          _psd.CredentialFiles(*(path if path is None else os.fspath(path)
                                                                 for path in (token_file, tls_ca, tls_cert, tls_key))))
        _open.add(self._reader)
        self._servers = servers if isinstance(servers, str) else ",".join(servers)
        self._waiting = threading.Lock()  # held within wait()
        self._held: _Held | None = None
        # Numbers of the version held, and of the one that wait() returned last; 0: none of the daemon's history.
        self._seen = self._returned = 0

    def wait(self, at_least: int | None = None, timeout: float | None = None) -> int:
        """Waits until a version newer than the one that the previous call returned exists, or one with the number `at_least`
        or a larger one, reads the newest and holds it. Returns its number. Returns at once if the version held is that new
        already. DeadlineExceeded, a TimeoutError, after `timeout` seconds; None: the wait is unlimited, and fails
        (Unavailable) when no daemon answers for `retry_timeout`. The time does not limit the transfer of a version that
        exists."""
        self._returned = self._obtain(at_least, timeout)
        return self._returned

    async def next(self, at_least: int | None = None, timeout: float | None = None) -> int:
        """wait() for asyncio, on a thread of its own. After a cancellation the next call gets the version that this one
        would have returned; the thread ends within a second."""
        cancelled = threading.Event()
        until = _deadline(timeout)

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
        until = _deadline(timeout)
        if not self._waiting.acquire(timeout=-1 if timeout is None else max(0.0, until - time.monotonic())):
            raise DeadlineExceeded(f"another thread of this follower waited longer than {timeout} seconds for a version", True)
        try:
            least = self._returned + 1 if least is None else least
            if 0 < self._seen >= least:
                return self._seen
            newest = self._call(self._reader.wait_for, least, None if timeout is None else max(0.0, until - time.monotonic()))
            if newest.number != self._seen:
                # The newest at this moment: `newest` may have been removed.
                held = _Held(self._call(self._reader.fetch, 0))
                if cancelled is not None and cancelled.is_set():
                    raise DeadlineExceeded("the wait was cancelled", True)
                self._held, self._seen = held, held.info.number
            return self._seen
        finally:
            self._waiting.release()

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
        unchanged after later calls, also after close(). Those of bfloat16 have the dtype of the package ml_dtypes if it is
        installed, otherwise uint16 with the same bits."""
        return self._holds("tensors()").arrays()

    def torch_tensors(self) -> dict[str, torch.Tensor]:
        """tensors() as PyTorch's, also without a copy. PyTorch has no read-only tensors: do not write to them, since they
        share memory with those of tensors(); model.load_state_dict() copies them."""
        return self._holds("torch_tensors()").torch_tensors()

    def versions(self) -> list[_psd.PublishedVersion]:
        """The versions that exist at the daemon, ascending."""
        return self._call(self._reader.versions)

    @contextlib.contextmanager
    def pin(self, seconds: int = 60) -> Iterator[_psd.PublishedVersion]:
        """Keeps the version held from being removed at the daemon in a `with` statement, whatever this follower reads
        meanwhile, so that other programs can read it too. By a lease of `seconds`, 1 to 600, which is renewed in the
        background, also after a restart of the daemon: it ends that long after the end of this process. NotReady: the
        version was removed already; at the end of the block: it was lost meanwhile."""
        info = self._holds("pin()").info
        lease = self._call(self._reader.pin, info.number, _arguments.integer("seconds", seconds, 1, _LEASE_MAX))
        try:
            yield info
        except BaseException:
            with contextlib.suppress(Error):
                self._reader.unpin(lease)
            raise
        self._reader.unpin(lease)

    def close(self) -> None:
        """Closes the connection, and ends leases and calls in progress (Interrupted). The version held stays."""
        self._reader.close()

    def _call(self, call: Callable[..., _Answer], *arguments: Any) -> _Answer:
        try:
            return call(*arguments)
        except ModelMismatch:  # numbers start again from 1
            self._seen = self._returned = 0
            raise

    def _holds(self, what: str) -> _Held:
        if self._held is None:
            raise InvalidArgument(f"{what} before the first version: call wait() first, which reads one")
        return self._held

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<psd.Follower of {self._servers}, {'no version yet' if self._held is None else f'version {self._held.info.number}'}>"

    def __reduce__(self) -> Any:
        raise TypeError("a psd.Follower cannot be pickled: it is a connection; make one in each process")


_OPTIONS = tuple(inspect.signature(Follower.__init__).parameters)[1:]


def _deadline(timeout: Any) -> float:
    """When a wait of `timeout` seconds ends."""
    if timeout is None:
        return math.inf
    seconds = _arguments.number("timeout", timeout)
    if not 0 <= seconds <= threading.TIMEOUT_MAX:
        raise InvalidArgument(f"timeout is {seconds:g}; expected a number of seconds from 0 on, or None: without a limit")
    return time.monotonic() + seconds
