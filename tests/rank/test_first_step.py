"""The check of the first step: what it says, what it leaves behind, and what it costs nobody."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.rank import first_step
from paceline.rank.nudge import apply_nudge
from paceline.rank.peaks import Peaks
from paceline.rank.reference import SKETCH, coupling, sketch
from tests.conftest import TINY, Command
from tests.swept import sweep


def gradient(**known: Any) -> dict[str, Any]:
    allowed = {"eager_error": 1e-7, "allowed": 1e-6, "norm_allowed": 1e-5}
    return first_step.empty() | allowed | known


def test_what_is_wrong_is_said_in_a_sentence() -> None:
    (said,) = first_step.reasons(gradient(error=0.5, eager_error=1.2e-7))
    assert said.startswith(
        "gradient of the first step: 5.0e-01 off its float64 reference, eager in this precision "
        "is 1e-07, 1e-06 is allowed"
    )
    assert first_step.reasons(gradient(error=1e-6, norm_error=1e-5)) == []
    assert first_step.reasons(gradient(error=math.nan)) != []
    assert first_step.reasons(first_step.empty("it is too large")) == []


def test_a_wrong_norm_alone() -> None:
    (said,) = first_step.reasons(gradient(error=1e-7, norm_error=0.3))
    assert said == ("gradient norm of the first step: 3.0e-01 off that of the float64 reference")
    assert first_step.reasons(gradient(error=2e-3, norm_error=3e-3, allowed=8e-3)) == []


def random_gradient(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (300, 70), "b": (1_100_000,), "c": ()}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def distance(one: list[float], other: list[float]) -> float:
    return float(np.linalg.norm(np.subtract(one, other)) / np.linalg.norm(other))


@pytest.mark.parametrize("share", [1e-9, 1e-3, 0.5])
def test_sketches_are_as_far_apart_as_their_gradients(share: float) -> None:
    base, other = random_gradient(0), random_gradient(1)
    moved = {name: g + share * other[name] for name, g in base.items()}
    assert len(sketch(base)) == SKETCH
    assert distance(sketch(moved), sketch(base)) == pytest.approx(share, rel=0.4)


def test_a_sketch_knows_names_and_places() -> None:
    base = random_gradient(0)
    turned = {name: base[name] for name in ("c", "b", "a")}
    assert distance(sketch(turned), sketch(base)) < 1e-14
    assert distance(sketch({**base, "b": base["b"].roll(1)}), sketch(base)) > 0.3
    renamed = {"z" if name == "b" else name: g for name, g in base.items()}
    assert distance(sketch(renamed), sketch(base)) > 0.3


def test_layers_that_couple_samples() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1), nn.Dropout(0.0))
    assert coupling(model) == ["BatchNorm1d", "Dropout"]
    assert coupling(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout(0.0))) == []


@pytest.mark.parametrize(
    ("dtype", "unit"), [("float32", 2**-23), ("bfloat16", 2**-7), ("float16", 2**-10)]
)
def test_a_nudge_is_one_unit_in_the_last_place(dtype: str, unit: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(100, 100)
    before = model.weight.detach().double().clone()
    apply_nudge(model, {"number": 1, "dtype": dtype})
    moved = model.weight.detach().double() / before - 1
    assert moved.abs().max() <= 1.5 * unit  # float32 rounds what it is multiplied to
    assert moved.abs().min() >= 0.5 * unit
    assert 4000 < int((moved > 0).sum()) < 6000
    once = model.weight.detach().clone()
    apply_nudge(model, {"number": 2, "dtype": dtype})
    assert not torch.equal(once, model.weight)


def test_memory_that_is_held_in_a_pause_is_no_peak() -> None:
    fresh = Peaks(torch.device("cpu"))  # brings the peak down to what this process holds now
    fresh.pause()
    fresh.resume()
    peaks = Peaks(torch.device("cpu"))
    peaks.pause()
    before_gib, _ = peaks.most()
    held = torch.ones(64 << 20)  # 0.25 GiB
    assert peaks.most()[0] == before_gib
    del held
    peaks.resume()
    assert peaks.most()[0] < before_gib + 0.1
    held = torch.ones(64 << 20)
    assert peaks.most()[0] > before_gib + 0.15
    del held
    assert peaks.most()[0] > before_gib + 0.15


MINE = '''
import torch
from torch import nn


class Muon(torch.optim.SGD):
    """Uses its gradients up, as many a user's optimizer does."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.zero_()


class Dropping(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.head(nn.functional.dropout(x, 0.1))


class Single(Dropping):
    """Insists on float32."""

    def forward(self, x):
        return nn.functional.linear(x.float(), self.head.weight) + self.head.bias
'''


def test_the_training_is_the_same_with_and_without_it(command: Command) -> None:
    (command.cwd / "mine.py").write_text(MINE)
    words = ["measure.gradient_check=true,false", "optimizer._target_=mine.Muon,torch.optim.SGD"]
    words += ["launch.threads_per_rank=1", "precision=fp16", "precision.init_scale=1e8"]
    found = sweep(command, *TINY, *words, "run.steps=40")
    assert found.done.code == 0, found.done.err
    assert len({tuple(r["numerics"]["loss"]) for r in found.records}) == 1
    for record in found.records:
        judged, skipped = record["numerics"]["gradient"], record["numerics"]["skipped_steps"]
        assert len(skipped) >= 5  # the first steps overflow: a later one is judged
        if "measure.gradient_check=True" in record["job"]["overrides"]:
            assert 0 < judged["error"] <= 3 * judged["eager_error"] < 0.01
            assert record["ledger"]["phases_s"]["gates"] > 0
        else:
            assert (judged["error"], judged["why"]) == (None, "measure.gradient_check=false")


def test_what_cannot_be_judged_says_why(command: Command) -> None:
    (command.cwd / "mine.py").write_text(MINE)
    found = sweep(command, *TINY, "model._target_=mine.Dropping,mine.Single")
    assert found.done.code == 0, found.done.err
    dropping = found.cell("model._target_=mine.Dropping")
    assert "random numbers" in dropping["numerics"]["gradient"]["why"]
    assert dropping["numerics"]["coupled_by"] == ["random numbers"]
    single = found.cell("model._target_=mine.Single")
    assert single["numerics"]["gradient"]["why"] == (
        "the model can't run once more in float64 (RuntimeError)"
    )
    assert {r["validity"]["verdict"] for r in found.records} == {"valid"}


def test_a_job_says_how_right_it_was(command: Command) -> None:
    done = command(*TINY, "launch.threads_per_rank=1")
    found = done.job()
    error = found["numerics"]["gradient"]["error"]
    assert 0 < error < 1e-6
    assert f"gradient   first step {error:.1e} off its float64 reference" in done.out
    phases, wall_s = found["ledger"]["phases_s"], found["ledger"]["wall_s"]
    assert sum(s for s in phases.values() if s is not None) == pytest.approx(wall_s)
    assert phases["gates"] > 0


def test_the_norm_of_many_values_is_held_to_what_torch_makes_of_them(command: Command) -> None:
    """4 million values in one tensor: torch's own float32 norm is 7e-5 off on a CPU."""
    words = [*TINY, "model.hidden=[64,2048,2048]", "optimizer.lr=0.001", "run.steps=9"]
    done = command(*words, "launch.threads_per_rank=1")
    assert done.code == 0, done.out + done.err
    found = done.job()["numerics"]["gradient"]
    assert 1e-5 < found["norm_error"] <= found["norm_allowed"] < 1e-3
