"""Where PowerSGD's memory of each parameter stands in a bucket's: pure arithmetic on shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Of one bucket: names and sizes of its parameters in order, and of the matrices among them
    that are compressed, in the order of torch's hook: by shape, then by place; (name, n, m, rank)
    for an [n, m] matrix with factors P [n, rank] and Q [m, rank]."""

    parameters: tuple[tuple[str, int], ...]
    matrices: tuple[tuple[str, int, int, int], ...]

    @classmethod
    def of(cls, bucket: Any, names: dict[int, str], settings: Any) -> Layout:
        parameters: list[tuple[str, int]] = []
        by_shape: dict[tuple[int, int], list[tuple[str, int, int, int]]] = {}
        for parameter in bucket.parameters():
            name, rows = names[id(parameter)], parameter.shape[0] if parameter.dim() else 1
            parameters.append((name, parameter.numel()))
            columns = parameter.numel() // max(rows, 1)
            rank = min(rows, columns, settings.matrix_approximation_rank)
            if (rows + columns) * rank * settings.min_compression_rate < rows * columns:
                by_shape.setdefault((rows, columns), []).append((name, rows, columns, rank))
        matrices = tuple(matrix for same in by_shape.values() for matrix in same)
        return cls(tuple(parameters), matrices)

    def sent(self) -> list[int]:
        """Numbers in the three all-reduces: what isn't compressed, all P, all Q."""
        whole = sum(n for _, n in self.parameters)
        compressed = sum(rows * columns for _, rows, columns, _ in self.matrices)
        factors = self.sizes()
        return [whole - compressed, *(sum(n for _, n in factors[what]) for what in "pq")]

    def sizes(self) -> dict[str, list[tuple[str, int]]]:
        """Of each part of the memory: whose it is and how many numbers, in order."""
        return {
            "error": list(self.parameters),
            "p": [(name, rows * rank) for name, rows, _, rank in self.matrices],
            "q": [(name, columns * rank) for name, _, columns, rank in self.matrices],
        }


def parted(layout: Layout, memory: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """A bucket's memory by parameter. `memory`: "error", "p" and "q", each flat, as far as kept."""
    found: dict[str, dict[str, Tensor]] = {}
    for what, flat in memory.items():
        owners = layout.sizes()[what]
        for (name, _), piece in zip(owners, flat.split([n for _, n in owners]), strict=True):
            found.setdefault(name, {})[what] = piece
    return found


def joined(layout: Layout, apart: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """The other way round; a part of which a parameter has nothing is left out."""
    memory = {}
    for what, owners in layout.sizes().items():
        pieces = [apart.get(name, {}).get(what) for name, _ in owners]
        known = [piece for piece in pieces if piece is not None]
        if known and len(known) == len(pieces):
            memory[what] = torch.cat(known)
    return memory
