"""Law 2: the samples of step k are a function of (seed, k) alone."""

from __future__ import annotations

import os
import random
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.order import SeededOrder, mix
from paceline.data.stream import FOLD_EVERY, Fetch, Loader, MapStream, auto_workers
from paceline.rank.process import seed_everything
from paceline.types import Context, DataError, Run, World


class Index:
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, indices: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(indices))


class Dice(Index):
    """Draws, as an augmentation does: seeded by the stream."""

    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(())


def stream(
    length: int = 64,
    batch: int = 8,
    rank: int = 0,
    world: int = 1,
    accumulation: int = 1,
    seed: int = 0,
    workers: int | Literal["auto"] = 0,
    dataset: Any = None,
) -> MapStream:
    run = Run(1, accumulation, seed, None, 0, "cpu")
    here = World(rank, rank, 0, world, torch.device("cpu"))
    loader = Loader(workers, 2, True, False)
    context = Context(here, run, Path(), lambda node: node)
    data = dataset if dataset is not None else Index(length)
    held_out = Index(10)
    return MapStream(data, held_out, batch, loader, context, "samples", 1, dataset is not None)


def steps(made: MapStream, number: int, first: int = 0) -> list[list[int]]:
    """Sample ids of each step on this rank."""
    batches = made.batches(first)
    a = made.accumulation
    return [[int(i) for b in islice(batches, a) for i in b] for _ in range(number)]


@given(
    length=st.integers(1, 40),
    batch=st.sampled_from([4, 8, 12, 24]),
    world=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_ranks_share_exactly_the_samples_of_one_process(
    length: int, batch: int, world: int, seed: int
) -> None:
    alone = steps(stream(length, batch, seed=seed), 5)
    parts = [steps(stream(length, batch, r, world, seed=seed), 5) for r in range(world)]
    for step in range(5):
        assert alone[step] == [i for part in parts for i in part[step]]


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_neither_accumulation_nor_workers_change_them(accumulation: int, workers: int) -> None:
    assert steps(stream(accumulation=accumulation, workers=workers), 12) == steps(stream(), 12)


def test_a_resume_goes_on_with_the_next_sample() -> None:
    assert steps(stream(), 5, first=9) == steps(stream(), 14)[9:]


def test_epochs_are_whole_and_differ() -> None:
    ids = np.array(steps(stream(64, 8), 16)).ravel()
    first, second = ids[:64], ids[64:]
    assert sorted(first) == sorted(second) == list(range(64))
    assert list(first) != list(second)


def test_a_global_batch_straddles_epochs_without_a_short_one() -> None:
    found = steps(stream(10, 4), 5)
    assert all(len(step) == 4 for step in found)
    flat = [i for step in found for i in step]
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))


def test_a_batch_larger_than_the_dataset() -> None:
    (step,) = steps(stream(3, 8), 1)
    assert [step.count(i) for i in range(3)] in ([3, 3, 2], [3, 2, 3], [2, 3, 3])


def test_ranks_are_disjoint_within_an_epoch() -> None:
    ranks = [{i for s in steps(stream(64, 8, r, 2), 8) for i in s} for r in range(2)]
    assert not ranks[0] & ranks[1]
    assert ranks[0] | ranks[1] == set(range(64))


def test_another_seed_is_another_order() -> None:
    assert steps(stream(seed=1), 2) != steps(stream(seed=2), 2)


def digest(made: MapStream, number: int) -> int:
    steps(made, number)
    found = made.digest(number * made.accumulation)
    assert found is not None
    return found


def test_digests_of_ranks_add_up() -> None:
    alone = digest(stream(), 7)
    ranks = [digest(stream(rank=r, world=2, accumulation=2), 7) for r in range(2)]
    assert sum(ranks) % 2**64 == alone


def test_the_digest_sees_a_missing_sample_and_another_step() -> None:
    assert digest(stream(), 7) != digest(stream(), 6)
    one, other = stream(), stream()
    list(islice(one.batches(0), 1))
    list(islice(other.batches(8), 1))  # the same epoch's order, another step
    assert one.digest(1) != other.digest(1)


def test_the_digest_counts_what_was_used_not_what_was_prefetched() -> None:
    made, ahead = stream(), stream()
    steps(made, 5)
    steps(ahead, 9)
    assert made.digest(5) == ahead.digest(5)


