"""The client for numpy arrays, and whatever gives its memory by DLPack or the buffer protocol."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import atexit
import dataclasses
import inspect
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, cast, overload

import numpy as np

from . import _arguments, _cuda, _psd
from .errors import Error, InvalidArgument

_log = logging.getLogger("psd")
_ALIGNED = 16  # elements
_WINDOW_MAX = 1024  # slices
_CONNECTIONS_MAX = 64
_CHUNK_BYTES = (4096, 64 << 20)
_Flat = TypeVar("_Flat")
_open: weakref.WeakSet[_psd.Client] = weakref.WeakSet()  # each lives as long as the calls that it has under way


@atexit.register
def _close_all() -> None:
    """While Python can still be called by a client's thread."""
    for client in list(_open):
        client.close()


@dataclasses.dataclass(frozen=True)
class Table:
    """An embedding table: rows of `dim` float32 values by 64-bit ids. See docs/tables.md."""
    name: str
    dim: int
    initial: str = "uniform"
    """What a row begins with: "zero", "uniform" (−scale … scale) or "normal" (of deviation scale)."""
    scale: float = 0.01
    seed: int = 1


class Model:
    """Names and shapes of what a daemon holds. Its tensors lie in one flat float32 array, at `places`."""

    def __init__(self, name: str, tensors: Mapping[str, Sequence[int]] | None = None, tables: Iterable[Table] = ()):
        self.name = _arguments.text("the name of a model", name)
        self.shapes = {_arguments.text("the name of a tensor", tensor): _arguments.shape(tensor, shape)
                       for tensor, shape in (tensors or {}).items()}
        self.tables = tuple(_arguments.instance("a table", table, Table, "a psd.Table") for table in tables)
        self._spec = _psd.ModelSpec()
        self._spec.name = name
        for tensor, shape in self.shapes.items():
            self._spec.add_tensor(tensor, list(shape))
        for table in self.tables:
            self._spec.add_table(_arguments.text("the name of a table", table.name), _arguments.count("dim", table.dim),
                                 _arguments.text("initial", table.initial), _arguments.number("scale", table.scale),
                                 _arguments.integer("seed", table.seed))
        self._spec.check()
        self.size, places = self._spec.layout()
        """Elements of a flat array, padding included."""
        self.places = {tensor: slice(begin, begin + count) for tensor, (begin, count) in zip(self.shapes, places)}

    @classmethod
    def of(cls, name: str, arrays: Mapping[str, Any], tables: Iterable[Table] = ()) -> Model:
        """The model of these arrays."""
        return cls(name, {tensor: np.shape(array) for tensor, array in arrays.items()}, tables)

    @property
    def signature(self) -> int:
        """Two models with the same signature may share a daemon."""
        return self._spec.signature()

    def zeros(self) -> np.ndarray:
        """A flat array for values or gradients, which begins at a multiple of 64 bytes."""
        array = np.zeros(self.size + _ALIGNED, np.float32)
        begin = -(array.ctypes.data // array.itemsize) % _ALIGNED
        return array[begin:begin + self.size]

    def views(self, flat: _Flat) -> dict[str, _Flat]:
        """The tensors in a flat array of any library, without a copy."""
        array = cast(Any, flat)
        return {tensor: array[place].reshape(self.shapes[tensor]) for tensor, place in self.places.items()}

    @overload
    def flatten(self, arrays: Mapping[str, Any], into: None = None) -> np.ndarray: ...

    @overload
    def flatten(self, arrays: Mapping[str, Any], into: _Flat) -> _Flat: ...

    def flatten(self, arrays: Mapping[str, Any], into: Any = None) -> Any:
        """Copies the tensors into a flat array; None: one of zeros(). Each has its shape in the model."""
        for tensor, shape in self.shapes.items():
            if tensor not in arrays:
                raise InvalidArgument(f"there is no array of tensor '{tensor}'")
            if (given := tuple(np.shape(arrays[tensor]))) != shape:
                raise InvalidArgument(f"the array of tensor '{tensor}' has shape {given}; expected {shape}")
        flat = self.zeros() if into is None else into
        for tensor, view in self.views(flat).items():
            view[...] = arrays[tensor]
        return flat

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.shapes!r}, {self.tables!r})"


