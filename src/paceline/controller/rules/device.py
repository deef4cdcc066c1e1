"""What this host has: asked without taking any of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIRST_TF32_DEVICE = (8, 0)
"""The compute capability of Ampere."""


def on_cuda(run: Mapping[str, Any]) -> bool:
    if run["device"] == "cpu":
        return False
    import torch

    return torch.cuda.is_available()


def cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


def newest_cuda_device() -> tuple[int, int]:
    """The highest compute capability on this host, from the driver: asked by torch, it would take
    device memory for as long as the controller lives. Without an answer, nothing is refused."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return FIRST_TF32_DEVICE
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        newest: tuple[int, int] = max(map(pynvml.nvmlDeviceGetCudaComputeCapability, handles))
        return newest
    except (pynvml.NVMLError, ValueError):
        return FIRST_TF32_DEVICE
    finally:
        pynvml.nvmlShutdown()