def test_the_digest_is_the_same_when_folded_on_the_way() -> None:
    number = 2 * FOLD_EVERY + 100
    folded = stream()
    found = digest(folded, number)
    assert len(folded._handed) == 0
    ranks = [digest(stream(rank=r, world=2), number) for r in range(2)]
    assert sum(ranks) % 2**64 == found


@pytest.mark.parametrize("workers", [0, 2])
def test_random_items_are_seeded_by_epoch_and_index(workers: int) -> None:
    def values(world: int) -> list[float]:
        parts = [
            stream(batch=8, rank=r, world=world, workers=workers, dataset=Dice(12)).batches(0)
            for r in range(world)
        ]
        return [float(v) for _ in range(4) for part in parts for v in next(part)]

    assert values(1) == values(2)
    assert len(set(values(1))) == 32  # another number in another epoch


def test_random_items_leave_the_generator_of_the_model_alone() -> None:
    def drawn() -> list[float]:
        return [*torch.rand(3).tolist(), random.random(), np.random.random()]

    seed_everything(7)
    expected = drawn()
    seed_everything(7)
    next(stream(batch=8, dataset=Dice(12)).batches(0))
    assert drawn() == expected


def test_held_out_batches_are_shared_once() -> None:
    seen = [
        int(i) for r in range(2) for b in stream(batch=4, rank=r, world=2).held_out(3) for i in b
    ]
    assert sorted(seen) == list(range(10))
    assert sum(len(b) for b in stream(batch=4).held_out(2)) == 8


def test_another_dataset_or_seed_is_refused_on_resume() -> None:
    state = stream().state_dict()
    stream().load_state_dict(state)
    with pytest.raises(DataError, match="another seed or dataset"):
        stream(seed=1).load_state_dict(state)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        stream(length=0)


def test_units_are_counted_from_the_batch() -> None:
    made = stream()
    assert made.count(torch.zeros(5, 3)) == 5
    assert made.count((torch.zeros(6), torch.zeros(6))) == 6
    assert made.count({"x": torch.zeros(7)}) == 7


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=4))
def test_mixed_seeds_fit_a_generator(values: list[int]) -> None:
    torch.Generator().manual_seed(mix(*values))
    assert mix(*values) == mix(*values)
    assert mix(*values, 1) != mix(*values, 2)


def test_items_without_getitems_are_collated() -> None:
    fetch = Fetch([(torch.tensor(i), i * 2) for i in range(5)], 0, random_items=False)
    first, second = fetch((np.array([3, 1]), 0))
    assert first.tolist() == [3, 1]
    assert second.tolist() == [6, 2]


def test_the_order_needs_no_memory_of_the_past() -> None:
    order, again = SeededOrder(10, 4, 3), SeededOrder(10, 4, 3)
    order.take(0, 40)
    assert order.take(17, 29).tolist() == again.take(17, 29).tolist()


@pytest.mark.parametrize(
    ("cores", "ranks", "workers"),
    [(1, 1, 1), (2, 1, 1), (4, 1, 3), (4, 2, 1), (16, 2, 7), (64, 1, 8), (64, 8, 7), (8, 16, 1)],
)
def test_auto_is_a_share_of_the_cores(cores: int, ranks: int, workers: int) -> None:
    assert auto_workers(cores, ranks) == workers


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores can't be told apart here")
def test_auto_counts_the_ranks_of_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert stream(world=2, workers="auto").num_workers == auto_workers(cores, 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # two nodes with a rank each
    assert stream(world=2, workers="auto").num_workers == auto_workers(cores, 1)


def test_auto_gives_the_same_samples_and_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    made = stream(workers="auto")
    assert (made.num_workers, made.queued_batches) == (1, 2)
    assert steps(made, 3) == steps(stream(), 3)
    assert made.workers_alive == 1


class Broken(Dice):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise DataError(f"sample {index} can't be read")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_error_says_the_same_from_a_worker(workers: int) -> None:
    with pytest.raises(DataError, match=r"^sample \d+ can't be read$"):
        next(stream(workers=workers, dataset=Broken(12)).batches(0))


def test_a_stream_knows_its_epoch_and_prepares_nothing_by_itself() -> None:
    made = stream(length=24)
    assert (made.samples, made.prepare) == (24, None)


def test_workers_are_a_number_or_auto() -> None:
    with pytest.raises(ValueError, match="num_workers=-1: give 0 or more"):
        Loader(-1, 2, True, False)