def _from_environment(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise InvalidArgument(f"the environment's {name} is {value!r}, not a number") from None


def _tell(what: str, line: str) -> None:
    _log.log(logging.INFO if what == "back" else logging.WARNING, "%s", line)


def tell_replaced(what: str, versions: Sequence[int]) -> None:
    """Logs that the daemon's model, of these versions, has replaced the values of a script."""
    newest = max(versions, default=0)
    _log.log(logging.WARNING if newest else logging.INFO, "the daemon has a model already, at version %d: its values replace those of %s",
             newest, what)


class ClientOptions(TypedDict, total=False):
    """The options that psd.torch and psd.jax pass on to psd.Client, which documents them."""
    connect_timeout: float
    retry_timeout: float
    transport: str
    connections: int
    window: int | None
    chunk: int | None
    codec: str
    pull_codec: str
    go_on_without_rows: bool
    on_event: Callable[[str, str], None] | None
    token: str | None
    token_file: str | os.PathLike[str] | None
    tls_ca: str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    device: object


class Client:
    """A trainer's connection to a daemon, or an observer's. Calls may come from any thread, one at a time; a signal whose
    handler raises, Ctrl-C for one, ends the wait for a call, which goes on and keeps its arrays until it has ended. With
    `with`, it leaves at the end of the block."""

    def __new__(cls, *_: object, **options: object) -> Client:
        if cls.__init__ is Client.__init__:
            _arguments.options(options, _OPTIONS)
        return super().__new__(cls)

    def __init__(self, servers: str | Sequence[str] | None = None, *, connect_timeout: float = 30.0,
                 retry_timeout: float = 60.0, transport: str = "auto", connections: int = 1, window: int | None = None,
                 chunk: int | None = None, codec: str = "", pull_codec: str = "", go_on_without_rows: bool = False,
                 on_event: Callable[[str, str], None] | None = None, token: str | None = None,
                 token_file: str | os.PathLike[str] | None = None, tls_ca: str | os.PathLike[str] | None = None,
                 tls_cert: str | os.PathLike[str] | None = None, tls_key: str | os.PathLike[str] | None = None,
                 device: object = None):
        """Connects to the first of `servers` that answers: "tcp://host:port", "tls://host:port" or "unix:///path"; None: the
        environment's PSD_SERVER. `token`, or the file that holds it, tells the daemon who this is; None: PSD_TOKEN_FILE,
        PSD_TOKEN. `tls_ca` says whose daemons to trust at tls://, `tls_cert` and `tls_key` who this is, all files in PEM
        format; None: PSD_TLS_CA, PSD_TLS_CERT, PSD_TLS_KEY. Times in seconds. `retry_timeout`: how long a client whose
        connection broke, a trainer's or an observer's, tries to come back. `window`: slices of `chunk` bytes (None: 1 MiB) in flight at a time on each of the
        `connections`; None: 4, and over a network as many as fill the way to the daemon, but 4 of rows of tables, of pushes with
        rows and of initial values. `on_event(what, line)` is told what keeps the client ("waits", "broke") and when it is "back";
        None: the logger "psd" is. `device`: where the arrays of values and gradients are that calls are given: "cuda:N", or a
        torch.device; None: in host memory. The call waits for what is under way on such an array in the current stream
        of its library; what it fills is there for all streams when the call has ended."""
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
                                   slices, slice_bytes, text("codec", codec), text("pull_codec", pull_codec), bool(go_on_without_rows),
                                   _arguments.function("on_event", on_event or _tell),
                                   token if token is None else text("token", token),
                                   _psd.CredentialFiles(*(path if path is None else os.fspath(path)
                                                          for path in (token_file, tls_ca, tls_cert, tls_key))), cuda_device)
        _open.add(self._client)
        self.model: Model | None = None
        self.info: _psd.JoinInfo | None = None
        self.versions: list[int] = []
        """That the newest pull read, of each shard: what gradients are said to be computed from."""
        self._trains = False
        self._servers = servers if isinstance(servers, str) else ",".join(servers)
        self._of_trainers = {"codec": codec not in ("", "none"), "pull_codec": pull_codec not in ("", "none"), "connections": connections != 1,
                             "go_on_without_rows": bool(go_on_without_rows)}

    def join(self, model: Model, initial: Any, rank: int | None = None, world_size: int | None = None) -> _psd.JoinInfo:
        """Joins as a trainer, and waits until the model has values: those of the flat array `initial` if this is the first.
        It is kept, like the array of each pull: the newest is what this trainer brings to a daemon that came back
        without a model. `rank` None: the environment's RANK (torchrun sets it), else the lowest that is free;
        `world_size` None: WORLD_SIZE, else as the daemon's configuration or the trainers that are in say, else, without a rank, 1."""
        rank = _from_environment("RANK") if rank is None else rank
        world_size = _from_environment("WORLD_SIZE") if world_size is None else world_size
        spec = _arguments.instance("model", model, Model, "a psd.Model")._spec
        self.info = self._client.join(spec, initial, _arguments.count("rank", rank or 0), rank is None,
                                      _arguments.count("world_size", world_size or 0))
        self.model, self._trains = model, True
        return self.info

    def observe(self, model: Model) -> _psd.JoinInfo:
        """Reads without being a trainer, in float32; fails (NotReady) while the model has no values. When the connection breaks, a
        pull tries for `retry_timeout` to come back. Refused (InvalidArgument) where the client was made with what only trainers use:
        `codec`, `pull_codec`, `connections` and `go_on_without_rows`."""
        for option, given in self._of_trainers.items():
            if given:
                raise InvalidArgument(f"observe() of a client with {option}=…, which only a trainer uses: leave it out, observers pull "
                                      "float32 over one connection")
        self.info = self._client.observe(_arguments.instance("model", model, Model, "a psd.Model")._spec)
        self.model = model
        return self.info

    def pull(self, into: Any, rows: _psd.Rows | None = None) -> _psd.PullInfo:
        """Fills the flat array `into` with the parameters, and `rows` with the values of their rows."""
        self._check_model("a pull")
        info = self._client.pull(into, _rows(rows))
        self.versions = info.versions
        return info

    def begin_pull(self, into: Any, rows: _psd.Rows | None = None) -> _psd.PendingPull:
        """Begins a pull. What its answer says in `versions` is the basis of gradients that are computed from it."""
        self._check_model("a pull")
        return self._client.begin_pull(into, _rows(rows))

    def push(self, gradient: Any, samples: int = 1, *, basis: Sequence[int] | None = None,
             rows: _psd.Rows | None = None, local_steps: int = 0) -> _psd.PushInfo:
        """Pushes one gradient, of `samples` examples, and waits for what becomes of it. `basis`: the versions it was computed
        from; None: those of the newest pull(). `local_steps`: under a policy of local steps, how many the difference is of."""
        self._check_model("a push")
        return self._client.push(gradient, *self._push_terms(samples, basis, rows, local_steps))

    def begin_push(self, gradient: Any, samples: int = 1, *, basis: Sequence[int] | None = None,
                   rows: _psd.Rows | None = None, local_steps: int = 0) -> _psd.PendingPush:
        """Begins a push; the arrays stay as they are until its answer is there."""
        self._check_model("a push")
        return self._client.begin_push(gradient, *self._push_terms(samples, basis, rows, local_steps))

    def partial_push(self, gradient: Any, samples: int = 1, *, basis: Sequence[int] | None = None,
                     rows: _psd.Rows | None = None) -> _psd.PartialPush:
        """Begins a push of a gradient that is still being computed: ready(begin, count) says which elements are final, each
        once, padding included; finish() ends it."""
        self._check_model("a push")
        return self._client.partial_push(gradient, _arguments.count("samples", samples), self._basis(basis), _rows(rows))

    def round_due(self) -> _psd.PendingRoundDue:
        """Under a policy whose rounds close after a grace (info.ends_early): is done when the round that began with the newest
        pull is about to close without this trainer ("closing"), or has closed ("closed"). An error: ask again."""
        if not self.versions:
            raise InvalidArgument("round_due() before the first pull(): the round is the one that begins with it")
        return self._client.round_due(self.versions[0])

    def fragments(self, parameters: np.ndarray, spare: np.ndarray) -> _psd.FragmentExchange:
        """Under a policy that exchanges a model in fragments, or with a delay (info.streams), after join(): this trainer's
        exchanges. begin() brings `parameters`, the array that was joined with; stepped(samples) tells of a step, and whether
        exchange(last) has to be called, which reads and writes `parameters`. `spare` is another such array, of model.zeros()."""
        self._check_model("fragments()")
        return self._client.fragments(parameters, spare)

    def rows(self) -> _psd.Rows:
        """An empty batch of rows of the model's tables: make([(table, ids), …]) says which, before a pull."""
        self._check_model("rows()")
        return self._client.rows()

    def take_samples(self, count: int, samples: int, epochs: int, wait: bool = True, *, ahead: int = 0,
                     first_epoch: int = 0) -> _psd.DealtSamples:
        """Samples that the daemon deals for the next push, or the one after `ahead` others: at most `count` of the `samples`
        of each of so many epochs. The same samples when asked again. `wait`: where others have what is left, until it comes
        back or is done; only when no push is under way. `first_epoch`: where a daemon without a plan begins."""
        self._check_model("take_samples()")
        integer = _arguments.integer
        return self._client.take_samples(self.step + 1 + integer("ahead", ahead), _arguments.count("count", count),
                                         integer("samples", samples), integer("epochs", epochs),
                                         integer("first_epoch", first_epoch), bool(wait))

    def report(self, values: dict[str, float], step: int | None = None) -> None:
        """Tells the daemon, for people, how training goes: at most 16 values, as {"loss": 0.3}. `step`: after which step; None: after
        the newest push. The daemon's page draws the first report of each step. Does not wait; what comes while a report is on its
        way goes after it, as one report with the newest value of each name."""
        self._check_model("report()")
        after = self.step if step is None else _arguments.integer("step", step)
        self._client.report(after, {_arguments.text("the name of a value", name): _arguments.number(f"'{name}'", value)
                                    for name, value in values.items()})

    def ping(self, calls: int = 1, outstanding: int = 1) -> list[float]:
        """Seconds of so many empty calls."""
        return self._client.ping(_arguments.integer("calls", calls), _arguments.count("outstanding", outstanding))

    @property
    def step(self) -> int:
        """Of the newest push that was begun, also where a signal has ended the call."""
        return self._client.step

    @property
    def bytes_pulled(self) -> int:
        """Of parameters, as they travelled."""
        return self._client.bytes_pulled

    @property
    def bytes_pushed(self) -> int:
        """Of gradients, as they travelled."""
        return self._client.bytes_pushed

    def leave(self) -> None:
        """Says goodbye: the daemon counts this trainer as done."""
        if self._trains:
            self._trains = False
            self._client.leave()

    def _abandon(self) -> None:
        """Leaves if possible, and closes: for a constructor that fails and already has an error to raise."""
        try:
            self.leave()
        except Error as error:
            _log.debug("no goodbye: %s", error)
        finally:
            self.close()

    def interrupt(self) -> None:
        """Ends every call under way (Interrupted) and says goodbye in their midst. From any thread."""
        self._client.interrupt()

    def close(self) -> None:
        """Drops the connection; without leave(), the daemon counts a trainer as lost."""
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

    def _check_model(self, what: str) -> None:
        if self.info is None:
            raise InvalidArgument(f"{what} before join(): a trainer joins with its model first, client.join(model, values), and who "
                                  "only reads calls observe(model)")


_OPTIONS = tuple(inspect.signature(Client.__init__).parameters)[1:]


def _rows(rows: Any) -> _psd.Rows | None:
    return rows if rows is None else _arguments.instance("rows", rows, _psd.Rows, "what client.rows() gave")
