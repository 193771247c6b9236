"""DiLoCo for PyTorch: psd.torch.DiLoCo beside a local optimizer."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import _arguments, _psd, _served
from ._embedding import tables_of
from ._loads import Loads
from ._module_buffers import BufferCalls, ModuleBuffers
from ._pace import Pace
from ._parameters import check_dtypes, check_kinds, check_module, check_shapes, layout_of, parameters_of
from ._training import Training
from .client import Client, ClientOptions, Model, log_replaced
from .errors import InvalidArgument, NonFinite

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log = logging.getLogger("psd")


_SAMPLES_MAX = 1_000_000  # of a step, so that those of a period fit the wire
_TOKENS_MAX = 1 << 40


class _ClosedState(NamedTuple):
    """The state of a learner after close(), when its exchanges are closed, too."""

    progress: int
    rounds: int
    late: int
    last_push: _psd.PushInfo | None


def _check_kinds(model: Any, inner_optimizer: Any, lr_lambda: Any) -> None:
    for what, value, wanted in (("model", model, torch.nn.Module), ("inner_optimizer", inner_optimizer, torch.optim.Optimizer)):
        if not isinstance(value, wanted):
            raise InvalidArgument(f"{what} is a {type(value).__name__}; expected a torch.{wanted.__module__.split('.')[1]}."
                                  f"{wanted.__name__}")
    if lr_lambda is not None and not callable(lr_lambda):
        raise InvalidArgument(f"lr_lambda is a {type(lr_lambda).__name__}; expected a function of the run's progress")


def _hooked_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer whose step() calls hooks: `optimizer`, or the one that it wraps, as accelerate's and Lightning's
    wrappers do."""
    outermost, seen = optimizer, [optimizer]
    while "_optimizer_step_pre_hooks" not in vars(optimizer) or not getattr(type(optimizer).step, "hooked", False):
        inner = {id(value): value for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer)}
        if len(inner) != 1 or (optimizer := next(iter(inner.values()))) in seen:
            raise InvalidArgument(f"inner_optimizer is a {type(outermost).__name__}, whose step() calls no hooks of torch.optim.Optimizer: pass "
                                  "the optimizer that it wraps")
        seen.append(optimizer)
    if any(isinstance(getattr(hook, "__self__", None), DiLoCo) for hook in optimizer._optimizer_step_pre_hooks.values()):
        raise InvalidArgument("inner_optimizer is another psd.torch.DiLoCo's, which is not closed: make an optimizer for each")
    return optimizer


