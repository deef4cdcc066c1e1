"""The user's own dataset: how it is split, fetched and refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from paceline.data.map_style import MapStyle
from paceline.data.order import held_out_count
from paceline.data.stream import Loader, MapStream
from paceline.types import Context, DataError, Run, World

LOADER = Loader(num_workers=0, prefetch_factor=2, persistent_workers=True, pin_memory="auto")


class Squares(Dataset[Any]):
    """Item i is (i, i * i)."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        assert 0 <= index < self.length
        return torch.tensor(index), torch.tensor(index * index)


class WholeSquares(Squares):
    def __getitems__(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(indices)
        return index, index * index


class ListedSquares(Squares):
    """As torch has it: a list of items."""

    def __getitems__(self, indices: np.ndarray) -> list[tuple[Tensor, Tensor]]:
        return [self[i] for i in indices]


class Noise(Squares):
    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(())


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


def opened(dataset: Any, directory: Path, held_out: float = 0.2) -> MapStream:
    settings = MapStyle(4, "pairs", 3, held_out, {"_target_": "mine", "length": 10}, LOADER)

    def build(node: dict[str, Any]) -> Any:
        assert node == {"_target_": "mine", "length": 10}
        return dataset

    world = World(0, 0, 0, 1, torch.device("cpu"))
    return settings.open(Context(world, Run(1, 1, 0, None, 0, "cpu"), directory, build))


@pytest.mark.parametrize("dataset", [Squares(), WholeSquares(), ListedSquares()])
def test_the_end_is_held_out_and_the_rest_is_trained_on(dataset: Squares, tmp_path: Path) -> None:
    stream = opened(dataset, tmp_path)
    held = list(stream.held_out(5))
    assert [(a.tolist(), b.tolist()) for a, b in held] == [([8, 9], [64, 81])]
    batches = stream.batches(0)
    seen = []
    for _ in range(2):  # 8 samples: one epoch
        index, square = next(batches)
        assert torch.equal(square, index * index)
        seen += index.tolist()
    assert sorted(seen) == list(range(8))


def test_the_stream_counts_in_the_users_unit(tmp_path: Path) -> None:
    stream = opened(Squares(), tmp_path)
    assert stream.unit == "pairs"
    assert stream.count(next(iter(stream.batches(0)))) == 12


def test_random_items_are_a_function_of_the_seed_and_the_item(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = next(iter(opened(Noise(), tmp_path).batches(0)))
    torch.manual_seed(2)
    again = next(iter(opened(Noise(), tmp_path).batches(0)))
    assert torch.equal(first, again)
    assert len(set(first.tolist())) == 4


def test_random_items_inside_torchs_subset_are_seeded_too(tmp_path: Path) -> None:
    stream = opened(Subset(Noise(), range(10)), tmp_path)
    assert stream.random_items
    assert torch.equal(next(iter(stream.batches(0))), next(iter(stream.batches(0))))


def test_nothing_held_out(tmp_path: Path) -> None:
    stream = opened(Squares(), tmp_path, held_out=0.0)
    assert (len(stream.train), len(stream.held_out_set)) == (10, 0)
    assert list(stream.held_out(3)) == []


@pytest.mark.parametrize(
    ("length", "fraction", "count"),
    [(100, 0.05, 5), (10, 0.05, 1), (10, 0.0, 0), (2, 0.99, 1), (1, 0.5, 0), (0, 0.5, 0)],
)
def test_held_out_count(length: int, fraction: float, count: int) -> None:
    assert held_out_count(length, fraction) == count


def test_what_is_no_map_style_dataset_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="NoLength has no __len__"):
        opened(NoLength(), tmp_path)
    with pytest.raises(DataError, match="int has no __len__ and no __getitem__"):
        opened(3, tmp_path)
    with pytest.raises(DataError, match="Endless is an IterableDataset"):
        opened(Endless(), tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"held_out": 1.0}, r"held_out=1\.0: give a share"),
        ({"unit": ""}, "unit=''"),
        ({"units_per_sample": 0}, "units_per_sample=0: give 1 or more"),
        ({"dataset": {}}, "give the import path of your class"),
    ],
)
def test_values_are_checked(changed: dict[str, Any], message: str) -> None:
    fields = {"unit": "samples", "units_per_sample": 1, "held_out": 0.1}
    given = {"global_batch_size": 4, "dataset": {"_target_": "mine"}, "loader": LOADER}
    with pytest.raises(ValueError, match=message):
        MapStyle(**(given | fields | changed))
