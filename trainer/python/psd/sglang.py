"""SGLang: writes published versions as the directories that its endpoint /pull_weights reads.

    python -m psd.sglang --server tcp://host:5500 --into /srv/weights --files-from /models/base --full-every 20

Each version is a directory such as `weight_v000012`. A full checkpoint has `model.safetensors`, its index, and the other files of
the model; a delta has what changed since the version before. The layout is that of
python/sglang/srt/weight_sync/local_checkpoint.py in sgl-project/sglang at 01d5bfe50c37 (pull requests 30366 and 30367). SGLang
without that endpoint reads a full checkpoint with /update_weights_from_disk."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from . import _arguments, _sglang_deltas
from ._versions import Held, VersionHolder
from .errors import Error, InputOutputError, InvalidArgument, ModelMismatch, NotReady
from .follower import Follower

__all__ = ["DirectoryWriter", "write_directory"]

_NAME = re.compile(r"weight_v(\d{6,})")
_INDEX, _WEIGHTS = "model.safetensors.index.json", "model.safetensors"
_DELTA = "delta.safetensors"  # unlike _WEIGHTS no checkpoint to a reader who does not see the index yet
_OF_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")


class DirectoryWriter:
    """Writes versions that a follower holds, one after the other, as directories in `into`. Each exists whole or not at all.

    `files_from`: the checkpoint that the engine has been started with, whose files other than weights (config.json, the
    tokenizer) each full directory gets too, since /pull_weights leaves no others in its copy. `keep`: how many versions stay;
    the directories that they need stay too. `full_every`: of how many versions one is full. The others are deltas of the
    version before: if this object wrote that one (or found it written) just before, if the names, data types and shapes of
    all tensors are the same, and if a delta takes less than half of the space. Needs the memory of two versions then.

    Calls can be made from one thread at a time."""

    def __init__(self, into: str | os.PathLike[str], files_from: str | os.PathLike[str] | None = None, keep: int = 3,
                 full_every: int = 1):
        self._folder = pathlib.Path(into)
        self._files_from = None if files_from is None else pathlib.Path(files_from)
        self._keep = _arguments.integer("keep", keep, 1)
        self._full_every = _arguments.integer("full_every", full_every, 1)
        self._before: Held | None = None

    def write(self, follower: VersionHolder) -> pathlib.Path:
        """Writes the version that the follower holds, and removes versions that are not to stay. Returns its directory; one of
        that version that exists already stays. ModelMismatch: `into` has versions of another history, whose numbers mean other
        weights."""
        held = follower._holds("writing a directory")
        if self._full_every > 1 and not isinstance(follower, Follower):
            raise InvalidArgument("deltas need a psd.Follower: shared memory has no place for the version before while the next one comes")
        target = self._folder / _name(held.info.number)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with _written_by_one(self._folder):
                others = [] if self._files_from is None else _other_files(self._files_from)
                bases = _bases(self._folder, held.info.history)
                if held.info.number not in bases:
                    bases[held.info.number] = self._write(target, held, others, bases)
                _prune(self._folder, bases, self._keep)
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise InputOutputError(f"cannot write version {held.info.number} into '{self._folder}': {error}") from error
        if self._full_every > 1:
            self._before = held
        return target

    def _write(self, target: pathlib.Path, held: Held, others: list[pathlib.Path], bases: dict[int, int | None]) -> int | None:
        """Returns the version that the written one is a delta of; None: it is full."""
        delta = self._delta(held, bases)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        if delta is None:
            for file in others:
                shutil.copy2(file, partial / file.name)
            _write_full(partial, held)
        else:
            _write_delta(partial, held, delta)
        _sync(partial)
        partial.rename(target)
        _sync(self._folder)
        return None if delta is None else held.info.number - 1

    def _delta(self, held: Held, bases: dict[int, int | None]) -> _sglang_deltas.Delta | None:
        """The delta of the version before; None: a full directory is due, or better."""
        before = self._before
        if before is None or (before.info.history, before.info.number) != (held.info.history, held.info.number - 1):
            return None
        if not 0 < _chain(bases, before.info.number) < self._full_every:
            return None
        return _sglang_deltas.between(before, held, held.info.bytes // 2)

    def newest(self) -> int:
        """The number of the newest version in the folder; 0: there is none."""
        return max(_numbers(self._folder), default=0)


def write_directory(follower: VersionHolder, into: str | os.PathLike[str], files_from: str | os.PathLike[str] | None = None,
                    keep: int = 3) -> pathlib.Path:
    """Writes the version that the follower holds as a full directory, as DirectoryWriter does, and returns its path."""
    return DirectoryWriter(into, files_from, keep).write(follower)


@contextlib.contextmanager
def _written_by_one(folder: pathlib.Path) -> Iterator[None]:
    with (folder / ".psd.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(f"another process writes into '{folder}': give each a folder of its own") from None
        yield


def _other_files(checkpoint: pathlib.Path) -> list[pathlib.Path]:
    return [file for file in checkpoint.iterdir() if file.is_file() and not file.name.endswith(_OF_WEIGHTS)]


def _name(number: int) -> str:
    return f"weight_v{number:06d}"


def _numbers(folder: pathlib.Path) -> list[int]:
    """The versions that have a directory, ascending."""
    if not folder.exists():
        return []
    return sorted(int(found[1]) for path in folder.iterdir() if (found := _NAME.fullmatch(path.name)))


def _metadata(path: pathlib.Path) -> dict[str, Any]:
    try:
        metadata = json.loads((path / _INDEX).read_text(encoding="utf-8"))["metadata"]
        if not isinstance(metadata["psd.history"], str):
            raise TypeError
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        raise InvalidArgument(f"'{path}' was not written by psd: use a folder of its own") from None
    return metadata  # type: ignore[no-any-return]


def _base(metadata: dict[str, Any]) -> int | None:
    """The version that a directory is a delta of; None: it is full."""
    return int(metadata["base_version"]) if "delta_encoding" in metadata else None


def _bases(folder: pathlib.Path, history: int) -> dict[int, int | None]:
    """By the number of each version in the folder, ascending, the version that it is a delta of; None: it is full."""
    bases = {}
    for number in _numbers(folder):
        path = folder / _name(number)
        metadata = _metadata(path)
        if metadata["psd.history"] != f"{history:016x}":
            raise ModelMismatch(f"'{path}' is of history {metadata['psd.history']}, but the daemon's versions are of {history:016x}: use "
                                "another folder, or remove those directories and reset the engines with version 0")
        bases[number] = _base(metadata)
    return bases


def _chain(bases: dict[int, int | None], number: int) -> int:
    """How many directories make a version, the full one and the deltas after it; 0: one of them does not exist."""
    length = 1
    while number in bases:
        base = bases[number]
        if base is None:
            return length
        number, length = base, length + 1
    return 0


def _prune(folder: pathlib.Path, bases: dict[int, int | None], keep: int) -> None:
    oldest = sorted(bases)[-keep:][0]
    while (base := bases.get(oldest)) is not None:
        oldest = base
    for number in sorted(bases, reverse=True):  # no delta is left without what it is a delta of
        if number < oldest:
            path = folder / _name(number)
            removed = path.with_name(f".{path.name}.removed")
            shutil.rmtree(removed, ignore_errors=True)
            path.rename(removed)  # no reader sees half of it
    for pattern in (".weight_v*.removed", ".weight_v*.partial"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _write_full(folder: pathlib.Path, held: Held) -> None:
    tensors = held.contents()
    _write(folder / _WEIGHTS, [held.file])
    _write_index(folder, held, {"total_size": sum(content.bytes.nbytes for content in tensors.values())}, dict.fromkeys(tensors, _WEIGHTS))


def _write_delta(folder: pathlib.Path, held: Held, delta: _sglang_deltas.Delta) -> None:
    if delta.names:
        _write(folder / _DELTA, delta.file())
    _write_index(folder, held, {"version": f"{held.info.number:06d}", "base_version": f"{held.info.number - 1:06d}",
                                "delta_encoding": delta.encoding, "compression_format": "zstd", "checksum_format": "adler32"},
                 dict.fromkeys(delta.names, _DELTA))


def _write_index(folder: pathlib.Path, held: Held, metadata: dict[str, object], files: dict[str, str]) -> None:
    metadata = {**metadata, "psd.version": held.info.number, "psd.step": held.info.step, "psd.history": f"{held.info.history:016x}"}
    _write(folder / _INDEX, [json.dumps({"metadata": metadata, "weight_map": files}, indent=1).encode()])


def _write(path: pathlib.Path, pieces: Iterable[memoryview | bytes]) -> None:
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: pathlib.Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _follow(follower: Follower, writer: DirectoryWriter, deltas: bool, once: bool) -> Iterator[int]:
    """Reads one version after the other and yields their numbers: with `deltas` each that exists, otherwise the newest. `once`:
    up to the one that is the newest now."""
    if deltas:
        existing = [version.number for version in follower.versions()]
        last = max(existing, default=0) if once else sys.maxsize
        written = writer.newest()
        number = _read(follower, written) if written in existing else follower.wait()
    else:
        last = 0 if once else sys.maxsize
        number = follower.wait()
    yield number
    while number < last:
        number = _read(follower, number + 1) if deltas else follower.wait()
        yield number


def _read(follower: Follower, number: int) -> int:
    """Reads that version, or the newest if that one does not exist any more."""
    try:
        return follower.fetch(number)
    except NotReady:
        return follower.wait()


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m psd.sglang", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="addresses of the daemon, separated by commas; default: the environment's PSD_SERVER")
    parser.add_argument("--into", required=True, help="folder of the directories")
    parser.add_argument("--files-from", help="checkpoint whose files other than weights each full directory gets")
    parser.add_argument("--keep", type=int, default=3, help="versions to keep, besides what they are deltas of (default: 3)")
    parser.add_argument("--full-every", type=int, default=1, metavar="N",
                        help="one of N versions is full, the others are deltas (default: 1, without deltas)")
    parser.add_argument("--once", action="store_true", help="end with the newest version")
    for name in ("token-file", "tls-ca", "tls-cert", "tls-key"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args()
    try:
        writer = DirectoryWriter(given.into, given.files_from, given.keep, given.full_every)
        with Follower(given.server, token_file=given.token_file, tls_ca=given.tls_ca, tls_cert=given.tls_cert,
                      tls_key=given.tls_key) as follower:
            for number in _follow(follower, writer, given.full_every > 1, given.once):
                path = writer.write(follower)
                base = _base(_metadata(path))
                print(f"version {number}: {path}{'' if base is None else f', from version {base}'}", flush=True)
        return 0
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(_main())
