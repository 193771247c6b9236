"""The modules of vLLM that psd.vllm uses, without vLLM and its dependencies.

The base class and the factory are those of vLLM if it is installed, or of the wheel or folder that PSD_VLLM names (`pip download
--no-deps vllm==0.33.0`); else classes with the same documented interface. Of other modules there are stubs: the loading of models
needs vLLM's compiled code.
"""

import abc
import contextlib
import dataclasses
import importlib
import importlib.util
import os
import pathlib
import sys
import types
import typing
import zipfile

FOLDER = "vllm/distributed/weight_transfer"
FILES = ("base.py", "factory.py", "clients.py")
reloads = []  # calls of the stubs of the loader: what, model


def _module(name, **contents):
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(contents)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def _real_folder(scratch):
    """The folder with vLLM's files, and where they are from; None: there are none."""
    given = os.environ.get("PSD_VLLM")
    if given and zipfile.is_zipfile(given):
        with zipfile.ZipFile(given) as wheel:
            for name in FILES:
                wheel.extract(f"{FOLDER}/{name}", scratch)
        return pathlib.Path(scratch) / FOLDER, pathlib.Path(given).name
    if given:
        return pathlib.Path(given) / FOLDER, given
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None or not (pathlib.Path(spec.origin).parents[1] / FOLDER / "base.py").exists():
        return None
    return pathlib.Path(spec.origin).parents[1] / FOLDER, "the installed vLLM"


def _stub_base():
    init, update = typing.TypeVar("init"), typing.TypeVar("update")

    class WeightTransferEngine(abc.ABC, typing.Generic[init, update]):
        supports_draft_weight_update = True

        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
            self.parallel_config, self.model_config = vllm_config.parallel_config, vllm_config.model_config

        def parse_init_info(self, given):
            return self._parsed(self.init_info_cls, given)

        def parse_update_info(self, given):
            return self._parsed(self.update_info_cls, given)

        @staticmethod
        def _parsed(kind, given):
            try:
                return kind(**given)
            except TypeError as error:
                raise ValueError(str(error)) from error

        def update_weights(self, given):
            import torch
            self.receive_weights(self.parse_update_info(given))
            torch.accelerator.synchronize()

        init_transfer_engine = start_weight_update = finish_weight_update = receive_weights = shutdown = abc.abstractmethod(
            lambda self, *_: None)

    infos = {name: dataclasses.dataclass(type(name, (abc.ABC,), {})) for name in ("WeightTransferInitInfo", "WeightTransferUpdateInfo")}
    return {"WeightTransferEngine": WeightTransferEngine, **infos}


def _stub_factory():
    class WeightTransferEngineFactory:
        engines = {}

        @classmethod
        def register_engine(cls, name, module, class_name=None):
            if name in cls.engines:
                raise ValueError(f"{name} is registered")
            cls.engines[name] = (module, class_name)

        @classmethod
        def create_engine(cls, config, *arguments):
            module, name = cls.engines[config.backend]
            return getattr(importlib.import_module(module), name)(config, *arguments)

    return {"WeightTransferEngineFactory": WeightTransferEngineFactory}


def install(scratch):
    """Makes `import vllm…` find these modules, and returns where the base class is from."""
    found = _real_folder(scratch)
    for name in ("vllm", "vllm.config", "vllm.distributed", "vllm.model_executor", "vllm.model_executor.model_loader"):
        _module(name)
    _module("vllm.config.parallel", ParallelConfig=object)
    _module("vllm.config.weight_transfer", WeightTransferConfig=object)
    _module("vllm.logger", init_logger=lambda _: types.SimpleNamespace(info=lambda *_: None))
    _module("vllm.model_executor.model_loader.mtp_validation", disable_mtp_completeness_check=contextlib.nullcontext)
    _module("vllm.model_executor.model_loader.reload",
            initialize_layerwise_reload=lambda model: reloads.append(("initialize", model)),
            finalize_layerwise_reload=lambda model, config: reloads.append(("finalize", model)))
    package = _module("vllm.distributed.weight_transfer")
    if found is None:
        _module("vllm.distributed.weight_transfer.base", **_stub_base())
        _module("vllm.distributed.weight_transfer.factory", **_stub_factory())
        return "a stub"
    package.__path__ = [str(found[0])]
    return found[1]
