"""Curves: what is kept a step, and what isn't a number."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.rank.curves import Curves
from paceline.types import Nonfinite, World

WORLD = World(0, 0, 0, 1, torch.device("cpu"))
INF = math.inf


def add(curves: Curves, loss: float, norm: float | None, skipped: bool | None) -> None:
    curves.add(
        torch.tensor(2 * loss),
        torch.tensor(2.0),
        None if norm is None else torch.tensor(norm),
        None if skipped is None else torch.tensor(skipped),
    )


def test_skipped_steps_are_kept_with_their_norms() -> None:
    curves = Curves({})
    add(curves, 3.0, INF, True)
    curves.fold(WORLD)
    add(curves, 2.0, math.nan, True)
    add(curves, 1.0, 0.5, False)
    curves.fold(WORLD)
    curves.fold(WORLD)
    assert curves.history["loss"] == [3.0, 2.0, 1.0]
    assert curves.history["skipped"] == [1.0, 1.0, 0.0]
    norms = curves.history["grad_norm"]
    assert norms[0] == INF and math.isnan(norms[1]) and norms[2] == 0.5


def test_where_no_step_can_be_skipped_there_are_no_flags() -> None:
    curves = Curves({})
    add(curves, 1.0, 0.5, None)
    curves.add_extra(None)
    curves.fold(WORLD)
    assert curves.history == {"loss": [1.0], "grad_norm": [0.5], "skipped": []}


def test_flags_without_norms() -> None:
    curves = Curves({})
    add(curves, 1.0, None, True)
    curves.fold(WORLD)
    assert curves.history == {"loss": [1.0], "grad_norm": [], "skipped": [1.0]}


@pytest.mark.parametrize(
    ("loss", "norm", "skipped", "said"),
    [
        (INF, INF, True, "the loss is inf at step 2"),
        (math.nan, None, None, "the loss is nan at step 2"),
        (1.0, INF, False, "the gradient norm is inf at step 2"),
        (1.0, math.nan, None, "the gradient norm is nan at step 2"),
    ],
)
def test_what_is_not_excused(
    loss: float, norm: float | None, skipped: bool | None, said: str
) -> None:
    curves = Curves({})
    for _ in range(2):
        add(curves, 1.0, norm if norm is None else 1.0, None if skipped is None else False)
    add(curves, loss, norm, skipped)
    with pytest.raises(Nonfinite, match=f"^{said}; ") as caught:
        curves.fold(WORLD)
    assert caught.value.step == 2


def test_steps_beyond_the_training_are_apart() -> None:
    curves = Curves({})
    add(curves, 1.0, 0.5, False)
    curves.add_extra(torch.tensor(True))
    curves.fold(WORLD)
    assert curves.history["skipped"] == [0.0]
    assert curves.extra_skips.take().tolist() == [1.0]
