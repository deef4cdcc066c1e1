"""A loader whose bottleneck is known."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.data.planted import Items, Lengths, Planted
from paceline.data.stream import Loader

PLAIN = Planted(
    global_batch_size=4,
    samples=32,
    length=40,
    features=6,
    classes=3,
    item_wait_s=0.0,
    item_decode_kib=0,
    new_length_every=0,
    without="nothing",
    loader=Loader(0, 2, True, False),
)


def test_items_can_be_learned_and_are_the_same_each_time() -> None:
    items, again = Items(PLAIN, seed=1), Items(PLAIN, seed=1)
    assert len(items) == 32
    inputs, label = items[5]
    assert inputs.shape == (40, 6)
    assert torch.equal(inputs, again[5][0])
    assert label == inputs.mean(0)[:3].argmax()
    assert len(set(items.labels.tolist())) == 3


@pytest.mark.parametrize("plant", [{"item_wait_s": 0.02}, {"item_decode_kib": 20_000}])
def test_an_item_takes_its_time_unless_it_is_left_out(plant: dict[str, Any]) -> None:
    slow, left_out = (
        Items(replace(PLAIN, **plant, without=without), 0) for without in ("host", "input")
    )
    spent = []
    for items in (left_out, slow):
        start = time.perf_counter()
        items[0]
        spent.append(time.perf_counter() - start)
    assert spent[1] > 10 * spent[0]


def batch(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 40, 6, generator=generator), torch.zeros(4, dtype=torch.int64)]


def test_the_length_of_a_batch_is_its_own() -> None:
    lengths = Lengths(replace(PLAIN, new_length_every=4))
    found = [lengths(batch(seed))[0].shape[1] for seed in range(200)]
    assert found == [lengths(batch(seed))[0].shape[1] for seed in range(200)]
    others = [n for n in found if n != 20]
    assert 25 < len(others) < 75  # one in four
    assert len(set(others)) > 15
    assert all(2 <= n < 40 for n in found)
