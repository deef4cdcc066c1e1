"""What this host has: asked without taking any of it."""

from __future__ import annotations

from paceline.controller.rules.rule import Config

FIRST_TF32_DEVICE = (8, 0)
"""The compute capability of Ampere."""


def elsewhere(config: Config) -> bool:
    """Does the job run on nodes of a cluster, of which this host knows nothing?"""
    return bool(config["launch"]["scheduler"] == "slurm")


def on_cuda(config: Config) -> bool:
    if config["run"]["device"] == "cpu":
        return False
    if elsewhere(config):
        return bool(config["launch"]["slurm"]["gpus_per_node"])
    import torch

    return torch.cuda.is_available()


def cuda_devices(config: Config) -> int:
    """Of a node that the job runs on."""
    if elsewhere(config):
        return int(config["launch"]["slurm"]["gpus_per_node"] or 0)
    import torch

    return torch.cuda.device_count()


def newest_cuda_device(config: Config) -> tuple[int, int]:
    """The highest compute capability on this host, from the driver: asked by torch, it would take
    device memory for as long as the controller lives. Without an answer, nothing is refused."""
    if elsewhere(config):
        return FIRST_TF32_DEVICE
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
