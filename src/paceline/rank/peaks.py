"""The most memory that a rank held, without what paceline's own checks took for a moment."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

PROC = Path("/proc/self")
RESET_PEAK = "5"
"""Written to clear_refs: the resident peak starts again from what is resident now (proc(5))."""


@dataclass
class Peaks:
    """`pause` and `resume`: what is held in between counts for nothing."""

    device: torch.device
    paused: bool = False
    _host_gib: float = 0.0
    _device_gib: float = 0.0

    def most(self) -> tuple[float, float]:
        """Host and device GiB, so far."""
        if not self.paused:
            self._host_gib = max(self._host_gib, _host_gib())
            if self.device.type == "cuda":
                now_gib = torch.cuda.max_memory_allocated(self.device) / 2**30
                self._device_gib = max(self._device_gib, now_gib)
        return self._host_gib, self._device_gib

    def pause(self) -> None:
        self.most()
        self.paused = True

    def resume(self) -> None:
        """What was freed goes back to the system, which launch.host_memory=steady would keep."""
        if not self.paused:
            return
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        _give_back()
        self.paused = False


def _host_gib() -> float:
    try:
        lines = (PROC / "status").read_text().splitlines()
    except OSError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmHWM:"))


def _give_back() -> None:
    """Freed memory, and the peak of what is resident down to what is resident now."""
    with suppress(OSError, AttributeError):  # another C library gives it back by itself
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # not Linux, or not allowed: the peak stays where it was
        (PROC / "clear_refs").write_text(RESET_PEAK)
