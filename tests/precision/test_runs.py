"""precision: whole jobs by the command; what was asked for is what ran."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.conftest import TINY, Command

MINE = """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class HalfUsed:
    def open(self, context):
        return Model()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 32)
        self.never = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32))
        self.last = nn.Linear(32, 10)
        self.bias = nn.Parameter(torch.zeros(10))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, inputs):
        with torch.autocast("cpu", enabled=False):  # whatever was asked for
            return self.last(self.first(inputs).relu())
"""
OVERFLOWS = """
defaults: [fp16]
init_scale: 1e12
growth_interval: 10
"""


@pytest.fixture(scope="module")
def runs(module_command: Command) -> dict[str, dict[str, Any]]:
    """Records by `precision`; of a model of one's own under bf16."""
    (module_command.cwd / "mine.py").write_text(MINE)
    for name, text in (("model/own", "_target_: mine.HalfUsed"), ("precision/scaled", OVERFLOWS)):
        path = module_command.cwd / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    conf = ["--config-dir", "conf"]
    swept = module_command("-m", *conf, *TINY, "precision=fp32,scaled,bf16_pure", "run.steps=50")
    own = module_command(*conf, *TINY[1:], "model=own", "precision=bf16")
    assert swept.code == own.code == 0, swept.err + own.err
    records = swept.jobs("outputs/sweeps/*") + own.jobs()
    return {record["requested"]["precision"]: record for record in records}


@pytest.mark.slow
def test_overflows_are_recorded_and_left_out(runs: dict[str, dict[str, Any]]) -> None:
    numerics = runs["scaled"]["numerics"]
    skipped, norms = numerics["skipped_steps"], numerics["grad_norm"]
    first = next(step for step in range(50) if step not in skipped)
    assert skipped[:first] == list(range(first)) and first > 5
    again = [s for s in skipped if s > first]  # ten good steps double the scale, too far
    assert len(skipped) < 40 and again
    assert [isinstance(norms[s], str) for s in range(50)] == [s in skipped for s in range(50)]
    halved = round(math.log2(1e12 / numerics["loss_scale"]))
    assert numerics["loss_scale"] == pytest.approx(1e12 / 2**halved)
    assert halved in range(len(skipped) - 5, len(skipped))  # less what it grew by
    counted = runs["scaled"]["throughput"]
    steady = 50 - counted["steps_excluded"]["warmup"] - counted["steps_excluded"]["skipped"]
    assert counted["steps_measured"] == steady
    assert counted["steps_excluded"]["skipped"] == len([s for s in skipped if s >= 5])


@pytest.mark.slow
def test_the_first_good_step_is_that_of_fp32(runs: dict[str, dict[str, Any]]) -> None:
    # the same parameters on other samples of the same data: unscaled, or it would be 1e5 as large
    scaled, plain = runs["scaled"]["numerics"], runs["fp32"]["numerics"]
    first = next(step for step in range(50) if step not in scaled["skipped_steps"])
    assert scaled["grad_norm"][first] == pytest.approx(plain["grad_norm"][0], rel=0.5)
    assert scaled["loss"][0] == pytest.approx(plain["loss"][0], rel=1e-3)
    assert scaled["final_loss"] < 0.95 * scaled["loss"][0]
    assert runs["scaled"]["validity"]["verdict"] == "valid"


@pytest.mark.slow
def test_nothing_is_skipped_where_it_cannot_be(runs: dict[str, dict[str, Any]]) -> None:
    for tag in ("fp32", "bf16_pure"):
        assert runs[tag]["numerics"]["skipped_steps"] is None
        assert runs[tag]["numerics"]["loss_scale"] is None


@pytest.mark.slow
def test_all_of_it_is_bfloat16(runs: dict[str, dict[str, Any]]) -> None:
    seen = runs["bf16_pure"]["effective"]["precision"]
    nothing = {"reduction": None, "float32_matmul": None}  # of one rank, on a CPU
    kinds = ("parameters", "compute", "backward", "gradients", "optimizer_state")
    assert seen == dict.fromkeys(kinds, "bfloat16") | nothing
    mine, plain = runs["bf16_pure"]["numerics"], runs["fp32"]["numerics"]
    assert mine["loss"][0] == pytest.approx(plain["loss"][0], rel=1e-2)
    assert mine["final_loss"] == pytest.approx(plain["final_loss"], rel=2e-2)
    assert runs["bf16_pure"]["validity"]["verdict"] == "valid"


@pytest.mark.slow
def test_an_option_without_effect_is_named(runs: dict[str, dict[str, Any]]) -> None:
    validity = runs["bf16"]["validity"]
    assert validity["verdict"] == "ineffective"
    assert "precision=bf16: the model computed in float32, not bfloat16" in validity["reasons"]


@pytest.mark.slow
def test_unused_parameters_and_layers_are_named(runs: dict[str, dict[str, Any]]) -> None:
    numerics = runs["bf16"]["numerics"]
    inside = [f"never.{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")]
    assert numerics["unused_parameters"] == ["bias", *inside]
    assert numerics["unused_layers"] == ["never"]
    assert runs["fp32"]["numerics"]["unused_parameters"] == []
    assert runs["fp32"]["numerics"]["unused_layers"] == []


def test_tf32_needs_a_device(command: Command) -> None:
    done = command(*TINY, "precision=tf32", "run.device=cpu")
    said = "TF32 needs an Ampere or newer CUDA device; use precision=fp32 or bf16"
    assert done.code == 2
    assert f"precision=tf32: {said}" in " ".join((done.out + done.err).split())
    assert not (done.cwd / "outputs").exists()


@pytest.mark.distributed
def test_what_is_reduced_is_seen(command: Command) -> None:
    done = command(*TINY, "precision=bf16_pure", "strategy=ddp", "launch.nproc=2")
    assert done.code == 0, done.err
    record = done.job()
    assert record["effective"]["precision"]["reduction"] == "bfloat16"
    assert record["numerics"]["grads_equal"] is True
