"""Handwritten digits, 1797 images of 8x8: E. Alpaydin, C. Kaynak, UCI ML repository, CC BY 4.0.

"Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, licence https://creativecommons.org/licenses/by/4.0/.
`digits.npz` is its test set, unchanged but for the format: images uint8 from 0 to 16, labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paceline.data.rows import Rows
from paceline.data.stream import Loader, MapStream
from paceline.types import Context, at_least

FILE = Path(__file__).with_name("digits.npz")


@dataclass(frozen=True)
class Digits:
    """`flatten`: images as [B, 64] f32 for an mlp, else [B, 1, 8, 8]. Every tenth is held out."""

    global_batch_size: int
    flatten: bool
    loader: Loader

    def __post_init__(self) -> None:
        at_least(1, global_batch_size=self.global_batch_size)

    def open(self, context: Context) -> MapStream:
        train, held_out = load(self.flatten)
        return MapStream(
            train, held_out, self.global_batch_size, self.loader, context, unit="images"
        )


def load(flatten: bool) -> tuple[Rows, Rows]:
    """Train (1618) and held-out (179) rows: images f32 from 0 to 1, labels int64."""
    with np.load(FILE) as arrays:
        pixels, labels = arrays["images"], torch.from_numpy(arrays["labels"]).long()
    images = torch.from_numpy(pixels).float().div_(16).unsqueeze(1)  # [1797, 1, 8, 8]
    if flatten:
        images = images.flatten(1)
    held_out = torch.arange(len(labels)) % 10 == 9
    return Rows(images[~held_out], labels[~held_out]), Rows(images[held_out], labels[held_out])
