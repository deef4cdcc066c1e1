"""Made-up data of any shape that can be learned, drawn once from the seed and kept in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paceline.data.rows import Rows
from paceline.data.stream import Loader, MapStream
from paceline.types import Context, at_least

SHAPES = {
    "vectors": (1, "[features]"),
    "images": (3, "[channels, height, width]"),
    "tokens": (1, "[length]"),
}
PIECE = 1024
UNITS = {"vectors": "samples", "images": "images", "tokens": "tokens"}


@dataclass(frozen=True)
class Synthetic:
    """`shape` is that of one sample. `classes` is the number of labels; of tokens, the vocabulary.

    Beside the `samples` to train on, a tenth as many are held out, at least a global batch.
    """

    global_batch_size: int
    samples: int
    kind: Literal["vectors", "images", "tokens"]
    shape: list[int]
    classes: int
    loader: Loader

    def __post_init__(self) -> None:
        at_least(1, global_batch_size=self.global_batch_size, samples=self.samples)
        at_least(2, classes=self.classes)
        dims, wanted = SHAPES[self.kind]
        if len(self.shape) != dims or min(self.shape) < 1:
            raise ValueError(f"shape={self.shape}: kind={self.kind} needs {wanted}, each 1 or more")

    def open(self, context: Context) -> MapStream:
        train, held_out = make(self, context.run.seed)
        return MapStream(
            train,
            held_out,
            self.global_batch_size,
            self.loader,
            context,
            unit=UNITS[self.kind],
            units_per_sample=self.shape[0] if self.kind == "tokens" else 1,
        )


def make(settings: Synthetic, seed: int) -> tuple[Rows, Rows]:
    """Train and held-out rows of one teacher; the first don't depend on how many the second are."""
    generator = torch.Generator().manual_seed(seed)
    draw = _tokens if settings.kind == "tokens" else _floats
    counts = (settings.samples, max(settings.samples // 10, settings.global_batch_size))
    train, held_out = draw(settings, counts, generator)
    return train, held_out


def _floats(s: Synthetic, counts: tuple[int, int], generator: torch.Generator) -> list[Rows]:
    """Standard normal [N, *shape] f32; the label is the largest output of one linear teacher."""
    features = torch.Size(s.shape).numel()
    teacher = torch.randn(features, s.classes, generator=generator, dtype=torch.float64)
    parts = []
    for count in counts:
        inputs = torch.randn(count, *s.shape, generator=generator)
        # float64: rounding, which depends on the threads, must not turn a label; in pieces: memory
        pieces = (inputs[i : i + PIECE].flatten(1) for i in range(0, count, PIECE))
        labels = torch.cat([(piece.double() @ teacher).argmax(1) for piece in pieces])
        parts.append(Rows(inputs, labels))
    return parts


def _tokens(s: Synthetic, counts: tuple[int, int], generator: torch.Generator) -> list[Rows]:
    """Uniform tokens [N, T] int64; each target is a fixed permutation of the vocabulary at it."""
    permutation = torch.randperm(s.classes, generator=generator)

    def part(count: int) -> Rows:
        inputs: Tensor = torch.randint(s.classes, (count, s.shape[0]), generator=generator)
        return Rows(inputs, permutation[inputs])

    return [part(count) for count in counts]
