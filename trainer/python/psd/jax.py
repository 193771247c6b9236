"""JAX: parameters and gradients as pytrees of arrays."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

from typing import TYPE_CHECKING, Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from . import _dtypes, _psd
from ._training import Training
from .client import Client, ClientOptions, Model, log_replaced
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Trainer"]


class Trainer(Training):
    """A trainer whose parameters are a pytree. Its leaves, arrays of float32, bfloat16 or float16, are the tensors of
    the daemon's model, named by paths.

        with psd.jax.Trainer(parameters) as trainer:
            for batch in batches:
                parameters = trainer.pull()
                trainer.push(gradients_of(parameters, batch), samples=len(batch))

    The daemon's configuration determines the optimizer, its learning rate and the policy. Calls can be made from any
    thread, one at a time.
    """

    def __init__(self, parameters: Any, server: str | None = None, *, rank: int | None = None,
                 world_size: int | None = None, name: str = "jax", **options: Unpack[ClientOptions]):
        """Joins, and waits until the model has values: those of `parameters` if this is the first trainer. `server`,
        `rank`, `world_size`: see psd.Client; from the environment if None. `options`: of psd.Client. If the daemon has
        other values already, the logger "psd" reports it, and pull() returns those."""
        leaves, tree = jax.tree_util.tree_flatten_with_path(parameters)
        self._tree: Any = tree
        self._names = [jax.tree_util.keystr(path, simple=True, separator=".") or "value" for path, _ in leaves]
        self._check_type([leaf for _, leaf in leaves])
        if len(set(self._names)) != len(leaves):
            raise InvalidArgument(f"two leaves have the same name, of {', '.join(sorted(self._names))}")
        arrays = {name: np.asarray(leaf) for name, (_, leaf) in zip(self._names, leaves)}
        self.model = Model.of(name, arrays)
        self._values = self.model.flatten(arrays)
        self._gradients = self.model.zeros()
        self._gradient_of = self.model.views(self._gradients)
        self.last_push: _psd.PushInfo | None = None
        """The outcome of the last push."""
        self.client = Client(server, **options)
        try:
            info = self._info = self.client.join(self.model, self._values, rank, world_size)
            self._check_policy(info)
            if not info.initialized_model:
                versions = self.client.pull(self._gradients).versions
                if not np.array_equal(self._gradients, self._values):
                    log_replaced("the pytree", versions)
                self._gradients[:] = 0
        except BaseException:
            self.client._abandon()
            raise

    @property
    def rank(self) -> int:
        return self._info.rank

    def pull(self) -> Any:
        """The current parameters, as new arrays, which later pulls do not change."""
        self.client.pull(self._values)
        views = self.model.views(self._values)
        return jax.tree_util.tree_unflatten(self._tree, [jnp.array(views[name], copy=True) for name in self._names])

    def push(self, gradients: Any, samples: int = 1) -> _psd.PushInfo:
        """Pushes gradients, a pytree like the parameters, of `samples` examples and computed from the last pull().
        Waits for the outcome."""
        leaves, structure = jax.tree_util.tree_flatten(gradients)
        if structure != self._tree:
            raise InvalidArgument(f"the gradients are {structure}; the parameters are {self._tree}")
        self._check_type(leaves)
        for name, leaf in zip(self._names, leaves):
            if np.shape(leaf) != self.model.shapes[name]:
                raise InvalidArgument(f"the gradient of '{name}' has shape {np.shape(leaf)}; the parameter has "
                                      f"{self.model.shapes[name]}")
            if _dtypes.dtype_of(leaf) != self.model.dtypes[name]:
                raise InvalidArgument(f"the gradient of '{name}' is {leaf.dtype}; the parameter is {self.model.dtypes[name]}")
            self._gradient_of[name][...] = leaf
        self.last_push = self.client.push(self._gradients, samples)
        return self.last_push

    def _check_type(self, leaves: list[Any]) -> None:
        if not leaves:
            raise InvalidArgument("the parameters have no leaf: expected a pytree of arrays")
        for name, leaf in zip(self._names, leaves):
            if isinstance(leaf, jax.core.Tracer):
                raise InvalidArgument(f"leaf '{name}' has no value while a function is traced: compute what goes to the daemon "
                                      "outside jax.jit and jax.grad")
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            if kind not in (np.float32, jnp.bfloat16, np.float16):
                raise InvalidArgument(f"leaf '{name}' is {kind}; the daemon's parameters are arrays of float32, bfloat16 or float16")
