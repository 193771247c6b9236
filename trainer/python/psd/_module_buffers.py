"""The buffers of a PyTorch module that a daemon serves: those of the trainer with rank 0."""

from __future__ import annotations

import logging
import time

import torch

from . import _buffers, _psd
from .client import Client
from .errors import InvalidArgument, ModelMismatch, Overloaded

_log = logging.getLogger("psd")
_CHOICES = ("local", "rank0")
_PACE = 10.0  # seconds between two sets that rank 0 sends with its steps, at least
_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64",
    torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def persistent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that state_dict() has, each under its first name."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for prefix, each in module.named_modules():
        for name, buffer in each._buffers.items():
            if buffer is not None and name not in each._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def _entry_of(name: str, buffer: torch.Tensor) -> _buffers.Entry:
    values = buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return _buffers.Entry(_NAMES[buffer.dtype], tuple(buffer.shape), values.numpy().tobytes())


def _tensor_of(entry: _buffers.Entry) -> torch.Tensor:
    dtype = _DTYPES[entry.dtype]
    if len(entry.values) == 0:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(bytearray(entry.values), dtype=dtype).reshape(entry.shape)


class ModuleBuffers:
    """The buffers of one trainer's module. Used by the thread that makes the steps."""

    def __init__(self, module: torch.nn.Module, buffers: str):
        if buffers not in _CHOICES:
            raise InvalidArgument(f"buffers is 'local' or 'rank0', not {buffers!r}")
        self._module = module
        self._served = buffers == "rank0"
        self._client: Client | None = None
        self._rank = 0
        self._due = 0.0  # of rank 0: when the next step sends them
        self._missing = False  # of another rank: the daemon had none when it joined
        if self._served:
            for name, buffer in persistent_buffers(module).items():
                self._check(name, buffer)

    @staticmethod
    def _check(name: str, buffer: torch.Tensor) -> None:
        if isinstance(buffer, torch.nn.parameter.UninitializedBuffer) or buffer.is_meta:
            raise InvalidArgument(f"buffer '{name}' has no shape or no memory yet: run one forward pass first, or load the model")
        if buffer.layout != torch.strided or buffer.dtype not in _NAMES:
            raise InvalidArgument(f"buffer '{name}' is {buffer.dtype}, {buffer.layout}; with buffers='rank0' buffers are dense, of one of "
                                  f"{', '.join(str(dtype) for dtype in _NAMES)}")

    def begin(self, client: Client, info: _psd.JoinInfo) -> None:
        """After the join: takes the daemon's buffers, or sends those of rank 0 to a daemon without any."""
        if not self._served:
            if names := ", ".join(persistent_buffers(self._module)):
                _log.info("buffers stay each trainer's own: %s; the daemon does not have them, and with buffers='rank0' it serves those of "
                          "rank 0", names)
            return
        self._client, self._rank = client, info.rank
        if info.initialized_model or not self._take():
            if self._rank == 0:
                self.push()
            else:
                self._missing = True

    def restored(self) -> None:
        """After the module and the daemon were restored from a checkpoint."""
        self._missing = False
        self.flush()

    def stepped(self) -> None:
        """After a step: rank 0 sends its buffers if the last time was long ago."""
        if self._client is None:
            return
        if self._rank == 0:
            if time.monotonic() >= self._due:
                self.flush()
        elif self._missing:
            self._missing = False
            if not self._take():
                _log.warning("the daemon has no buffers, which the trainer with rank 0 sends: those of the module stay as they are")

    def flush(self) -> None:
        """Sends the buffers of rank 0, if this trainer has not left. Logs why the daemon refuses them."""
        if self._client is None or self._rank != 0 or not self._client._trains:
            return
        try:
            self.push()
        except (InvalidArgument, Overloaded) as error:
            self._due = time.monotonic() + _PACE
            _log.warning("the daemon keeps the previous buffers: %s", error)

    def push(self) -> None:
        client = self._serving("push_buffers()")
        if self._rank != 0:
            raise InvalidArgument(f"push_buffers() is for the trainer with rank 0; this is rank {self._rank}")
        buffers = persistent_buffers(self._module)
        for name, buffer in buffers.items():
            self._check(name, buffer)
        if buffers:
            client._client.set_buffers(_buffers.encode({name: _entry_of(name, buffer) for name, buffer in buffers.items()}))
        self._due = time.monotonic() + _PACE

    def pull(self) -> None:
        self._serving("pull_buffers()")
        self._take()

    def _serving(self, call: str) -> Client:
        if self._client is None:
            raise InvalidArgument(f"{call} needs buffers='rank0'")
        return self._client

    @torch.no_grad()
    def _take(self) -> bool:
        """Copies the daemon's buffers into the module. Returns whether the daemon has any. If one does not fit, none is
        changed."""
        assert self._client is not None
        entries = _buffers.decode(self._client._client.buffers())
        own = persistent_buffers(self._module)
        if not entries or not own:
            return not own
        for name in {**own, **entries}:
            mine = f"{own[name].dtype} of shape {tuple(own[name].shape)}" if name in own else "not there"
            theirs = f"{_DTYPES.get(entries[name].dtype, entries[name].dtype)} of shape {entries[name].shape}" if name in entries else "not there"
            if mine != theirs:
                raise ModelMismatch(f"buffer '{name}' is {mine} in the module, and {theirs} among the daemon's")
        changed = False
        for name, buffer in own.items():
            values = _tensor_of(entries[name]).to(buffer.device)
            changed = changed or not torch.equal(values, buffer)
            buffer.copy_(values)
        if changed:
            _log.info("the daemon's buffers, those of rank 0, replace those of the module")
        return True


class BufferCalls:
    """The calls of a trainer whose daemon may serve its module's buffers."""

    _buffers: ModuleBuffers

    def push_buffers(self) -> None:
        """With `buffers="rank0"`, as rank 0: sends the module's buffers now, for example before a checkpoint of the
        daemon. Otherwise steps send them, at most every ten seconds, and close() and state_dict()."""
        self._buffers.push()

    def pull_buffers(self) -> None:
        """With `buffers="rank0"`: replaces the module's buffers by the daemon's, for an evaluation as rank 0 would make it."""
        self._buffers.pull()
