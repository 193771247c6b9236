"""The client for arrays of numpy and of any library with DLPack or the buffer protocol."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import atexit
import dataclasses
import functools
import inspect
import json
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar, cast, overload

import numpy as np

from . import _arguments, _buffers, _cuda, _dtypes, _psd
from .errors import Error, InvalidArgument, NotReady, RankTaken

_log = logging.getLogger("psd")
_ALIGNED = 64  # bytes
_WINDOW_MAX = 1024  # slices
_CONNECTIONS_MAX = 64
_CHUNK_BYTES = (4096, 64 << 20)
_PAUSE = (0.02, 0.5)  # seconds, first and longest, between looks for a model
_Flat = TypeVar("_Flat")
_open: weakref.WeakSet[_psd.Client] = weakref.WeakSet()  # a call in progress keeps its client alive
_joined: weakref.WeakSet[Client] = weakref.WeakSet()  # those of this process that have a rank
os.register_at_fork(after_in_child=_joined.clear)


@atexit.register
def _close_all() -> None:
    """Closes all clients at exit, while threads within their calls can still return to Python."""
    for client in list(_open):
        client.close()


@dataclasses.dataclass(frozen=True)
class Table:
    """An embedding table: rows of `dim` float32 values by 64-bit ids. See docs/guides/tables.md."""
    name: str
    dim: int
    initial: str = "uniform"
    """The initial values of a row: "zero", "uniform" (−scale … scale) or "normal" (of standard deviation scale)."""
    scale: float = 0.01
    seed: int = 1


class Model:
    """The names, shapes and dtypes of a daemon's model. Its tensors are slices of one flat float32 array, given by
    `places`. If some have 16 bits, flat arrays are "native": of uint8, with the bytes of each tensor in its own dtype. The
    client also takes a float32 array of `size` elements in place of a native one, and converts."""

    def __init__(self, name: str, tensors: Mapping[str, Sequence[int]] | None = None, tables: Iterable[Table] = (),
                 dtypes: Mapping[str, str] | None = None):
        """`dtypes`: "f32", "bf16" or "f16" by name; "f32" for others. Tensors are ordered by dtype."""
        self.name = _arguments.text("the name of a model", name)
        shapes = {_arguments.text("the name of a tensor", tensor): _arguments.shape(tensor, shape)
                  for tensor, shape in (tensors or {}).items()}
        given = _arguments.dtypes(shapes, dtypes or {}, _dtypes.ORDER)
        self.shapes = _dtypes.ordered(shapes, given)
        self.dtypes = {tensor: given[tensor] for tensor in self.shapes}
        self.tables = tuple(_arguments.instance("a table", table, Table, "a psd.Table") for table in tables)
        self._spec = _psd.ModelSpec()
        self._spec.name = name
        for tensor, shape in self.shapes.items():
            self._spec.add_tensor(tensor, list(shape), self.dtypes[tensor])
        for table in self.tables:
            self._spec.add_table(_arguments.text("the name of a table", table.name), _arguments.count("dim", table.dim),
                                 _arguments.text("initial", table.initial), _arguments.number("scale", table.scale),
                                 _arguments.integer("seed", table.seed))
        self._spec.check()
        self.size, places = self._spec.layout()
        """The number of elements of a flat array, including padding."""
        self.places = {tensor: slice(begin, begin + count) for tensor, (begin, count) in zip(self.shapes, places)}
        self.bytes, begins = self._spec.native_layout()
        """The size of a native array in bytes, including padding."""
        counts = [place.stop - place.start for place in self.places.values()]
        self.native_places = {tensor: slice(begin, begin + count * _dtypes.BYTES[self.dtypes[tensor]])
                              for tensor, begin, count in zip(self.shapes, begins, counts)}
        """The bytes of each tensor in a native array."""

    @classmethod
    def of(cls, name: str, arrays: Mapping[str, Any], tables: Iterable[Table] = ()) -> Model:
        """The model with the names and shapes of these arrays, and their dtype where that is bfloat16 or float16."""
        return cls(name, {tensor: np.shape(array) for tensor, array in arrays.items()}, tables,
                   {tensor: _dtypes.dtype_of(array) for tensor, array in arrays.items()})

    @classmethod
    def _of_spec(cls, spec: _psd.ModelSpec) -> Model:
        return cls(spec.name, spec.shapes, (Table(*table) for table in spec.tables), dict(zip(spec.shapes, spec.dtypes)))

    @property
    def signature(self) -> int:
        """A hash of the model; trainers of one daemon must have models with the same signature."""
        return self._spec.signature()

    def _flat(self, array: Any) -> Any:
        return _dtypes.as_float32(array, 0 if self.is_float32 else self.size)

    @property
    def is_float32(self) -> bool:
        """Whether all tensors are float32."""
        return all(dtype == "f32" for dtype in self.dtypes.values())

    def zeros(self, *, float32: bool = False) -> np.ndarray:
        """A flat array of zeros for values or gradients, aligned to 64 bytes: native if some tensor has 16 bits, unless
        `float32`."""
        count, kind = (self.size, np.float32) if float32 or self.is_float32 else (self.bytes, np.uint8)
        array = np.zeros(count + _ALIGNED, kind)
        begin = -(array.ctypes.data // array.itemsize) % (_ALIGNED // array.itemsize)
        return array[begin:begin + count]

    def views(self, flat: _Flat) -> dict[str, _Flat]:
        """Views of the tensors in a flat array of any library, without a copy. In a native array of numpy, those of
        bfloat16 have the dtype of the package ml_dtypes if it is installed, otherwise uint16."""
        array = cast(Any, flat)
        if not _dtypes.is_native(flat):
            return {tensor: array[place].reshape(self.shapes[tensor]) for tensor, place in self.places.items()}
        return {tensor: _dtypes.view(array[place], self.dtypes[tensor]).reshape(self.shapes[tensor])
                for tensor, place in self.native_places.items()}

    @overload
    def flatten(self, arrays: Mapping[str, Any], into: None = None) -> np.ndarray: ...

    @overload
    def flatten(self, arrays: Mapping[str, Any], into: _Flat) -> _Flat: ...

    def flatten(self, arrays: Mapping[str, Any], into: Any = None) -> Any:
        """Copies the tensors into a flat array, by default a new one from zeros(). Each must have its shape in the
        model."""
        for tensor, shape in self.shapes.items():
            if tensor not in arrays:
                raise InvalidArgument(f"there is no array of tensor '{tensor}'")
            if (given := tuple(np.shape(arrays[tensor]))) != shape:
                raise InvalidArgument(f"the array of tensor '{tensor}' has shape {given}; expected {shape}")
        flat = self.zeros() if into is None else into
        for tensor, view in self.views(flat).items():
            _dtypes.assign(view, arrays[tensor])
        return flat

    def __repr__(self) -> str:
        dtypes = "" if self.is_float32 else f", {self.dtypes!r}"
        return f"Model({self.name!r}, {self.shapes!r}, {self.tables!r}{dtypes})"


def _environment_int(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise InvalidArgument(f"the environment's {name} is {value!r}, not a number") from None


def _log_event(what: str, line: str) -> None:
    _log.log(logging.INFO if what == "back" else logging.WARNING, "%s", line)


def log_replaced(what: str, versions: Sequence[int]) -> None:
    """Logs that the daemon's model, of these versions, has replaced the values of the program."""
    newest = max(versions, default=0)
    _log.log(logging.WARNING if newest else logging.INFO, "the daemon has a model already, at version %d: its values replace those of %s",
             newest, what)


