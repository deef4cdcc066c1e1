"""DDP's timers, read now and then, against stamps of our own on two ranks."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.comm_hook.none import Plain
from paceline.rank.timings import READ_EVERY, Timings
from paceline.types import World
from tests import ranks

pytestmark = pytest.mark.distributed

STEPS, NAP_S = 40, 0.01
LATE = range(20, 40)
"""Steps in which rank 1 comes late, so that rank 0 waits."""


class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, nap: float) -> torch.Tensor:
        ctx.nap = nap
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        time.sleep(ctx.nap)
        return grads[0], None


def steps(world: World) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    ddp = DistributedDataParallel(model)
    timings = Timings(ddp, Plain(), world)
    backward = []
    for step in range(STEPS):
        nap = NAP_S if world.rank == 1 and step in LATE else 0.0
        loss = Late.apply(ddp(torch.ones(2, 8)), nap).sum()
        start = time.perf_counter()
        loss.backward()
        backward.append(time.perf_counter() - start)
        timings.tick(disturbed=step == 0)
    timed = timings.read(STEPS)
    assert timed is not None
    alone = Timings(model, Plain(), world)
    return {
        "exposed": timed.exposed_s.tolist(),
        "compute": timed.compute_s.tolist(),
        "backward": backward,
        "readings": len(timings._rows),
        "of_a_bare_model": alone.read(STEPS),
    }


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return ranks.run(steps, 2)  # type: ignore[no-any-return]


def test_rank_0_waits_as_long_as_rank_1_is_late(two: list[dict[str, Any]]) -> None:
    # the last step is told of in the next; blocks at the edge share their steps
    inside = slice(LATE.start + READ_EVERY, LATE.stop - 2)
    waiting, late = two
    assert sum(waiting["exposed"][inside]) > 0.8 * NAP_S * 10
    assert sum(waiting["exposed"][inside]) < 1.1 * sum(waiting["backward"][inside])
    assert sum(late["compute"][inside]) > 0.9 * NAP_S * 10
    assert sum(late["exposed"][inside]) < 0.5 * sum(waiting["exposed"][inside])


def test_it_waits_in_no_other_steps(two: list[dict[str, Any]]) -> None:
    before = slice(READ_EVERY, LATE.start - READ_EVERY)
    exposed = two[0]["exposed"]
    number = LATE.start - 2 * READ_EVERY
    late = sum(exposed[LATE.start + READ_EVERY : LATE.stop - 2]) / 10
    assert sum(exposed[before]) / number < 0.5 * late


def test_it_is_read_in_few_steps(two: list[dict[str, Any]]) -> None:
    # the first, the one after it, one in eight, and at the end
    assert two[0]["readings"] <= 1 + 2 + STEPS // READ_EVERY + 1


def test_nothing_is_timed_without_ddp(two: list[dict[str, Any]]) -> None:
    assert two[0]["of_a_bare_model"] is None
