"""What goes wrong, one class per code of the daemon's protocol."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else


class Error(RuntimeError):
    """A call that failed. The message is one line that names the place and what would be right."""

    code: str = "internal error"
    """The code in the protocol's terms, such as "rank taken"."""

    retryable: bool = False
    """Whether the same may succeed later without anybody changing anything."""

    def __init__(self, message: str, retryable: bool = False):
        super().__init__(message)
        self.retryable = retryable


class InvalidArgument(Error, ValueError):
    """An argument, or a request, that can never be right."""
    code = "invalid argument"


class InputOutputError(Error, OSError):
    """A file or a socket could not be read or written."""
    code = "input/output"


class Unavailable(Error, ConnectionError):
    """Nobody answers at the address, or the connection broke."""
    code = "unavailable"


class DeadlineExceeded(Error, TimeoutError):
    """A wait ran out."""
    code = "deadline exceeded"


class ProtocolMismatch(Error):
    """The daemon speaks another version of the protocol."""
    code = "protocol mismatch"


class ModelMismatch(Error):
    """The daemon has another model."""
    code = "model mismatch"


class WorldSizeMismatch(Error):
    """Trainers disagree on how many they are."""
    code = "world size mismatch"


class RankTaken(Error):
    """Another trainer has the rank."""
    code = "rank taken"


class BadSlice(Error):
    """A part of a gradient that does not fit the model."""
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
    """The daemon is about to end."""
    code = "shutting down"


class Internal(Error):
    """A defect of psd."""
    code = "internal error"


class SessionEnded(Error):
    """The daemon counts this trainer as gone, or another has its place."""
    code = "session ended"


class Interrupted(Error):
    """This client was told to stop waiting."""
    code = "interrupted"


class Unauthenticated(Error, PermissionError):
    """The daemon does not know who this is, or this end does not trust the daemon."""
    code = "unauthenticated"


class Forbidden(Error, PermissionError):
    """The role that this program has does not allow it."""
    code = "forbidden"


class Standby(Error, ConnectionError):
    """The daemon serves nobody: it follows another one."""
    code = "standby"


_BY_CODE = {kind.code: kind for kind in (
    InvalidArgument, InputOutputError, Unavailable, DeadlineExceeded, ProtocolMismatch, ModelMismatch, WorldSizeMismatch,
    RankTaken, BadSlice, NonFinite, NotReady, Overloaded, ShuttingDown, Internal, SessionEnded, Interrupted, Unauthenticated,
    Forbidden, Standby)}


def of(code: str, message: str, retryable: bool) -> Error:
    """The exception for an error of the client library."""
    return _BY_CODE.get(code, Internal)(message, retryable)
