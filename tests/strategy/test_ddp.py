"""strategy=ddp: parameters that a step doesn't use, named; what searching for them costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.strategy.ddp import Ddp, Replicas
from paceline.types import World
from tests import ranks
from tests.conftest import TINY, Command
from tests.swept import Swept, sweep

pytestmark = pytest.mark.distributed

SETTINGS: dict[str, Any] = {
    "bucket_cap_mb": 25,
    "static_graph": False,
    "gradient_as_bucket_view": True,
    "find_unused_parameters": False,
    "compile": "inside",
}

BRANCH = '''
import torch.distributed as dist
from torch import nn


class Branch(nn.Module):
    """`middle` is left out by rank 1 in its third step, by all in that step, or never."""

    def __init__(self, inputs, hidden, outputs, skip):
        super().__init__()
        self.first, self.middle = nn.Linear(inputs, 64), nn.Linear(64, 64)
        self.last = nn.Linear(64, outputs)
        self.skip, self.steps = skip, 0

    def forward(self, x):
        x = self.first(x)
        if not self.training:
            return self.last(self.middle(x))
        self.steps += 1
        left_out = self.steps == 3 and {"one": dist.get_rank() == 1, "all": True}.get(self.skip)
        return self.last(x if left_out else self.middle(x))
'''


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.second = (nn.Linear(4, 4) for _ in range(3))
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = self.frozen(self.first(x))
        out: torch.Tensor = self.second(x) if both else x
        return out


def in_turn(world: World) -> dict[str, Any]:
    """Steps in which all ranks use everything, but for one: there rank 1 doesn't, or none."""
    found: dict[str, Any] = {}
    searching = _wrapped(find_unused_parameters=True)
    for both in (True, True, world.rank == 0, True):
        _step(*searching, both)
        named = searching[0].unused_in_some_step(searching[1])
        found.setdefault("searched", []).append(named)
    replicas, model = _wrapped()
    _step(replicas, model, True)
    found["not_searched"] = replicas.unused_in_some_step(model)
    try:
        _step(replicas, model, False)  # of all: one alone would leave the others waiting for it
    except RuntimeError as error:
        found["said"] = replicas.explain(error, model)
    return found


def _wrapped(**options: Any) -> tuple[Replicas, DistributedDataParallel]:
    torch.manual_seed(0)
    replicas = Replicas(Ddp(**SETTINGS | options))
    return replicas, DistributedDataParallel(Two(), **options)


def _step(replicas: Replicas, model: DistributedDataParallel, both: bool) -> None:
    model.zero_grad()
    with replicas.grad_sync(model, True):
        model(torch.ones(2, 4), both).sum().backward()


def test_unused_in_one_step_on_one_rank() -> None:
    first, second = ranks.run(in_turn, 2)
    names = ["second.weight", "second.bias"]
    assert first["searched"] == second["searched"] == [[], [], names, names]
    assert first["not_searched"] is second["not_searched"] is None
    for rank, found in enumerate((first, second)):
        said = f"rank {rank} got no gradient for second.weight, second.bias: "
        assert found["said"].startswith(said)
        assert "strategy.find_unused_parameters=true" in found["said"]


def test_other_errors_are_left_alone() -> None:
    replicas = Replicas(Ddp(**SETTINGS))
    assert replicas.explain(RuntimeError("no memory"), Two()) is None
    assert replicas.explain(ValueError("did not receive grad for rank 1: 0 1"), Two()) is None


def test_a_long_list_is_cut() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    error = RuntimeError("Parameter indices which did not receive grad for rank 3: 0 1 2 3 4 5 6 7")
    said = Replicas(Ddp(**SETTINGS)).explain(error, model)
    assert said is not None
    assert said.startswith(
        "rank 3 got no gradient for 0.weight, 0.bias, 1.weight, 1.bias, 2.weight and 3 more: "
    )


def test_the_graph_is_searched_once_or_always() -> None:
    with pytest.raises(ValueError, match="static_graph=true finds them itself"):
        Ddp(**SETTINGS | {"static_graph": True, "find_unused_parameters": True})


@pytest.fixture(scope="module")
def swept(module_command: Command) -> Swept:
    (module_command.cwd / "mine.py").write_text(BRANCH)
    words = [*TINY, "strategy=ddp", "launch.nproc=2", "launch.threads_per_rank=1"]
    words += ["model._target_=mine.Branch", "measure.window_s=0.2"]
    cells = ["strategy.find_unused_parameters=false,true", "+model.skip=one,never"]
    return sweep(module_command, *words, *cells)


def test_a_job_ends_in_that_step_and_names_them(swept: Swept) -> None:
    record = swept.cell("strategy.find_unused_parameters=False", "+model.skip=one")
    status = record["status"]
    assert (status["state"], status["kind"], status["rank"]) == ("failed", "error", 1)
    assert status["step"] == 2
    assert "rank 1 got no gradient for middle.weight, middle.bias" in status["message"]
    assert "strategy.find_unused_parameters=true" in status["message"]


def test_searched_for_and_found_is_needed(swept: Swept) -> None:
    record = swept.cell("strategy.find_unused_parameters=True", "+model.skip=one")
    assert record["validity"]["verdict"] == "valid"
    assert record["comm"]["unused_in_some_step"] == ["middle.weight", "middle.bias"]
    assert record["counter_runs"] == []


def test_searched_for_and_not_found_has_its_price(swept: Swept) -> None:
    record = swept.cell("strategy.find_unused_parameters=True", "+model.skip=never")
    assert record["comm"]["unused_in_some_step"] == []
    (run,) = record["counter_runs"]
    assert run["name"] == "unused_search"
    low, high = run["speedup_ci95"]
    assert low <= run["speedup"] <= high
    assert record["numerics"]["grads_equal"] is True


def test_not_searched_for_says_nothing(swept: Swept) -> None:
    record = swept.cell("strategy.find_unused_parameters=False", "+model.skip=never")
    assert record["validity"]["verdict"] == "valid"
    assert record["comm"]["unused_in_some_step"] is None
    assert record["counter_runs"] == []
