"""SGLang: writes published versions as the directories that its endpoint /pull_weights reads.

    python -m psd.sglang --server tcp://host:5500 --into /srv/weights --files-from /models/base

Each version is a full checkpoint `weight_v000012`: `model.safetensors`, its index, and the other files of the model. The layout is
that of python/sglang/srt/weight_sync/local_checkpoint.py in sgl-project/sglang at 01d5bfe50c37 (pull requests 30366 and
30367). SGLang without that endpoint reads such a directory with /update_weights_from_disk."""

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
from collections.abc import Iterator

from . import _arguments
from ._versions import VersionHolder
from .errors import Error, InputOutputError, InvalidArgument, ModelMismatch
from .follower import Follower

__all__ = ["write_directory"]

_NAME = re.compile(r"weight_v(\d{6,})")
_INDEX, _WEIGHTS = "model.safetensors.index.json", "model.safetensors"
_OF_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")


def write_directory(follower: VersionHolder, into: str | os.PathLike[str], files_from: str | os.PathLike[str] | None = None,
                    keep: int = 3) -> pathlib.Path:
    """Writes the version that the follower holds as a directory in `into`, which exists whole or not at all, and removes all but
    the newest `keep`. Returns its path; a directory of that version that exists already stays. `files_from`: the checkpoint
    that the engine has been started with, whose files other than weights (config.json, the tokenizer) each version gets too,
    since /pull_weights leaves no others in its copy. ModelMismatch: `into` has versions of another history, whose numbers
    mean other weights."""
    keep = _arguments.integer("keep", keep, 1)
    held = follower._holds("write_directory()")
    folder = pathlib.Path(into)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _written_by_one(folder):
            target = folder / f"weight_v{held.info.number:06d}"
            others = [] if files_from is None else _other_files(pathlib.Path(files_from))
            _check_history(folder, held.info.history)
            if not target.exists():
                partial = folder / f".{target.name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                for file in others:
                    shutil.copy2(file, partial / file.name)
                _write(partial / _WEIGHTS, held.file)
                tensors = held.arrays()
                metadata = {"total_size": sum(array.nbytes for array in tensors.values()), "psd.version": held.info.number,
                            "psd.step": held.info.step, "psd.history": f"{held.info.history:016x}"}
                index = {"metadata": metadata, "weight_map": dict.fromkeys(tensors, _WEIGHTS)}
                _write(partial / _INDEX, json.dumps(index, indent=1).encode())
                _sync(partial)
                partial.rename(target)
                _sync(folder)
            _prune(folder, keep)
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise InputOutputError(f"cannot write version {held.info.number} into '{folder}': {error}") from error
    return target


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


def _versions(folder: pathlib.Path) -> list[pathlib.Path]:
    """The directories of versions, ascending."""
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=lambda path: int(path.name[len("weight_v"):]))


def _check_history(folder: pathlib.Path, history: int) -> None:
    for path in _versions(folder):
        try:
            found = json.loads((path / _INDEX).read_text(encoding="utf-8"))["metadata"]["psd.history"]
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            raise InvalidArgument(f"'{path}' was not written by psd: use a folder of its own") from None
        if found != f"{history:016x}":
            raise ModelMismatch(f"'{path}' is of history {found}, but the daemon's versions are of {history:016x}: use another folder, "
                                "or remove those directories and reset the engines with version 0")


def _prune(folder: pathlib.Path, keep: int) -> None:
    for path in _versions(folder)[:-keep]:
        removed = path.with_name(f".{path.name}.removed")
        shutil.rmtree(removed, ignore_errors=True)
        path.rename(removed)  # no reader sees half of it
    for pattern in (".weight_v*.removed", ".weight_v*.partial"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _write(path: pathlib.Path, content: memoryview | bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: pathlib.Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m psd.sglang", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="addresses of the daemon, separated by commas; default: the environment's PSD_SERVER")
    parser.add_argument("--into", required=True, help="folder of the directories")
    parser.add_argument("--files-from", help="checkpoint whose files other than weights each version gets")
    parser.add_argument("--keep", type=int, default=3, help="versions to keep (default: 3)")
    parser.add_argument("--once", action="store_true", help="end after one version")
    for name in ("token-file", "tls-ca", "tls-cert", "tls-key"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args()
    try:
        with Follower(given.server, token_file=given.token_file, tls_ca=given.tls_ca, tls_cert=given.tls_cert,
                      tls_key=given.tls_key) as follower:
            while True:
                number = follower.wait()
                path = write_directory(follower, given.into, given.files_from, given.keep)
                print(f"version {number}: {path}", flush=True)
                if given.once:
                    return 0
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(_main())
