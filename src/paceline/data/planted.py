"""Made-up samples that are as slow to get as is asked for: a loader whose bottleneck is known."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.data.stream import Loader, MapStream
from paceline.types import Batch, Context, at_least


@dataclass(frozen=True)
class Planted:
    """Each sample is [length, features] f32 with a label [] int64.

    `item_wait_s`: an item waits so long, as for a disk or a network. `item_decode_kib`: an item
    decompresses so much, as a decoder does. `new_length_every`: one step in so many, by chance, has
    another length than most, up to `length`; 0: none. `without`: the bound whose
    plants are left out, which is what their removal gains; `input` or `recompile` here.
    """

    global_batch_size: int
    samples: int
    length: int
    features: int
    classes: int
    item_wait_s: float
    item_decode_kib: int
    new_length_every: int
    without: str
    loader: Loader

    def __post_init__(self) -> None:
        at_least(1, global_batch_size=self.global_batch_size, samples=self.samples)
        at_least(2, length=self.length, features=self.features, classes=self.classes)
        at_least(0, item_decode_kib=self.item_decode_kib, new_length_every=self.new_length_every)
        if self.item_wait_s < 0:
            raise ValueError(f"item_wait_s={self.item_wait_s}: give seconds, 0 or more")

    def open(self, context: Context) -> MapStream:
        train, held_out = (Items(self, context.run.seed + part) for part in range(2))
        changing = self.new_length_every and self.without != "recompile"
        return MapStream(
            train,
            held_out,
            self.global_batch_size,
            self.loader,
            context,
            unit="samples",
            prepare=Lengths(self) if changing else None,
        )


class Items:
    """A map-style dataset. The label is that of the largest of the first `classes` means."""

    def __init__(self, settings: Planted, seed: int) -> None:
        self.settings = settings
        generator = torch.Generator().manual_seed(seed)
        shape = (settings.samples, settings.length, settings.features)
        self.inputs = torch.randn(*shape, generator=generator)
        self.labels = self.inputs.mean(1)[:, : settings.classes].argmax(1)
        slow = settings.without != "input"
        self.wait_s = settings.item_wait_s if slow else 0.0
        size = settings.item_decode_kib * 1024 if slow else 0
        noise = np.random.default_rng(seed).integers(0, 16, size, dtype=np.uint8)
        self.packed = zlib.compress(noise.tobytes()) if size else b""

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.packed:
            zlib.decompress(self.packed)
        if self.wait_s:
            time.sleep(self.wait_s)
        return self.inputs[index], self.labels[index]


class Lengths:
    """`prepare` of a batch: [B, length, features] is cut to a length that its own values decide,
    the same each time: half of `length` as a rule, else any."""

    def __init__(self, settings: Planted) -> None:
        self.every, self.longest = settings.new_length_every, settings.length

    def __call__(self, batch: Batch) -> Batch:
        inputs, labels = batch
        drawn = zlib.crc32(inputs[0, 0].numpy(force=True).tobytes())
        usual = self.longest // 2
        length = 2 + drawn // self.every % (self.longest - 2) if drawn % self.every == 0 else usual
        return [inputs[:, :length].contiguous(), labels]
