"""The GPUs that a job uses, asked of NVIDIA's driver through NVML. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

GIB = 1024**3
GPU_FIGURES = ("gpu_percent", "gpu_memory_gib", "power_w")


class Devices:
    """`number` devices of this node, those that CUDA shows to the ranks in its order. What can't be
    asked is in `reasons`, by figure; then `read` leaves it out."""

    def __init__(self, number: int) -> None:
        self.reasons: dict[str, str] = {}
        self._number = number
        self._opened = False
        self._handles: list[Any] = []
        self._nvml: Any = None

    def _open(self) -> None:
        """Not before the first look: a driver that nobody uses takes a second to wake."""
        self._opened = True
        try:
            import pynvml
        except ImportError as error:
            self._give_up(f"NVML can't be asked: {error}")
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._give_up(f"NVML can't be asked: {error}")
            return
        self._nvml = pynvml
        try:
            self._handles = self._find()
        except (pynvml.NVMLError, ValueError) as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        self.reasons = dict.fromkeys(GPU_FIGURES, why)

    def _find(self) -> list[Any]:
        nvml = self._nvml
        every = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in every]
        models = {str(nvml.nvmlDeviceGetName(handle)) for handle in every}
        text = os.environ.get("CUDA_VISIBLE_DEVICES")
        by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(models) == 1
        return [every[i] for i in in_use(uuids, text, by_bus)[: self._number]]

    def read(self) -> dict[str, float]:
        """gpu_percent: the mean over the devices; gpu_memory_gib: of the fullest; power_w: all."""
        if not self._opened:
            self._open()
        asked = {"gpu_percent": self._percent, "gpu_memory_gib": self._gib, "power_w": self._watts}
        found: dict[str, float] = {}
        for name, ask in asked.items():
            if name in self.reasons:
                continue
            try:
                found[name] = ask()
            except self._nvml.NVMLError as error:  # MIG slices, virtual and old GPUs can't say all
                self.reasons[name] = f"the driver doesn't say it: {error}"
        return found

    def _percent(self) -> float:
        rates = [self._nvml.nvmlDeviceGetUtilizationRates(handle) for handle in self._handles]
        return sum(float(rate.gpu) for rate in rates) / len(rates)

    def _gib(self) -> float:
        used = [self._nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in self._handles]
        return float(max(used)) / GIB

    def _watts(self) -> float:
        milliwatts = [self._nvml.nvmlDeviceGetPowerUsage(handle) for handle in self._handles]
        return float(sum(milliwatts)) / 1000

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()


class NoDevices:
    """Of a job on the CPU."""

    def __init__(self) -> None:
        self.reasons = dict.fromkeys(GPU_FIGURES, "trained on the CPU")

    def read(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return None


def in_use(uuids: Sequence[str], visible: str | None, by_bus: bool) -> list[int]:
    """NVML's numbers of the devices that CUDA shows, in its order. `uuids`: by NVML's number, which
    follows the bus. `visible`: CUDA_VISIBLE_DEVICES, numbers or beginnings of UUIDs; the list ends
    where one is no device, as it does for CUDA. `by_bus`: CUDA numbers the devices like NVML; else
    by their speed, and a number names another one. Raises ValueError where no device is left or
    their numbers aren't known."""
    words = [str(i) for i in range(len(uuids))] if visible is None else visible.split(",")
    found: list[int] = []
    for word in map(str.strip, words):
        named = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        if word.isdecimal() and int(word) < len(uuids):
            if not by_bus:
                raise ValueError(
                    "GPUs of several models, numbered by CUDA in its own order; set "
                    "CUDA_DEVICE_ORDER=PCI_BUS_ID"
                )
            named = [int(word)]
        if len(named) != 1:
            break
        found += named
    if not found:
        raise ValueError(f"CUDA_VISIBLE_DEVICES={visible} names no device that NVML knows")
    return found
