"""Publishes versions of weights that this program trains itself."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import _arguments, _connection, _dtypes, _psd
from .errors import InvalidArgument


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A box of a tensor, for psd.Publisher.publish(): the elements `offset[i] : offset[i] + array.shape[i]` in each
    dimension i of a tensor of `shape`. Without these, `array` is the whole tensor. `dtype`: what the bits of the elements
    are, by the name in a .safetensors file, where numpy has no such dtype: psd.Part(bits, dtype="F8_E4M3")."""

    array: Any
    shape: Sequence[int] | None = None
    offset: Sequence[int] | None = None
    dtype: str | None = None


class Publisher:
    """Publishes versions of weights that this program owns, at a daemon with `"publish": {"from": "publishers"}`
    (docs/guides/weight_store.md). Several programs may publish together, each a rank with its part of the tensors. It
    needs role publisher. When the connection breaks or the daemon restarts, the call in progress reconnects and
    continues.

        with psd.Publisher("tcp://localhost:5500") as publisher:
            for step in range(1, 1001):
                ...
                publisher.publish(step, model.state_dict())

    Of two programs with the same rank the newer one publishes; the other's calls raise RankTaken. Calls can be made from
    any thread, one at a time. A signal whose handler raises, such as Ctrl-C, ends a call."""

    def __new__(cls, *_: object, **options: object) -> Publisher:
        if cls.__init__ is Publisher.__init__:
            _arguments.options(options, _OPTIONS, "psd.Publisher")
        return super().__new__(cls)

    def __init__(self, servers: str | Sequence[str] | None = None, *, rank: int = 0, world_size: int = 1,
                 connect_timeout: float = 30.0, retry_timeout: float = 60.0,
                 on_event: Callable[[str, str], None] | None = None, token: str | None = None,
                 token_file: str | os.PathLike[str] | None = None, tls_ca: str | os.PathLike[str] | None = None,
                 tls_cert: str | os.PathLike[str] | None = None, tls_key: str | os.PathLike[str] | None = None):
        """Connects to the first of `servers` that answers. `rank`: of this program among the `world_size` that publish
        together. The other arguments are as for psd.Client. `retry_timeout`: how long a call without a timeout of its own
        tries to reconnect."""
        connection = _connection.arguments(servers, connect_timeout, retry_timeout, on_event, token,
                                           (token_file, tls_ca, tls_cert, tls_key))
        self._rank, self._world_size = _arguments.count("rank", rank), _arguments.count("world_size", world_size)
        self._publisher = _psd.VersionPublisher(*connection, rank=self._rank, world_size=self._world_size)
        _connection.close_at_exit(self._publisher)
        self._servers = ",".join(connection[0])

    def publish(self, step: int, tensors: Mapping[str, Any], timeout: float | None = None) -> _psd.PublishedVersion:
        """Gives this rank's part of the weights after `step`, waits for the other ranks, and returns the version once it is
        durable. `tensors`: by name, a whole tensor (an array of numpy or whatever np.asarray() takes, a tensor of PyTorch
        on any device), a DTensor, a psd.Part, or a list of Parts, which may be empty. Their bytes are not examined: NaN is allowed.

        The tensors of the version are those that some rank gives. All ranks together give each element once; the same part
        from several ranks counts once if its bytes are the same, as of replicated tensors. Steps rise, and need not be
        consecutive. A call for a step that is published already returns its version, if the bytes are the same: after a
        failure, publish the step again. The tensors must not change during the call.

        DeadlineExceeded: after `timeout` seconds (None: without a limit), or if other ranks have not begun the step within
        `publish.parts_timeout_seconds`, or stop sending; the message names them. NotReady: another rank has begun a newer
        step. InvalidArgument: the step is published with other bytes, is older than the newest version, or the parts do not
        fit together. WorldSizeMismatch, ModelMismatch: the ranks disagree on their number, or on a tensor."""
        if not isinstance(tensors, Mapping):
            raise TypeError(f"tensors is {_arguments.shown(tensors)}; expected a mapping from names to tensors, as model.state_dict()")
        parts = [(_arguments.text("the name of a tensor", name), part) for name, value in tensors.items() for part in _parts(name, value)]
        arrays = _on_host([part.array for _, part in parts])
        given = [_given(name, part, array) for (name, part), array in zip(parts, arrays)]
        seconds = None if timeout is None else _arguments.number("timeout", timeout)
        return self._publisher.publish(_arguments.integer("step", step), given, seconds)

    def close(self) -> None:
        """Closes the connection, and ends calls in progress (Interrupted)."""
        self._publisher.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<psd.Publisher at {self._servers}, rank {self._rank} of {self._world_size}>"

    def __reduce__(self) -> Any:
        raise TypeError("a psd.Publisher cannot be pickled: it is a connection; make one in each process")


_OPTIONS = tuple(inspect.signature(Publisher.__init__).parameters)[1:]


def _parts(name: str, value: Any) -> Iterator[Part]:
    """The parts that stand for a tensor."""
    if isinstance(value, Part):
        yield value
    elif isinstance(value, (list, tuple)) and all(isinstance(each, Part) for each in value):
        yield from value
    elif _is_dtensor(value):
        yield from _part_of_dtensor(name, value)
    else:
        yield Part(value)


def _torch() -> Any:
    """The module, if the program uses it."""
    return sys.modules.get("torch")


def _is_dtensor(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _part_of_dtensor(name: str, tensor: Any) -> Iterator[Part]:
    """This rank's part of a DTensor; none if another rank has a replica of it with lower coordinates."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if any(placement.is_partial() for placement in placements):
        raise InvalidArgument(f"tensor '{name}' is a DTensor whose parts are to be summed: call redistribute() or full_tensor() first")
    if coordinate is None or any(placement.is_replicate() and at > 0 for placement, at in zip(placements, coordinate)):
        return
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    local = tensor.to_local()
    if tuple(local.shape) != tuple(shape):
        raise InvalidArgument(f"tensor '{name}' is a DTensor with a local shape of {tuple(local.shape)}, not {tuple(shape)}: "
                              "its placements are not supported; give a psd.Part")
    yield Part(local, tuple(tensor.shape), tuple(offset))


def _on_host(arrays: list[Any]) -> list[Any]:
    """The arrays in this machine's memory. Those of CUDA are copied at the same time, into pinned memory."""
    torch = _torch()
    copied, devices = [], set()
    for array in arrays:
        if torch is None or not isinstance(array, torch.Tensor):
            copied.append(np.asarray(array))
            continue
        source = array.detach()
        if source.device.type == "cuda":
            host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            copied.append(host.copy_(source, non_blocking=True))
            devices.add(source.device)
        else:
            copied.append(source.cpu())
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return copied


def _given(name: str, part: Part, array: Any) -> tuple[Any, ...]:
    """A part as _psd takes it."""
    if part.dtype is not None:
        _arguments.text(f"the dtype of tensor '{name}'", part.dtype)
    dtype = _dtypes.version_dtype(name, array, part.dtype)
    extent = tuple(array.shape)
    shape = extent if part.shape is None else _arguments.shape(name, part.shape)
    offset = (0,) * len(extent) if part.offset is None else _arguments.shape(name, part.offset)
    if len(shape) != len(extent) or len(offset) != len(extent):
        raise InvalidArgument(f"the part of tensor '{name}' has {len(extent)} dimensions, its shape {len(shape)} and its offset {len(offset)}")
    return name, dtype, shape, offset, extent, _flat_bytes(array)


def _flat_bytes(array: Any) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        flat: np.ndarray = array.contiguous().reshape(-1).view(_torch().uint8).numpy()
        return flat
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
