"""A batch on its way to the device: copied on a side stream, then prepared there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from paceline.types import Batch, Data, World


def deliverer(data: Data, world: World) -> Callable[[Batch], Batch] | None:
    """What brings a batch of `data` to the model; None where it is there already.

    `data.prepare`, where defined, runs on the device, in training and in evaluation alike.
    """
    prepare: Callable[[Batch], Batch] | None = getattr(data, "prepare", None)
    if world.device.type != "cuda":
        return prepare
    copy = _SideStream(world.device)
    return copy if prepare is None else lambda batch: prepare(copy(batch))


class _SideStream:
    """The copy waits for nothing that computes: the host runs ahead of the device, so the copy of
    this batch overlaps the computation of the steps before it, if the batch is in pinned memory.
    Only the compute stream waits, for this copy alone."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def __call__(self, batch: Batch) -> Batch:
        compute = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = tree_map(self._copy, batch)
        compute.wait_stream(self._stream)
        # the allocator must not give this memory away while the compute stream still reads it
        tree_map(lambda t: t.record_stream(compute) if isinstance(t, Tensor) else None, moved)
        return moved

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(self._device, non_blocking=True)
