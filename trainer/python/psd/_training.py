"""The base class of the trainers for each framework: policy check, leave and close."""

from __future__ import annotations

from typing import TypeVar

from . import _psd
from .client import Client
from .errors import InvalidArgument

_Self = TypeVar("_Self", bound="Training")


class Training:
    """A trainer that uses `client`. In a `with` statement it leaves at the end of the block; if the block ends with an
    exception, the daemon counts the trainer as lost."""

    client: Client

    def close(self) -> None:
        """Leaves and closes the connection. The parameters keep their values."""
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
            raise InvalidArgument(f"the daemon's policy is {info.policy}, under which trainers take local steps; "
                                  f"{type(self).__module__}.{type(self).__name__} pushes every gradient: choose hogwild, "
                                  "locked, bounded_staleness or sync (psd.torch.DiLoCo is for diloco)")
