"""Reads the shared-memory file in which `psd follow --shared` keeps the newest version of a model."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import dataclasses
import fcntl
import json
import mmap
import os
import stat
import struct
import threading
import time
from typing import Any

import numpy as np

from . import _arguments, _psd
from ._versions import Held, VersionHolder, deadline
from .errors import DeadlineExceeded, InputOutputError, Interrupted, ModelMismatch

_PAUSE_MIN, _PAUSE_MAX = 0.001, 0.01  # seconds between two looks at the file
_LOOK_AT_PATH = 0.1  # seconds, after which the path may have another file

# The layout: docs/reference/protocol.md. Words are 64 bits.
_MAGIC = b"PSDSHARE"
_FORMAT = 1
_HEADER_BYTES = 256
_CAPACITY, _SLOT_AT, _GENERATION, _REPLACED, _SLOTS, _SLOT_WORDS = 2, 3, 8, 9, 16, 8
_SLOT_LOCK = 1  # the byte of the file that a reader of slot 0 locks
_LOCK = struct.Struct("hhqqi4x")


class _File:
    """The header of a file, mapped. Immutable, except for its words, which the follower changes."""

    def __init__(self, path: str):
        self.path = path
        fd = _open(path)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size < _HEADER_BYTES:
                raise self._other("it is too short")
            self.identity = (status.st_dev, status.st_ino)
            # A word is one aligned load of 8 bytes.
            self._words = memoryview(mmap.mmap(fd, _HEADER_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)).cast("Q")
        finally:
            os.close(fd)
        if bytes(self._words[:1]) != _MAGIC:
            raise self._other("it begins differently")
        if self._words[1] != _FORMAT:
            raise self._other("its format is of another version of psd")

    def _other(self, why: str) -> InputOutputError:
        return InputOutputError(f"'{self.path}' is not a file of psd follow --shared: {why}")

    @property
    def generation(self) -> int:
        """Names the active slot; 0: there is none."""
        return self._words[_GENERATION]

    def is_current(self, look_at_path: bool) -> bool:
        """Whether the path still has this file."""
        if not look_at_path and not self._words[_REPLACED]:
            return True
        try:
            status = os.stat(self.path)
        except OSError:
            return True  # as long as no other one is found
        return (status.st_dev, status.st_ino) == self.identity

    def take(self, generation: int) -> _Taken | None:
        """Locks the slot of that generation; None: it is no longer active."""
        # An open file of its own, which holds the lock until the last map of it ends.
        fd = _open(self.path)
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != self.identity:
                return None
            slot = generation % 2
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, _SLOT_LOCK + slot, 1, 0))
            except (BlockingIOError, PermissionError):
                return None  # the follower writes it: another one is active
            if self.generation != generation:
                return None
            at = _SLOTS + slot * _SLOT_WORDS
            recorded, number, history, size = self._words[at:at + 4]
            if recorded != generation or size > self._words[_CAPACITY]:
                raise self._other("its active slot is damaged")
            taken = _Taken(fd, self._words[_SLOT_AT + slot], number, history, size)
            fd = -1
            return taken
        finally:
            if fd >= 0:
                os.close(fd)


@dataclasses.dataclass
class _Taken:
    """A locked slot. The lock ends with close() and the last map of map()."""
    fd: int
    at: int
    number: int
    history: int
    size: int

    def map(self) -> np.ndarray:
        """The slot's image. Writable, since PyTorch has no read-only tensors: what is written is this process's alone."""
        return _psd.map_file(self.fd, self.at, self.size)

    def close(self) -> None:
        os.close(self.fd)


class SharedVersions(VersionHolder):
    """Reads the versions that `psd follow --shared FILE` keeps in shared memory (docs/guides/published_versions.md), without a
    copy and without a connection. It holds one version, the newest that wait() has read, whole.

        with psd.SharedVersions("/dev/shm/model") as versions:
            while True:
                number = versions.wait()
                weights = versions.tensors()

    The follower needs the place of a version for the one after the next: it waits as long as the version is held here or
    an array of it exists, in this process or in one that it has forked. A version is held until wait() returns the next
    one, or close().

    Calls can be made from any thread; of several threads in wait() one waits at a time. ModelMismatch: the daemon has lost
    its versions, and the same numbers mean other bytes; the next call continues with the new ones."""

    def __init__(self, path: str | os.PathLike[str]):
        """`path`: the file, which wait() waits for if it does not exist yet."""
        super().__init__()
        self._path = _arguments.text("path", os.fspath(path))
        self._closed = threading.Event()
        self._file: _File | None = None
        self._looked = 0.0  # when the path was looked at
        self._passed: tuple[Any, int, int] = (None, 0, 0)  # file, generation and number of a version that was too old
        self._history: int | None = None

    def wait(self, at_least: int | None = None, timeout: float | None = None) -> int:
        """Waits until a version newer than the one that the previous call returned exists, or one with the number `at_least`
        or a larger one, and holds it; the version held until then is released. Returns its number. Returns at once if the
        version held is that new already. DeadlineExceeded, a TimeoutError, after `timeout` seconds; None: the wait is
        unlimited. It looks at the file every 1 to 10 ms."""
        return super().wait(at_least, timeout)

    def close(self) -> None:
        """Releases the version held, and ends calls in progress (Interrupted). Arrays stay valid, and hold their version."""
        self._closed.set()
        self._held = None

    def _read(self, least: int, timeout: float | None) -> Held | None:
        until, pause = deadline(timeout), _PAUSE_MIN
        while True:
            if self._closed.is_set():
                raise Interrupted(f"{self!r} is closed")
            found = self._look(least)
            if isinstance(found, Held):
                return found
            left = until - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(f"after {round(timeout or 0, 3):g} seconds {found}", True)
            self._closed.wait(min(pause, left))
            pause = min(pause * 1.5, _PAUSE_MAX)

    def _look(self, least: int) -> Held | str:
        """A version of at least this number, or the reason why there is none."""
        now = time.monotonic()
        look_at_path = now - self._looked >= _LOOK_AT_PATH
        if look_at_path:
            self._looked = now
        if self._file is None or not self._file.is_current(look_at_path):
            try:
                self._file = _File(self._path)
            except FileNotFoundError:
                return f"there is no file '{self._path}', which psd follow --shared makes"
        file, generation = self._file, self._file.generation
        none = f"'{self._path}' has no version of at least {least}"
        if generation == 0 or ((file.identity, generation) == self._passed[:2] and self._passed[2] < least):
            return none
        try:
            taken = file.take(generation)
        except FileNotFoundError:
            return none
        if taken is None:
            return f"'{self._path}' changes"
        try:
            if self._history not in (None, taken.history):
                self._history, self._seen, self._returned = taken.history, 0, 0
                raise ModelMismatch(f"the daemon has lost its versions: '{self._path}' has version {taken.number} of another history")
            self._history = taken.history
            if taken.number < least:
                self._passed = (file.identity, generation, taken.number)
                return none
            return _held(taken)
        except (KeyError, TypeError, ValueError) as error:
            raise InputOutputError(f"version {taken.number} in '{self._path}' is no version: {error!r}") from error
        finally:
            taken.close()

    def __enter__(self) -> SharedVersions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<psd.SharedVersions of '{self._path}', {self._shown}>"

    def __reduce__(self) -> Any:
        raise TypeError("a psd.SharedVersions cannot be pickled: it holds a lock; make one in each process")


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputOutputError(f"cannot open '{path}': {error.strerror}") from error


def _held(taken: _Taken) -> Held:
    """The version in a slot: the .safetensors file that the follower has verified."""
    image = taken.map()
    data = 8 + int.from_bytes(image[:8].tobytes(), "little")
    header = json.loads(image[8:data].tobytes())
    metadata = header.pop("__metadata__")
    tensors = [(name, entry["dtype"], tuple(entry["shape"]), *(data + offset for offset in entry["data_offsets"]))
               for name, entry in header.items()]
    info = _psd.PublishedVersion(number=taken.number, step=int(metadata["psd.step"]), created=metadata["psd.created"],
                                 moment=metadata["psd.moment"], bytes=taken.size, history=taken.history)
    return Held(info, tensors, image)
