"""The weight transfer engine of vLLM's workers; see psd.vllm."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import dataclasses
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from . import _arguments
from .errors import InvalidArgument, NotReady
from .follower import Follower
from .shared_versions import SharedVersions


@dataclasses.dataclass
class PsdInitInfo(WeightTransferInitInfo):
    """Where a worker reads versions. `server`: addresses of the daemon, separated by commas, with `token_file` and the PEM
    files; all default to the environment of the worker (PSD_SERVER, …). Or `shared`: the file in shared memory in which
    `psd follow --shared` keeps them on this machine. `timeout`: seconds to wait for a version that does not exist yet."""

    server: str | None = None
    shared: str | None = None
    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for name in ("server", "shared", "token_file", "tls_ca", "tls_cert", "tls_key"):
            if getattr(self, name) is not None:
                _arguments.text(name, getattr(self, name))
        self.timeout = _arguments.number("timeout", self.timeout)
        if self.shared is not None and self.server is not None:
            raise InvalidArgument("`server` and `shared` exclude each other: a worker reads versions from one place")

    def connect(self) -> Follower | SharedVersions:
        if self.shared is not None:
            return SharedVersions(self.shared)
        return Follower(self.server, token_file=self.token_file, tls_ca=self.tls_ca, tls_cert=self.tls_cert, tls_key=self.tls_key)


@dataclasses.dataclass
class PsdUpdateInfo(WeightTransferUpdateInfo):
    """`version`: the number of the version to load, the same in all workers."""

    version: int

    def __post_init__(self) -> None:
        self.version = _arguments.integer("version", self.version, 1)


class PsdWeightTransferEngine(WeightTransferEngine[PsdInitInfo, PsdUpdateInfo]):
    """Loads a published version into a worker's model. Each worker reads it by itself: the program that announces its number
    is in no group with the workers, and none of them waits for another. Owned by the worker, which makes one call at a
    time."""

    init_info_cls = PsdInitInfo
    update_info_cls = PsdUpdateInfo
    supports_draft_weight_update = False  # a daemon has the versions of one model

    _source: Follower | SharedVersions | None = None
    _timeout = PsdInitInfo.timeout

    def init_transfer_engine(self, init_info: PsdInitInfo) -> None:
        """Connects. A later call connects to another place. Without a call the first update connects to PSD_SERVER."""
        source = init_info.connect()
        self.shutdown()
        self._source, self._timeout = source, init_info.timeout

    def start_weight_update(self) -> None:
        """Changes nothing: a version that cannot be read must leave the model as it is."""

    def receive_weights(self, update_info: PsdUpdateInfo) -> None:
        """Reads the version, verifies all of it, and only then loads its tensors: with their names and dtypes, in host
        memory, since each layer takes to the device what it needs."""
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        if self._source is None:
            self.init_transfer_engine(PsdInitInfo())
        tensors = self._tensors(update_info.version)
        initialize_layerwise_reload(self.model)
        try:
            with disable_mtp_completeness_check():
                self.model.load_weights(tensors.items())
        finally:  # after an error, too: layers would otherwise mix what is left of this version with the next one
            finalize_layerwise_reload(self.model, self.model_config)

    def _tensors(self, version: int) -> dict[str, Any]:
        source = self._source
        if isinstance(source, Follower):
            source.fetch(version, self._timeout)
        elif isinstance(source, SharedVersions) and source.wait(version, self._timeout) != version:
            raise NotReady(f"{source!r} has no version {version} any more: announce the newest", True)
        assert source is not None
        return source.torch_tensors()

    def finish_weight_update(self) -> None:
        """Changes nothing: the version is loaded."""

    def shutdown(self) -> None:
        """Disconnects; the model stays as it is."""
        if self._source is not None:
            self._source.close()
            self._source = None
