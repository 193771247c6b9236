"""What the connections of psd.Follower and psd.Publisher have in common."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import _arguments, _psd
from .client import _log_event
from .errors import InvalidArgument

_open: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes all connections at exit, while threads within their calls can still return to Python."""
    for each in list(_open):
        each.close()


def close_at_exit(connection: Any) -> None:
    _open.add(connection)


def arguments(servers: str | Sequence[str] | None, connect_timeout: float, retry_timeout: float,
              on_event: Callable[[str, str], None] | None, token: str | None,
              files: Sequence[str | os.PathLike[str] | None]) -> tuple[
                  list[str], float, float, Callable[..., Any], str | None, _psd.CredentialFiles]:
    """The arguments of a class of _psd that connects. `files`: token_file, tls_ca, tls_cert, tls_key."""
    if servers is None:
        servers = os.environ.get("PSD_SERVER", "")
        if not servers:
            raise InvalidArgument('no server is given: "tcp://host:port", or the environment\'s PSD_SERVER')
    number, text = _arguments.number, _arguments.text
    return (servers.split(",") if isinstance(servers, str) else _arguments.texts("a server", servers),
            number("connect_timeout", connect_timeout), number("retry_timeout", retry_timeout),
            _arguments.function("on_event", on_event or _log_event), token if token is None else text("token", token),
            _psd.CredentialFiles(*(path if path is None else os.fspath(path) for path in files)))
