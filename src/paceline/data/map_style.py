"""The user's own map-style dataset, by a nested `_target_`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, Subset, default_collate

from paceline.data.order import held_out_count
from paceline.data.stream import Loader, MapStream
from paceline.types import Batch, Context, DataError, at_least


@dataclass(frozen=True)
class MapStyle:
    """`held_out`: the share of samples kept from training, from the end of the dataset."""

    global_batch_size: int
    unit: str
    units_per_sample: int
    held_out: float
    dataset: dict[str, Any]
    loader: Loader

    def __post_init__(self) -> None:
        at_least(1, global_batch_size=self.global_batch_size)
        at_least(1, units_per_sample=self.units_per_sample)
        if not self.unit:
            raise ValueError("unit='': give the word that rates are counted in, as in samples")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out={self.held_out}: give a share of the samples, 0 to below 1")
        if "_target_" not in self.dataset:
            raise ValueError("dataset={}: give the import path of your class: dataset._target_=...")

    def open(self, context: Context) -> MapStream:
        dataset = context.build(self.dataset)
        _check_map_style(dataset)
        # torch's Subset defines __getitems__ for any dataset, random items or not
        whole = hasattr(dataset, "__getitems__") and not isinstance(dataset, Subset)
        part = WholePart if whole else Part
        length = len(dataset)
        train = length - held_out_count(length, self.held_out)
        return MapStream(
            part(dataset, 0, train),
            part(dataset, train, length),
            self.global_batch_size,
            self.loader,
            context,
            unit=self.unit,
            units_per_sample=self.units_per_sample,
            random_items=not whole,
        )


class Part:
    """Samples [start, stop) of a dataset, item by item."""

    def __init__(self, dataset: Any, start: int, stop: int) -> None:
        self.dataset, self.start, self.stop = dataset, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.start + index]


class WholePart(Part):
    """The same for a dataset that has `__getitems__(indices [B] int64)`.

    A list it returns is one of items, as torch has it, and is collated; all else is a whole batch.
    """

    def __getitems__(self, indices: npt.NDArray[np.int64]) -> Batch:
        batch = self.dataset.__getitems__(indices + self.start)
        return default_collate(batch) if isinstance(batch, list) else batch


def _check_map_style(dataset: Any) -> None:
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise DataError(
            f"data.dataset: {name} is an IterableDataset; data=map_style needs one with __len__ "
            "and __getitem__"
        )
    missing = [m for m in ("__len__", "__getitem__") if not hasattr(dataset, m)]
    if missing:
        raise DataError(
            f"data.dataset: {name} has no {' and no '.join(missing)}; a map-style dataset needs "
            "both: add them, or give another data.dataset._target_"
        )
