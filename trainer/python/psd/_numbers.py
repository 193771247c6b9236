"""Hyperparameters (learning rate, momentum, …) of a psd.torch.Optimizer that is made of a module: it has none, since the
daemon's configuration sets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from .errors import InvalidArgument


def refuse(key: object) -> NoReturn:
    """Raises the error for a read or write of a hyperparameter."""
    raise InvalidArgument(f"a psd.torch.Optimizer of a module has no {key!r}, which the daemon's configuration sets: make it of an optimizer "
                          "of torch.optim, whose numbers and schedulers then apply, and remove `optimizer` from the configuration")


def _refuse_parameters() -> NoReturn:
    raise InvalidArgument("the parameters of a psd.torch.Optimizer are those of the daemon's model: make a psd.torch.Optimizer "
                          "of the whole model instead of changing param_groups")


class Group(dict[str, Any]):
    """An entry of param_groups: it has parameters, but no hyperparameters."""

    def __missing__(self, key: str) -> NoReturn:
        refuse(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key != "params":
            refuse(key)
        if key in self and [id(each) for each in value] != [id(each) for each in self[key]]:
            _refuse_parameters()
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]

    def setdefault(self, key: str, default: Any = None) -> Any:
        return self[key]

    def update(self, *others: Any, **more: Any) -> None:
        for key, value in dict(*others, **more).items():
            self[key] = value

    def __ior__(self, other: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Group:  # type: ignore[override, misc]
        self.update(other)
        return self

    def __or__(self, other: Any) -> NoReturn:
        refuse(next(iter(other), "number"))

    def __delitem__(self, key: str) -> NoReturn:
        self.pop(key)

    def pop(self, key: str, *default: Any) -> NoReturn:
        if key == "params":
            _refuse_parameters()
        refuse(key)

    def popitem(self) -> NoReturn:
        _refuse_parameters()

    def clear(self) -> NoReturn:
        _refuse_parameters()


class Defaults(dict[str, Any]):
    """An optimizer's defaults: there are none; each read or write raises an error that says where they are
    configured."""

    def __missing__(self, key: str) -> NoReturn:
        refuse(key)

    def __contains__(self, key: object) -> bool:
        refuse(key)

    def __setitem__(self, key: str, value: Any) -> None:
        refuse(key)

    def get(self, key: str, default: Any = None) -> Any:
        refuse(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        refuse(key)

    def update(self, *others: Any, **more: Any) -> None:
        for key in dict(*others, **more):
            refuse(key)

    def __ior__(self, other: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Defaults:  # type: ignore[override, misc]
        self.update(other)
        return self

    def __or__(self, other: Any) -> NoReturn:
        refuse(next(iter(other), "number"))

    def pop(self, key: str, *default: Any) -> NoReturn:
        refuse(key)
