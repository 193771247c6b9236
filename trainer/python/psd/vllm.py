"""vLLM: the weight transfer backend "psd", with which inference workers fetch published versions by themselves."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import contextlib
import logging

__all__ = ["register"]

_log = logging.getLogger("psd")


def register() -> None:
    """Makes the backend known to vLLM: `WeightTransferConfig(backend="psd")`. vLLM calls it in each of its processes where
    psd-server is installed (the entry point of the group vllm.general_plugins). ImportError: this vLLM has no weight
    transfer. The interface is that of vLLM 0.33.0."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    with contextlib.suppress(ValueError):  # registered already
        WeightTransferEngineFactory.register_engine("psd", "psd._vllm_engine", "PsdWeightTransferEngine")


def plugin() -> None:
    """register() for the entry point: vLLM would end with an exception."""
    try:
        register()
    except ImportError as error:
        _log.warning("this vLLM gets no weight transfer backend psd: %s", error)
