"""What the trainers of each framework have in common: how they begin with a daemon, and how they end."""

from __future__ import annotations

from typing import TypeVar

from . import _psd
from .client import Client
from .errors import InvalidArgument

_Self = TypeVar("_Self", bound="Training")


class Training:
    """Something that trains through `client`. With `with`, it says goodbye at the end of the block; where that is left
    by an exception, the daemon counts the trainer as lost."""

    client: Client

    def close(self) -> None:
        """Says goodbye and closes the connection. The parameters keep their values."""
        try:
            self.client.leave()
        finally:
            self.client.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.client.close()

    def _check_policy(self, info: _psd.JoinInfo) -> None:
        if info.local_period != 0:
            self.client.leave()
            raise InvalidArgument(f"the daemon's policy is {info.policy}, under which trainers take steps by themselves; "
                                  f"{type(self).__module__}.{type(self).__name__} pushes every gradient: choose hogwild, "
                                  "locked, bounded_staleness or sync (psd.torch.DiLoCo is for diloco)")
