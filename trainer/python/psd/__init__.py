"""Train with a psd parameter server: psd.Client for numpy arrays, psd.torch for PyTorch, psd.jax for JAX.
psd.Follower and psd.SharedVersions read the versions that it publishes; psd.Publisher publishes versions of weights that a
program trains itself."""

__distribution__ = "psd-server"  # identifies this package; see _install.py

from . import _install  # noqa: F401, before all else
from ._categories import hash_category
from ._psd import AssignedSamples, JoinInfo, PartialPush, PendingPull, PendingPush, PublishedVersion, PullInfo, PushInfo, Rows
from ._psd import version as __version__
from .client import Client, Model, Table
from .errors import (
    BadSlice,
    DeadlineExceeded,
    Error,
    Forbidden,
    InputOutputError,
    Internal,
    Interrupted,
    InvalidArgument,
    ModelMismatch,
    NonFinite,
    NotReady,
    Overloaded,
    ProtocolMismatch,
    RankTaken,
    SessionEnded,
    ShuttingDown,
    Stale,
    Standby,
    Unauthenticated,
    Unavailable,
    WorldSizeMismatch,
)
from .follower import Follower
from .publisher import Part, Publisher
from .shared_versions import SharedVersions

__all__ = [
    "BadSlice", "Client", "AssignedSamples", "DeadlineExceeded", "Error", "Follower", "Forbidden", "InputOutputError", "Internal", "Interrupted",
    "InvalidArgument", "JoinInfo", "Model", "ModelMismatch", "NonFinite", "NotReady", "Overloaded", "Part", "PartialPush",
    "PendingPull", "PendingPush", "ProtocolMismatch", "PublishedVersion", "Publisher", "PullInfo", "PushInfo", "RankTaken", "Rows", "SessionEnded",
    "SharedVersions", "ShuttingDown", "Stale", "Standby", "Table", "Unauthenticated", "Unavailable", "WorldSizeMismatch", "__version__", "hash_category",
]