class State(NamedTuple):
    """The values of a model and the state of the daemon's optimizer."""

    versions: list[int]
    """The version of each shard."""
    steps: list[int]
    """For each shard, the updates that the optimizer has made."""
    values: np.ndarray
    """A flat array."""
    state: dict[str, np.ndarray]
    """Flat arrays by name, such as "exp_avg"."""


class ClientOptions(TypedDict, total=False):
    """The options that psd.torch and psd.jax pass to psd.Client, which documents them."""
    connect_timeout: float
    retry_timeout: float
    transport: str
    connections: int
    window: int | None
    chunk: int | None
    codec: str
    pull_codec: str
    accept_lost_rows: bool
    on_event: Callable[[str, str], None] | None
    token: str | None
    token_file: str | os.PathLike[str] | None
    tls_ca: str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    device: object


class Client:
    """The connection of a trainer, or of a reader, to a daemon. Calls can be made from any thread, several at a time. A
    signal whose handler raises, such as Ctrl-C, ends the wait for a call; a call that was sent continues and keeps its
    arrays alive until it has ended. In a `with` statement the client leaves at the end of the block."""

    def __new__(cls, *_: object, **options: object) -> Client:
        if cls.__init__ is Client.__init__:
            _arguments.options(options, _OPTIONS)
        return super().__new__(cls)

    def __init__(self, servers: str | Sequence[str] | None = None, *, connect_timeout: float = 30.0,
                 retry_timeout: float = 60.0, transport: str = "auto", connections: int = 1, window: int | None = None,
                 chunk: int | None = None, codec: str = "", pull_codec: str = "", accept_lost_rows: bool = False,
                 on_event: Callable[[str, str], None] | None = None, token: str | None = None,
                 token_file: str | os.PathLike[str] | None = None, tls_ca: str | os.PathLike[str] | None = None,
                 tls_cert: str | os.PathLike[str] | None = None, tls_key: str | os.PathLike[str] | None = None,
                 device: object = None, optimizer: str = ""):
        """Connects to the first of `servers` that answers: "tcp://host:port", "tls://host:port" or "unix:///path";
        None: the environment variable PSD_SERVER. `token`, or `token_file` with it, authenticates the client; None:
        PSD_TOKEN_FILE, PSD_TOKEN. `tls_ca`: the authorities trusted at tls://; `tls_cert` and `tls_key`: the client's
        certificate; all files are in PEM format; None: PSD_TLS_CA, PSD_TLS_CERT, PSD_TLS_KEY. Times are in seconds.
        `retry_timeout`: how long a client whose connection broke tries to reconnect. `window`: slices of `chunk` bytes
        (None: 1 MiB, or up to 4 MiB through shared memory under hogwild without a log or a standby) in flight on each of
        the `connections`; None: 4, of large ones in shared memory 2, or over a network as many as fill the path to the
        daemon, except for rows of tables, pushes with rows and initial values, where it is 4. `on_event(what, line)` is called when a fault delays the client
        (what: "waits", "broke") and when it has recovered ("back"); None: the logger "psd" gets the line. `device`: the
        device of the arrays of values and gradients that are passed to calls: "cuda:N" or a torch.device; None: host
        memory. A call waits for pending work on such an array in the current stream of its library; an array that a call
        fills is ready for all streams when the call returns. `optimizer`: the trainer's, as JSON in the form of the
        configuration's key `optimizer`: join() creates the model with it if the configuration has none."""
        if servers is None:
            servers = os.environ.get("PSD_SERVER", "")
            if not servers:
                raise InvalidArgument('no server is given: "tcp://host:port", or the environment\'s PSD_SERVER')
        slices = 0 if window is None else _arguments.integer("window", window, 1, _WINDOW_MAX)
        slice_bytes = 0 if chunk is None else _arguments.integer("chunk", chunk, *_CHUNK_BYTES)
        cuda_device = -1
        if device is not None:
            cuda_device = _cuda.index_of(device)
            _cuda.load_runtime(cuda_device)
        number, text = _arguments.number, _arguments.text
        self._client = _psd.Client(servers.split(",") if isinstance(servers, str) else _arguments.texts("a server", servers),
                                   number("connect_timeout", connect_timeout), number("retry_timeout", retry_timeout),
                                   text("transport", transport), _arguments.integer("connections", connections, 1, _CONNECTIONS_MAX),
                                   slices, slice_bytes, text("codec", codec), text("pull_codec", pull_codec), bool(accept_lost_rows),
                                   text("optimizer", optimizer),
                                   _arguments.function("on_event", on_event or _log_event),
                                   token if token is None else text("token", token),
                                   _psd.CredentialFiles(*(path if path is None else os.fspath(path)
                                                          for path in (token_file, tls_ca, tls_cert, tls_key))), cuda_device)
        _open.add(self._client)
        self.model: Model | None = None
        self.info: _psd.JoinInfo | None = None
        self.versions: list[int] = []
        """The version of each shard in the last pull: by default the basis of gradients."""
        self._trains = False
        self._open_reader = functools.partial(Client, servers, connect_timeout=connect_timeout, retry_timeout=retry_timeout, transport=transport,
                                              window=window, chunk=chunk, on_event=on_event, token=token, token_file=token_file,
                                              tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
        self._servers = servers if isinstance(servers, str) else ",".join(servers)
        self._trainer_options = {"codec": codec not in ("", "none"), "connections": connections != 1, "accept_lost_rows": bool(accept_lost_rows),
                                 "optimizer": bool(optimizer)}

    def join(self, model: Model, initial: Any, rank: int | None = None, world_size: int | None = None) -> _psd.JoinInfo:
        """Joins as a trainer, and waits until the model has values: those of the flat array `initial` if this is the
        first trainer. The client keeps a reference to it, and to the array of each pull: the last one initializes a
        daemon that has lost its model. `rank` None: the environment variable RANK (set by torchrun), or else the lowest
        free rank. `world_size` None: WORLD_SIZE, or else that of the daemon's configuration or of the joined trainers,
        or else, without a rank, 1."""
        rank = _environment_int("RANK") if rank is None else rank
        world_size = _environment_int("WORLD_SIZE") if world_size is None else world_size
        spec = _arguments.instance("model", model, Model, "a psd.Model")._spec
        try:
            self.info = self._client.join(spec, model._flat(initial), _arguments.count("rank", rank or 0), rank is None,
                                          _arguments.count("world_size", world_size or 0))
        except RankTaken as error:
            for other in list(_joined):
                if other._servers == self._servers and other.info is not None and rank in (None, other.info.rank):
                    raise RankTaken(f"{error}; this process itself has rank {other.info.rank}: close() the optimizer, learner or client "
                                    "that was made before", error.retryable) from None
            raise
        self.model, self._trains = model, True
        _joined.add(self)
        return self.info

    def observe(self, model: Model | None = None, *, wait: float | None = None) -> _psd.JoinInfo:
        """Reads without joining as a trainer, in `pull_codec` or else float32. `model` None: the daemon's, which `model` of
        the client then is. `wait`: for how many seconds to wait while the model has no values; None: NotReady at once. When
        the connection breaks, a pull tries for `retry_timeout` to reconnect. InvalidArgument if the client was made with
        options that only trainers use: `codec`, `connections`, `accept_lost_rows` and `optimizer`."""
        for option, given in self._trainer_options.items():
            if given:
                raise InvalidArgument(f"observe() of a client with {option}=…, which only a trainer uses: omit it, since readers push "
                                      "nothing and pull over one connection")
        spec = _psd.ModelSpec() if model is None else _arguments.instance("model", model, Model, "a psd.Model")._spec
        until = time.monotonic() + (0 if wait is None else _arguments.number("wait", wait))
        pause = _PAUSE[0]
        while True:
            try:
                self.info = self._client.observe(spec)
                break
            except NotReady:
                left = until - time.monotonic()
                if not left > 0:
                    raise
            time.sleep(min(pause, left))
            pause = min(2 * pause, _PAUSE[1])
        self.model = Model._of_spec(self.info.model) if model is None else model
        return self.info

    def pull(self, into: Any, rows: _psd.Rows | None = None) -> _psd.PullInfo:
        """Fills the flat array `into` with the parameters, and `rows` with the values of their rows."""
        self._check_model("a pull")
        info = self._client.pull(self._flat(into), _rows(rows))
        self.versions = info.versions
        return info

    def begin_pull(self, into: Any, rows: _psd.Rows | None = None) -> _psd.PendingPull:
        """Starts a pull. The `versions` in its result are the basis of gradients that are computed from the pulled
        values."""
        self._check_model("a pull")
        return self._client.begin_pull(self._flat(into), _rows(rows))

    def push(self, gradient: Any, samples: int = 1, *, basis: Sequence[int] | None = None,
             rows: _psd.Rows | None = None, local_steps: int = 0, hyperparameters: _psd.Hyperparameters | None = None) -> _psd.PushInfo:
        """Pushes one gradient, of `samples` examples, and waits for the outcome. `basis`: the versions that it was
        computed from; None: those of the last pull(). `local_steps`: under a policy with local steps, the number of
        steps in the difference. `hyperparameters`: of the optimizer's step, where info.takes_hyperparameters; None: the
        daemon's."""
        self._check_model("a push")
        return self._client.push(self._flat(gradient), *self._push_terms(samples, basis, rows, local_steps), hyperparameters)

    def begin_push(self, gradient: Any, samples: int = 1, *, basis: Sequence[int] | None = None,
                   rows: _psd.Rows | None = None, local_steps: int = 0,
                   hyperparameters: _psd.Hyperparameters | None = None) -> _psd.PendingPush:
        """Starts a push; the caller must not change the arrays until it has been answered."""
        self._check_model("a push")
        return self._client.begin_push(self._flat(gradient), *self._push_terms(samples, basis, rows, local_steps), hyperparameters)

    def partial_push(self, gradient: Any, samples: int = 1, *, basis: Sequence[int] | None = None,
                     rows: _psd.Rows | None = None, hyperparameters: _psd.Hyperparameters | None = None) -> _psd.PartialPush:
        """Starts a push of a gradient that is still being computed: ready(begin, count) marks elements as final, each
        once, including padding; finish() ends the push."""
        self._check_model("a push")
        return self._client.partial_push(self._flat(gradient), _arguments.count("samples", samples), self._basis(basis), _rows(rows), hyperparameters)

    def round_due(self) -> _psd.PendingRoundDue:
        """Under a policy that ends local steps early (info.ends_early): a call that is done when the round that started
        with the last pull is about to close without this trainer ("closing"), when it has closed ("closed"), or,
        without rounds, when the trainer has taken its number of steps ("steps_done"). After an error call this again."""
        if not self.versions:
            raise InvalidArgument("round_due() before the first pull(): the round is the one that starts with it")
        return self._client.round_due(self.versions[0])

    def fragments(self, parameters: np.ndarray, spare: np.ndarray) -> _psd.FragmentExchange:
        """The exchanges of this trainer under a policy of local steps, after join(). begin() fills `parameters`, the array
        that was passed to join(). stepped(samples) counts a step and returns whether exchange(last) is due, which
        reads and writes `parameters`. `spare` is another such array, from model.zeros()."""
        self._check_model("fragments()")
        return self._client.fragments(parameters, spare)

    def fetch_state(self) -> State:
        """The values of the model and the state of the daemon's optimizer, each shard's of one moment, unless the policy is
        hogwild and others push meanwhile. Without rows of tables."""
        self._check_model("fetch_state()")
        versions, steps, arrays = self._client.fetch_state()
        return State(versions, steps, arrays.pop(""), arrays)

    def restore_state(self, values: np.ndarray, state: Mapping[str, np.ndarray], steps: Sequence[int]) -> None:
        """Replaces the values of the model and the state of the daemon's optimizer, as fetch_state() returns them, before
        any trainer has pushed, and waits until that is durable. `steps`: for each shard (info.shard_ranges), the updates
        that the optimizer has made. The new values come with the next pull; gradients that were computed before are
        dropped ("stale"). InvalidArgument if the run has begun or the model has tables."""
        self._check_model("restore_state()")
        self._client.restore_state([_arguments.integer("a number of steps", number) for number in steps], {"": values, **_arguments.mapping("state", state)})

    def rows(self) -> _psd.Rows:
        """An empty batch of rows of the model's tables; make([(table, ids), …]) sets its rows before a pull."""
        self._check_model("rows()")
        return self._client.rows()

    def take_samples(self, count: int, samples: int, epochs: int, wait: bool = True, *, ahead: int = 0,
                     first_epoch: int = 0) -> _psd.AssignedSamples:
        """The samples that the daemon assigns to the next push, or to the one after `ahead` others: at most `count` of
        an epoch's `samples`, for `epochs` epochs. A repeated call returns the same samples. `wait`: if other trainers
        have the remaining samples, waits until these become available again or are done; only while no push is in
        progress. `first_epoch`: the epoch at which a daemon without saved assignments starts."""
        self._check_model("take_samples()")
        integer = _arguments.integer
        return self._client.take_samples(self.step + 1 + integer("ahead", ahead), _arguments.count("count", count),
                                         integer("samples", samples), integer("epochs", epochs),
                                         integer("first_epoch", first_epoch), bool(wait))

    def report(self, values: dict[str, float], step: int | None = None) -> None:
        """Reports training metrics to the daemon, for display only: at most 16 values, such as {"loss": 0.3}. `step`:
        the step of the values; None: that of the last push. The daemon's page plots the first report of each step. Does
        not wait; values reported while another report is in flight are sent afterwards, as one report with the latest
        value of each name."""
        self._check_model("report()")
        after = self.step if step is None else _arguments.integer("step", step)
        self._client.report(after, {_arguments.text("the name of a value", name): _arguments.number(f"'{name}'", value)
                                    for name, value in _arguments.mapping("values", values).items()})

    def set_buffers(self, buffers: Mapping[str, Any]) -> None:
        """As rank 0, after join(): replaces the buffers that the daemon serves beside the model, arrays that no one trains,
        such as running statistics. Other dtypes than numpy's are those of ml_dtypes. They are as durable as a push."""
        self._client.set_buffers(_buffers.encode({_arguments.text("the name of a buffer", name): _buffers.of_array(name, value)
                                                  for name, value in _arguments.mapping("buffers", buffers).items()}))

    def buffers(self) -> dict[str, np.ndarray]:
        """After join() or observe(): copies of the buffers that the daemon serves; empty if rank 0 has sent none. Those of
        dtype bfloat16 or float8 are arrays of ml_dtypes, or without that package of unsigned integers with the same bits."""
        return {name: _buffers.to_array(name, entry) for name, entry in _buffers.decode(self._client.buffers()).items()}

    def ping(self, calls: int = 1, outstanding: int = 1) -> list[float]:
        """The duration in seconds of each of `calls` empty calls, `outstanding` at a time."""
        return self._client.ping(_arguments.integer("calls", calls), _arguments.count("outstanding", outstanding))

    def status(self) -> dict[str, Any]:
        """The daemon's status, with the fields of `psd status --json`. If several daemons serve the model: {"daemons":
        [...]}, the status of each in partition order. Needs role reader; like set() and checkpoint(), it can be called at
        any time, also before join() and observe(), and fails with Forbidden if the client's role does not permit it."""
        statuses = [json.loads(text) for text in self._client.status()]
        return cast("dict[str, Any]", statuses[0]) if len(statuses) == 1 else {"daemons": statuses}

    def set(self, assignment: str) -> str:
        """Changes one key of the daemon's configuration while it runs, as `psd set` does: set("optimizer.lr=0.05"). It
        holds until the next reload or start. If several daemons serve the model, nothing changes unless all accept the
        change. Returns the change: "optimizer.lr: 0.1 -> 0.05". Needs role admin."""
        return "\n".join(dict.fromkeys(self._client.set(_arguments.text("assignment", assignment))))

    def checkpoint(self) -> str:
        """Makes the daemon take a checkpoint and waits until it is complete. Returns its path on the daemon's machine; if
        several daemons serve the model, that of each, one per line in partition order. Needs role admin."""
        return "\n".join(self._client.checkpoint())

    @property
    def step(self) -> int:
        """The step of the last push that was started, even if a signal has ended the call."""
        return self._client.step

    @property
    def bytes_pulled(self) -> int:
        """Bytes of parameters received, as encoded."""
        return self._client.bytes_pulled

    @property
    def bytes_pushed(self) -> int:
        """Bytes of gradients sent, as encoded."""
        return self._client.bytes_pushed

    def leave(self) -> None:
        """Leaves: the daemon counts this trainer as done."""
        if self._trains:
            self._trains = False
            _joined.discard(self)
            self._client.leave()

    def _abandon(self) -> None:
        """Leaves if possible, and closes; for a constructor that is about to raise another error."""
        try:
            self.leave()
        except Error as error:
            _log.debug("could not leave: %s", error)
        finally:
            self.close()

    def interrupt(self) -> None:
        """Ends every call in progress (Interrupted) and leaves without waiting for them. From any thread."""
        self._client.interrupt()

    def close(self) -> None:
        """Closes the connection; without leave(), the daemon counts the trainer as lost."""
        _joined.discard(self)
        self._client.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.leave()
        finally:
            self.close()

    def __repr__(self) -> str:
        as_what = "" if self.info is None else f", rank {self.info.rank}" if self._trains else ", observes"
        return f"<psd.Client of {self._servers}{as_what}>"

    def __reduce__(self) -> Any:
        raise TypeError("a psd.Client cannot be pickled: it is a connection; make one in each process")

    def _basis(self, basis: Sequence[int] | None) -> list[int]:
        return self.versions if basis is None else [_arguments.integer("a version of basis", version) for version in basis]

    def _push_terms(self, samples: int, basis: Sequence[int] | None, rows: _psd.Rows | None,
                    local_steps: int) -> tuple[int, list[int], _psd.Rows | None, int]:
        return (_arguments.count("samples", samples), self._basis(basis), _rows(rows),
                _arguments.count("local_steps", local_steps))

    def _flat(self, array: Any) -> Any:
        return array if self.model is None else self.model._flat(array)

    def _check_model(self, what: str) -> None:
        if self.info is None:
            raise InvalidArgument(f"{what} before join(): a trainer joins with its model first, client.join(model, values), and a "
                                  "reader calls observe(model)")


_OPTIONS = tuple(inspect.signature(Client.__init__).parameters)[1:]


def _rows(rows: Any) -> _psd.Rows | None:
    return rows if rows is None else _arguments.instance("rows", rows, _psd.Rows, "what client.rows() gave")
