"""comm_hook=fp16, bf16: how precise, with every setting of DDP; overflow is seen."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch

from paceline.types import World
from tests import ranks
from tests.comm_hook.training import Trained, error, exact, opened

pytestmark = pytest.mark.distributed

SETTINGS = [
    *product(("none", "fp16", "bf16"), (True, False), (False,), (1, 4)),
    *product(("none", "fp16", "bf16"), (True,), (True,), (1,)),  # static_graph
]


def everything(world: World) -> dict[str, Any]:
    return {"errors": errors(world), "overflow": overflow(world)}


def errors(world: World) -> dict[Any, tuple[float, bool, list[str]]]:
    """By setting: the worst error of three steps, was anything broken, the gradients' bits."""
    found = {}
    for name, as_view, static, accumulation in SETTINGS:
        trained = Trained(name, world, gradient_as_bucket_view=as_view, static_graph=static)
        worst, broken = 0.0, False
        for step in range(3):
            right = exact(trained, step, accumulation)
            grads = trained.step(step, accumulation)
            worst = max(worst, error(grads, right))
            flag = trained.hook.take_nonfinite()
            broken |= flag is not None and bool(flag)
        bits = [float(g.double().sum()).hex() for g in grads]
        found[name, as_view, static, accumulation] = (worst, broken, bits)
    return found


def overflow(world: World) -> dict[str, list[Any]]:
    """Gradients of 3e5 on rank 1 alone, and as they are before and after; then infinite ones."""
    found: dict[str, list[Any]] = {}
    for name in ("fp16", "bf16"):
        trained, found[name] = Trained(name, world), []
        start = copy.deepcopy(trained.ddp.module.state_dict())
        for step, factor in enumerate((1.0, 3e7 if world.rank else 1.0, 1.0, float("inf"))):
            trained.ddp.module.load_state_dict(start)
            grads = trained.step(step, factor=factor)
            flag = trained.hook.take_nonfinite()
            finite = all(bool(torch.isfinite(g).all()) for g in grads)
            found[name].append((finite, None if flag is None else bool(flag)))
    return found


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return ranks.run(everything, 2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_gradient_is_as_precise_as_promised(two: list[dict[str, Any]], setting: Any) -> None:
    mine, theirs = (rank["errors"][setting] for rank in two)
    promised = opened(setting[0], World(0, 0, 0, 1, torch.device("cpu"))).lossy_rtol
    assert mine[0] <= max(promised, 1e-6)
    assert mine[0] > 1e-5 or setting[0] == "none"  # else nothing was compressed
    assert not mine[1] and not theirs[1]
    assert mine[2] == theirs[2]


def test_an_overflow_is_seen_on_every_rank_and_forgotten(two: list[dict[str, Any]]) -> None:
    for rank in two:
        fine, broken, after, infinite = rank["overflow"]["fp16"]
        assert fine == after == (True, False)
        assert broken == (False, True)
        assert infinite == (False, False)  # it was infinite before: no work of the hook


def test_bfloat16_has_the_range_of_float32(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert [finite for finite, _ in rank["overflow"]["bf16"]] == [True, True, True, False]
        assert {flag for _, flag in rank["overflow"]["bf16"]} == {None}
