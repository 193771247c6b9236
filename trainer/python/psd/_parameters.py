"""What the parameters of a PyTorch model must be."""

from __future__ import annotations

import torch

from .errors import InvalidArgument


def check_dtypes(parameters: dict[str, torch.nn.Parameter]) -> None:
    for key, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise InvalidArgument(f"parameter '{key}' is {parameter.dtype}; the daemon's are torch.float32 (compute in fewer "
                                  "bits with torch.autocast)")
