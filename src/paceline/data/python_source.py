"""Real text on every machine: the bytes of the Python standard library's own source files."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.data.stream import Loader, MapStream
from paceline.types import Context, DataError, at_least

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


@dataclass(frozen=True)
class PythonSource:
    """Byte-level next-token prediction, vocabulary 256. The last 5 % of the text is held out."""

    global_batch_size: int
    sequence_length: int
    max_bytes: int
    loader: Loader

    def __post_init__(self) -> None:
        at_least(1, global_batch_size=self.global_batch_size, sequence_length=self.sequence_length)
        needed = 2 * self.sequence_length + 1
        if self.max_bytes < needed:
            raise ValueError(
                f"max_bytes={self.max_bytes}: two sequences of {self.sequence_length} need "
                f"{needed}; raise it or lower sequence_length"
            )

    def open(self, context: Context) -> MapStream:
        folder = Path(sysconfig.get_path("stdlib"))
        text = read_text(folder, self.max_bytes)
        samples = (len(text) - 1) // self.sequence_length
        if samples < 2:
            raise DataError(
                f"{folder} holds {len(text)} bytes of Python source, not enough for two sequences "
                f"of {self.sequence_length}: lower data.sequence_length, or choose another data"
            )
        windows = text.unfold(0, self.sequence_length + 1, self.sequence_length)
        held_out = max(1, samples * 5 // 100)
        return MapStream(
            Windows(windows[:-held_out]),
            Windows(windows[-held_out:]),
            self.global_batch_size,
            self.loader,
            context,
            unit="tokens",
            units_per_sample=self.sequence_length,
        )


class Windows:
    """Sample i is window i: inputs are its first T bytes, targets its last T."""

    def __init__(self, windows: Tensor) -> None:
        self.windows = windows  # [N, T + 1] uint8, a view: neighbours share one byte

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each [B, T] int64."""
        rows = self.windows.index_select(0, torch.from_numpy(indices))
        return rows[:, :-1].long(), rows[:, 1:].long()


def read_text(folder: Path, max_bytes: int) -> Tensor:
    """The first `max_bytes` bytes of the sorted source files under `folder`, [N] uint8."""
    text = bytearray()
    for file in source_files(folder):
        text += file.read_bytes()
        if len(text) >= max_bytes:
            break
    return torch.from_numpy(np.frombuffer(text, np.uint8)[:max_bytes].copy())


def source_files(folder: Path) -> Iterator[Path]:
    """Every .py file under `folder` in an order that depends on names only."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(files):
            file = Path(parent, name)
            if name.endswith(".py") and file.is_file():  # a link may lead nowhere
                yield file
