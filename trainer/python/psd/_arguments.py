"""Checks of arguments. An error is one line that names the argument and what is expected."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from .errors import InvalidArgument

_Kind = TypeVar("_Kind")
_MOST = 2**64 - 1
COUNT_MOST = 2**32 - 1
_OF_OPTIMIZERS = frozenset(("lr", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "alpha", "centered",
                            "lr_decay", "maximize", "foreach", "fused", "capturable", "differentiable"))


def options(given: Iterable[str], known: Collection[str], of: str = "psd.Client") -> None:
    """Checks the names of options for the class `of`. For an argument of a local optimizer the error says where it is
    configured."""
    for name in given:
        if name in known:
            continue
        if name in _OF_OPTIMIZERS:
            raise InvalidArgument(f"{name} is no argument here: the optimizer runs at the daemon, whose configuration sets it, as in "
                                  "\"optimizer\": {\"type\": \"sgd\", \"lr\": 0.1}; psd.torch.Optimizer and psd.torch.DiLoCo take an "
                                  "optimizer of torch.optim, which is made with its own arguments")
        close = difflib.get_close_matches(name, known, 1)
        raise TypeError(f"{of} has no option {name!r}; " + (f"did you mean {close[0]!r}?" if close else
                                                                 f"there are {', '.join(sorted(known))}"))


def integer(name: str, value: Any, least: int = 0, most: int = _MOST) -> int:
    """An integer, from any library's integer type."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {shown(value)}; expected a whole number") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{name} is {number}; expected a whole number from {least} to {most}")
    return number


def count(name: str, value: Any) -> int:
    return integer(name, value, 0, COUNT_MOST)


def number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {shown(value)}; expected a number") from None


def text(name: str, value: Any) -> str:
    return instance(name, value, str, "text")


def texts(name: str, values: Iterable[Any]) -> list[str]:
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {shown(values)}; expected text")
    return [text(name, value) for value in values]


def shape(tensor: str, sizes: Any) -> tuple[int, ...]:
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable):
        raise TypeError(f"the shape of tensor '{tensor}' is {shown(sizes)}; expected whole numbers, as (3, 4)")
    return tuple(integer(f"a size of tensor '{tensor}'", size) for size in sizes)


def instance(name: str, value: Any, kind: type[_Kind], expected: str) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}; expected {expected}")
    return value


def function(name: str, value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise TypeError(f"{name} is {shown(value)}; expected a function")
    return value  # type: ignore[no-any-return]


def shown(value: Any) -> str:
    """A value for a message, shortened to its type if it is long."""
    text_of = repr(value)
    return text_of if len(text_of) <= 40 and "\n" not in text_of else f"a {type(value).__name__}"


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name} is {shown(value)}; expected a dictionary")
    return value


def dtypes(shapes: Mapping[str, object], given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The dtype of each tensor."""
    for name, dtype in mapping("dtypes", given).items():
        if name not in shapes:
            raise InvalidArgument(f"dtypes has '{text('the name of a tensor', name)}', which is no tensor of the model")
        if dtype not in known:
            raise InvalidArgument(f"the dtype of '{name}' is {dtype!r}; a tensor is {', '.join(known[:-1])} or {known[-1]}")
    return {name: given.get(name, known[0]) for name in shapes}
