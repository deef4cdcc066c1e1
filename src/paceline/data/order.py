"""The order of samples as arithmetic on (seed, position), and the hashes that it is made of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Indices = npt.NDArray[np.int64]


class SeededOrder:
    """The order of samples: position p of the endless stream -> sample index.

    Epoch e is a permutation drawn from (seed, e); step k takes positions [k B, (k+1) B), and rank
    r of W the r-th W-th of them, cut into `accumulation_steps` micro-batches.
    """

    def __init__(self, length: int, global_batch_size: int, seed: int) -> None:
        self.length, self.global_batch_size, self.seed = length, global_batch_size, seed
        self._epoch = -1
        self._permutation: Indices = np.empty(0, np.int64)

    def take(self, start: int, stop: int) -> Indices:
        """Sample indices at stream positions [start, stop)."""
        epoch, offset = divmod(start, self.length)
        if offset + stop - start <= self.length:  # nearly always: worth a microsecond a batch
            return self._permute(epoch)[offset : offset + stop - start]
        parts = []
        while start < stop:
            epoch, offset = divmod(start, self.length)
            parts.append(self._permute(epoch)[offset : offset + stop - start])
            start += len(parts[-1])
        return np.concatenate(parts)

    def _permute(self, epoch: int) -> Indices:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mix(self.seed, epoch))
            self._permutation = torch.randperm(self.length, generator=generator).numpy()
            self._epoch = epoch
        return self._permutation


def held_out_count(length: int, fraction: float) -> int:
    """`fraction` of `length` samples, rounded; above 0 at least one, and one stays to train on."""
    if fraction == 0 or length < 2:
        return 0
    return min(max(1, round(length * fraction)), length - 1)


def mix(*values: int) -> int:
    """One 63-bit seed from several integers (splitmix64, Steele et al. 2014)."""
    state = 0
    for value in values:
        state = (state + value + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state >> 1


def scramble(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser on each element: a sum of them tells sets apart."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
