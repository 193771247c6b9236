"""Exceptions, one class per error code of the daemon's protocol."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else


class Error(RuntimeError):
    """A call failed. The message is one line that names the place and what is expected."""

    code: str = "internal error"
    """The protocol's name of the code, such as "rank taken"."""

    retryable: bool = False
    """Whether the same call may succeed later without any other change."""

    def __init__(self, message: str, retryable: bool = False):
        super().__init__(message)
        self.retryable = retryable


class InvalidArgument(Error, ValueError):
    """An argument or request is invalid."""
    code = "invalid argument"


class InputOutputError(Error, OSError):
    """A file or a socket could not be read or written."""
    code = "input/output"


class Unavailable(Error, ConnectionError):
    """The daemon is unreachable, or the connection broke."""
    code = "unavailable"


class DeadlineExceeded(Error, TimeoutError):
    """A wait timed out."""
    code = "deadline exceeded"


class ProtocolMismatch(Error):
    """The daemon speaks another version of the protocol."""
    code = "protocol mismatch"


class ModelMismatch(Error):
    """The daemon has another model."""
    code = "model mismatch"


class WorldSizeMismatch(Error):
    """Trainers disagree on the world size."""
    code = "world size mismatch"


class RankTaken(Error):
    """Another trainer has the rank."""
    code = "rank taken"


class BadSlice(Error):
    """A slice of a gradient does not fit the model."""
    code = "bad slice"


class NonFinite(Error, ArithmeticError):
    """A gradient or value is NaN or infinite."""
    code = "non-finite values"


class NotReady(Error):
    """The model has no values yet."""
    code = "not ready"


class Overloaded(Error):
    """A limit of the daemon is reached."""
    code = "overloaded"


class ShuttingDown(Error):
    """The daemon is shutting down."""
    code = "shutting down"


class Internal(Error):
    """A bug in psd."""
    code = "internal error"


class SessionEnded(Error):
    """The daemon has ended this trainer's session, or another trainer has replaced it."""
    code = "session ended"


class Interrupted(Error):
    """The call was ended by interrupt() or close()."""
    code = "interrupted"


class Unauthenticated(Error, PermissionError):
    """The daemon could not authenticate this client, or this client does not trust the daemon."""
    code = "unauthenticated"


class Forbidden(Error, PermissionError):
    """This client's role does not permit the call."""
    code = "forbidden"


class Standby(Error, ConnectionError):
    """The daemon is a standby, which serves no clients."""
    code = "standby"


class Stale(Error):
    """What the daemon has is older than this client accepts."""
    code = "stale"


_BY_CODE = {kind.code: kind for kind in (
    InvalidArgument, InputOutputError, Unavailable, DeadlineExceeded, ProtocolMismatch, ModelMismatch, WorldSizeMismatch,
    RankTaken, BadSlice, NonFinite, NotReady, Overloaded, ShuttingDown, Internal, SessionEnded, Interrupted, Unauthenticated,
    Forbidden, Standby, Stale)}


def of(code: str, message: str, retryable: bool) -> Error:
    """The exception for an error of the client library."""
    return _BY_CODE.get(code, Internal)(message, retryable)
