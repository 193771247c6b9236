"""Follows the versions of a model that a daemon publishes."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from . import _arguments, _connection, _psd
from ._versions import Held, VersionHolder
from .errors import Error, ModelMismatch

_LEASE_MAX = 600  # seconds
_log = logging.getLogger("psd")
_Answer = TypeVar("_Answer")


class Follower(VersionHolder):
    """Reads the versions that a daemon publishes (docs/guides/published_versions.md), for a program that serves or
    evaluates a model while it is trained. It holds one version in memory, the newest that wait() has read, whole and with
    verified checksums; of a model that several daemons serve, all of it, with the address of any of them. It needs role
    reader. When the connection breaks or the daemon restarts, the call in progress reconnects and continues.

        with psd.Follower("tcp://localhost:5500") as follower:
            while True:
                number = follower.wait()
                weights = follower.tensors()

    Calls can be made from any thread; of several threads in wait() one waits at a time. A signal whose handler raises, such
    as Ctrl-C, ends a call. ModelMismatch: the daemon has lost its versions, and the same numbers mean other bytes; the next
    call continues with the new ones."""

    def __new__(cls, *_: object, **options: object) -> Follower:
        if cls.__init__ is Follower.__init__:
            _arguments.options(options, _OPTIONS, "psd.Follower")
        return super().__new__(cls)

    def __init__(self, servers: str | Sequence[str] | None = None, *, connect_timeout: float = 30.0,
                 retry_timeout: float = 60.0, on_event: Callable[[str, str], None] | None = None, token: str | None = None,
                 token_file: str | os.PathLike[str] | None = None, tls_ca: str | os.PathLike[str] | None = None,
                 tls_cert: str | os.PathLike[str] | None = None, tls_key: str | os.PathLike[str] | None = None,
                 max_versions_behind: int | None = None, max_seconds_behind: float | None = None):
        """Connects to the first of `servers` that answers; all other arguments are as for psd.Client. `retry_timeout`: how
        long a call without a timeout of its own tries to reconnect. `max_versions_behind`, `max_seconds_behind`: how far
        behind its source a replica may be for wait() to use it; wait() uses another server where one is further behind, and
        raises Stale if all are. None: any."""
        super().__init__()
        if max_versions_behind is not None:
            max_versions_behind = _arguments.integer("max_versions_behind", max_versions_behind, 0)
        self._fetched: _psd.FetchedVersion | None = None
        #: Bytes of all versions that have come from the daemon: of a patch what it takes, else the whole file.
        self.received_bytes = 0
        connection = _connection.arguments(servers, connect_timeout, retry_timeout, on_event, token,
                                           (token_file, tls_ca, tls_cert, tls_key))
        self._reader = _psd.VersionReader(*connection, max_versions_behind, max_seconds_behind)
        _connection.close_at_exit(self._reader)
        self._servers = ",".join(connection[0])

    def wait(self, at_least: int | None = None, timeout: float | None = None) -> int:
        """Waits until a version newer than the one that the previous call returned exists, or one with the number `at_least`
        or a larger one, reads the newest and holds it. Returns its number. Returns at once if the version held is that new
        already. DeadlineExceeded, a TimeoutError, after `timeout` seconds; None: the wait is unlimited. Unavailable, when no
        daemon has answered for `retry_timeout`, also during earlier waits. The time does not limit the transfer of a version
        that exists."""
        return super().wait(at_least, timeout)

    def _read(self, least: int, timeout: float | None) -> Held | None:
        newest = self._call(self._reader.wait_for, least, timeout)
        if newest.number == self._seen:
            return None
        return self._received(0)  # the newest at this moment: `newest` may have been removed

    def fetch(self, number: int, timeout: float | None = None) -> int:
        """Waits until version `number` exists, reads it and holds it, so that several programs hold the same one, whatever is
        published meanwhile. Returns its number, at once if it is the version held. wait() returns a newer one afterwards.
        NotReady: the daemon has removed it, or has no version of that number; the version held stays. `timeout`: as for
        wait()."""
        number = _arguments.integer("number", number, 1)
        with self._waits_alone(timeout) as left:
            if self._seen != number:
                self._call(self._reader.wait_for, number, left())
                self._hold(self._received(number))
            self._returned = number
        return number

    def _received(self, number: int) -> Held:
        """Version `number` of the daemon, verified; 0: the newest."""
        fetched = self._call(self._reader.fetch, number, self._fetched)
        if fetched.patch_fault:
            _log.warning("%s; version %d was read whole", fetched.patch_fault, fetched.info.number)
        self._fetched = fetched
        self.received_bytes += fetched.received
        return Held(fetched.info, fetched.tensors, fetched.file)

    def versions(self) -> list[_psd.PublishedVersion]:
        """The versions that exist at the daemon, ascending."""
        return self._call(self._reader.versions)

    def freshness(self) -> _psd.Freshness:
        """How the versions of the daemon compare with those of their source."""
        return self._call(self._reader.freshness)

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
        except ModelMismatch:  # numbers of another history
            self._seen = self._returned = 0
            raise

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<psd.Follower of {self._servers}, {self._shown}>"

    def __reduce__(self) -> Any:
        raise TypeError("a psd.Follower cannot be pickled: it is a connection; make one in each process")


_OPTIONS = tuple(inspect.signature(Follower.__init__).parameters)[1:]