class DiLoCo(Training, BufferCalls):
    """Training with little communication under the daemon's policy `diloco`: `inner_optimizer`, any of torch.optim,
    takes `sync_every` steps; then the difference that they made is pushed to the daemon, which makes one outer step
    from the differences of all learners of the round, and the learner continues from the result. Under `async_diloco`
    the daemon makes an outer step from each learner's difference, and learners do not wait for each other. The training
    loop does not change: the optimizer's step() does all this.

    The parameters of `model` that require a gradient at construction are the daemon's model, by name, shape and
    dtype: float32, bfloat16 or float16; the learner keeps float32 values beside them. The first learner's values
    initialize the model; later learners adopt the model's values, which the logger "psd" reports. An exchange pushes
    the parameters as they are, even if code outside the optimizer has changed them: clipping of weights and
    constraints count as trained, which the logger reports once. Values of load_state_dict() stay until the next step
    or sync(), for evaluation: it restores the learner's, logs a warning, and a step without a closure does nothing
    else. Steps and exchanges are rejected after a parameter was frozen, unfrozen, replaced, or has got another type
    or shape. Buffers, unless `buffers` is "rank0", and the inner optimizer's state stay local to each learner, across
    rounds. The daemon's `policy.inner` is for psd-trainer and has no effect here.
    """

    def __init__(self, model: torch.nn.Module, inner_optimizer: torch.optim.Optimizer, server: str | None = None, *,
                 sync_every: int | None = None, rank: int | None = None, world_size: int | None = None,
                 name: str | None = None, samples: int = 1, tokens: int | None = None,
                 lr_lambda: Callable[[int], float] | None = None, buffers: str = "local", **options: Unpack[ClientOptions]):
        """`server`, `rank`, `world_size`: see psd.Client; from torchrun's environment if None. `sync_every`: steps
        between two exchanges; it must be equal to the daemon's `policy.period`, which is the default. `samples`:
        examples (or tokens) per step, by which rounds weigh the learner. `tokens`: tokens per step, only for the
        reported rates: samples per second, and tokens per second if this is given. `lr_lambda`: each step's learning
        rate is the inner optimizer's initial rate times lr_lambda(progress). Unlike LambdaLR this is the progress of
        the run, so that a learner that joins late or rejoins has the same rate as the others; a rate that is set
        otherwise is then rejected. `inner_optimizer`: a wrapper, such as accelerate's, stands for the optimizer that it
        wraps. Each of its steps counts once, however step() is overridden; a step that a GradScaler skips does not
        count. `buffers`: as for psd.torch.Optimizer; rank 0 sends them with its exchanges. `options`: of psd.Client. If
        construction fails, model and optimizer are unchanged."""
        _check_kinds(model, inner_optimizer, lr_lambda)
        self.inner_optimizer = inner_optimizer = _hooked_optimizer(inner_optimizer)
        self._module = model
        self._buffers = ModuleBuffers(model, buffers)
        self._parameters, self._unserved = parameters_of(model)
        self._layout = layout_of(model)
        if tables := tables_of(model):
            raise InvalidArgument(f"the model has a psd.torch.Embedding, of table '{tables[0].name}', whose rows learners do not have: "
                                  "psd.torch.DiLoCo is for models without tables, psd.torch.Optimizer for those with")
        if not self._parameters:
            raise InvalidArgument("the model has no parameter that requires a gradient")
        check_kinds(self._parameters)
        _served.check_free(self._parameters)
        held = {id(each) for group in inner_optimizer.param_groups for each in group["params"]}
        if not any(id(parameter) in held for parameter in self._parameters.values()):
            raise InvalidArgument("the inner optimizer has none of the model's parameters: make it of model.parameters()")
        self.samples, self.tokens = samples, tokens
        if sync_every is not None:
            sync_every = _arguments.count("sync_every", sync_every)
        self._lr_lambda = lr_lambda
        self._rates: list[Any] = []  # the newest ones of lr_lambda
        self._exchanges: _psd.FragmentExchange
        self._closed_state: _ClosedState  # the state after the last exchange
        self._closed = False
        self._hooks: list[Any] = []
        self._call: types.FrameType | None = None  # of the optimizer's step(), while it runs
        self._versions: list[int] = []  # of the parameters, after the last step or exchange
        self._warned_of_changes = False
        self._discards = False  # the optimizer's step has no gradients, and does not count
        self.model = Model.of(name or type(model).__name__, self._parameters)
        self._parameters = {key: self._parameters[key] for key in self.model.shapes}
        # The parameters as of the last exchange, or during one the learner's, with which a daemon that lost its model is
        # initialized; and a spare array.
        self._values, self._spare = self.model.zeros(float32=True), self.model.zeros(float32=True)
        self._values_of = {key: torch.from_numpy(view) for key, view in self.model.views(self._values).items()}
        for key, parameter in self._parameters.items():
            self._values_of[key].copy_(parameter.detach())
        self.client = Client(server, **options)
        try:
            self._info = self.client.join(self.model, self._values, rank, world_size)
            self._check(sync_every)
            self._pace = Pace(self.client)
            self._begin()
            self._attach()
            self._buffers.begin(self.client, self._info)
        except BaseException:
            self._detach()
            self.client._abandon()
            raise

    @property
    def samples(self) -> int:
        """Examples (or tokens) of each step from now on."""
        return self._samples_of_step

    @samples.setter
    def samples(self, samples: int) -> None:
        self._samples_of_step = _arguments.integer("samples", samples, 0, _SAMPLES_MAX)

    @property
    def tokens(self) -> int | None:
        """Tokens of each step from now on, for the reported rate; None: no rate is reported."""
        return self._tokens_of_step

    @tokens.setter
    def tokens(self, tokens: int | None) -> None:
        self._tokens_of_step = None if tokens is None else _arguments.integer("tokens", tokens, 0, _TOKENS_MAX)

    @property
    def rank(self) -> int:
        return self._info.rank

    @property
    def late(self) -> int:
        """How often this learner's difference was discarded because its round had closed."""
        return self._state().late

    @property
    def last_push(self) -> _psd.PushInfo | None:
        """The outcome of the last exchange that was answered: a psd.PushInfo."""
        return self._state().last_push

    @property
    def sync_every(self) -> int:
        """Steps between two exchanges, from the daemon's configuration."""
        return self._info.local_period

    @property
    def rounds(self) -> int:
        """Rounds of the run, of all learners, before the round that this learner computes for. Under `async_diloco` one
        round is as many exchanges as the daemon's `policy.learners`, or its `optimizer.delay`, says."""
        return self._state().rounds

    @property
    def progress(self) -> int:
        """Inner steps of the run so far: those of its rounds, and this learner's since."""
        return self._state().progress

    def sync(self) -> None:
        """Exchanges now, unless there were no steps since the last exchange. Waits for the round."""
        if not self._closed:
            self._exchange(last=True)

    def close(self) -> None:
        """Exchanges the remaining steps, leaves and closes the connection. The model keeps its parameters, or those that
        load_state_dict() has loaded since the last step."""
        loaded: dict[str, torch.Tensor] = {}
        try:
            if not self._closed:
                loaded = self._undo_loads()
            self.sync()
        finally:
            self._detach()
            with torch.no_grad():
                for key, values in loaded.items():
                    self._parameters[key].copy_(values)
            try:
                self._buffers.flush()
            finally:
                super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._detach()
        super().__exit__(kind)

    def _detach(self) -> None:
        """Detaches from the optimizer and the parameters, so that they can be used with another DiLoCo."""
        if self._closed:
            return
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        _served.release(self, self._parameters)

    def _state(self) -> _psd.FragmentExchange | _ClosedState:
        return self._closed_state if self._closed else self._exchanges

    def __reduce__(self) -> Any:
        raise TypeError("a psd.torch.DiLoCo cannot be pickled: it is a connection; make one in each process")

    def _check(self, sync_every: int | None) -> None:
        info = self._info
        if not info.inner:
            self.client.leave()
            raise InvalidArgument(f"the daemon's policy is {info.policy}; psd.torch.DiLoCo needs diloco or async_diloco")
        if sync_every is not None and sync_every != info.local_period:
            self.client.leave()
            raise InvalidArgument(f"sync_every is {sync_every}, and the daemon's policy.period {info.local_period}, which all "
                                  "learners share: leave sync_every out, or change the period")

    def _begin(self) -> None:
        self._exchanges = self.client.fragments(self._values, self._spare)
        self._exchanges.begin()
        self._note()
        if not self._info.initialized_model and not all(
                torch.equal(self._values_of[key].to(parameter.dtype), parameter.detach().cpu()) for key, parameter in self._parameters.items()):
            log_replaced("the module", self._exchanges.versions)
        self._adopt()

    def _attach(self) -> None:
        _served.claim(self, self._parameters)
        self._hooks += [self.inner_optimizer.register_step_pre_hook(self._before_step),
                        self.inner_optimizer.register_step_post_hook(self._after_step)]
        self._loads = Loads(self)
        self._hooks.append(self._loads)

    @torch.no_grad()
    def _adopt(self) -> None:
        for key, parameter in self._parameters.items():
            parameter.copy_(self._values_of[key])
        self._note_versions()

    def _check_parameters(self) -> None:
        check_module(self)
        check_dtypes(self._parameters, self.model.dtypes)
        check_shapes(self._parameters, self.model.shapes)

    def _undo_loads(self) -> dict[str, torch.Tensor]:
        """Restores the learner's values. Returns those that were loaded."""
        self._check_parameters()
        return self._loads.undo(self._versions)

    def _note_versions(self) -> None:
        self._versions = [parameter._version for parameter in self._parameters.values()]

    def _warn_of_changes(self) -> None:
        if self._warned_of_changes:
            return
        for (key, parameter), version in zip(self._parameters.items(), self._versions):
            if parameter._version != version:
                self._warned_of_changes = True
                _log.warning("parameter '%s' was changed outside the inner optimizer's steps: this learner's exchanges include the change, as "
                             "intended for clipping of weights; load other values before the learner is made", key)
                return

    def _gather(self, key: str, values: torch.Tensor) -> torch.Tensor:
        """Brings the learner's values of a parameter up to date. Of 16 bits, adds what has changed since they were rounded
        for the parameter, so that the rounding counts as no training."""
        own = self._values_of[key]
        if values.dtype == torch.float32:
            return own.copy_(values)
        return own.add_(values.to(own.device, torch.float32) - own.to(values.dtype).float())

    def _exchange(self, last: bool) -> None:
        if loaded := self._undo_loads():
            self._loads.log(loaded, "this exchange restores the learner's values")
        with torch.no_grad():
            for key, parameter in self._parameters.items():
                if not torch.isfinite(self._gather(key, parameter.detach())).all():
                    raise NonFinite(f"after {self.progress} step(s) of the run the parameter '{key}' is NaN or infinite")
        self._exchanges.exchange(last)
        self._adopt()
        self._note()
        self._buffers.stepped()

    def _note(self) -> None:
        now = self._exchanges
        self._closed_state = _ClosedState(now.progress, now.rounds, now.late, now.last_push)

    def _set_rates(self) -> None:
        assert self._lr_lambda is not None
        groups = self.inner_optimizer.param_groups
        if self._rates and any(group["lr"] != rate for group, rate in zip(groups, self._rates)):
            raise InvalidArgument("the inner optimizer's lr was set while lr_lambda gives it: remove the scheduler or lr_lambda")
        factor = self._lr_lambda(self.progress)
        self._rates = [group.setdefault("initial_lr", group["lr"]) * factor for group in groups]
        for group, rate in zip(groups, self._rates):
            group["lr"] = rate

    def _is_nested(self) -> bool:
        """Whether the step() whose hooks are running was called by another step() of the same optimizer, as by
        super().step(): PyTorch runs the hooks of both."""
        frame = sys._getframe(2).f_back
        while frame is not None and frame is not self._call:
            frame = frame.f_back
        return frame is not None

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._call is not None and self._is_nested():
            return
        self._discards = False
        if loaded := self._undo_loads():
            self._loads.log(loaded, "this step restores the learner's values and uses no gradient that was computed before it")
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                parameter.grad = None
            self._discards = kwargs.get("closure", args[1] if len(args) > 1 else None) is None
        self._warn_of_changes()
        if self._lr_lambda is not None:
            self._set_rates()
        self._call = sys._getframe(1)

    def _after_step(self, optimizer: Any, *_: object) -> None:
        if self._call is not None and self._is_nested():
            return
        self._call = None
        if self._discards:
            self._note_versions()
            return
        found = getattr(optimizer, "found_inf", None)  # of a GradScaler, for an optimizer that skips the step itself
        if found is None or not bool(found):
            self._stepped()
        self._note_versions()

    def _stepped(self) -> None:
        if self._exchanges.stepped(self.samples):
            self._exchange(last=False)
        self._pace.stepped(self.samples, self.tokens, self.progress)
