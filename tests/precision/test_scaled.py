"""precision=fp16: real overflows are skipped and counted, and the training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.comm_hook.none import Plain
from paceline.precision.full import FullPrecision
from paceline.precision.scaled import Scaled, ScaledPrecision
from paceline.types import Context, Run, TrainState, World
from tests.checkpoint.training import opened

RUN = Run(1, 1, 0, None, 0, "cpu")
WORLD = World(0, 0, 0, 1, torch.device("cpu"))
OVERFLOWS = 2.0**30
"""A loss scale at which gradients of float16 products, 65504 at most, overflow at first."""


def scaled(scale: float, directory: Path, growth_interval: int = 2000) -> ScaledPrecision:
    settings = Scaled("float16", scale, 2.0, 0.5, growth_interval)
    return settings.open(Context(WORLD, RUN, directory, lambda node: node))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(32, 8, generator=generator), torch.rand(32, 4, generator=generator)


def step(made: nn.Module, optimizer: Any, precision: Any, clip: float | None) -> Any:
    inputs, targets = batch()
    optimizer.zero_grad()
    with precision.forward():
        outputs = made(inputs)
    precision.scale((outputs.float() - targets).square().mean()).backward()
    return precision.step(optimizer, clip)


def values(made: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made.parameters()])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_an_overflow_skips_the_step_and_then_training_goes_on(
    tmp_path: Path, clip: float | None, fused: bool
) -> None:
    precision, mine = scaled(OVERFLOWS, tmp_path), model()
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-2, fused=fused)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    skipped, norms = [], []
    for _ in range(40):
        before = values(mine)
        norms.append(step(mine, optimizer, precision, clip))
        scheduler.step()  # torch warns here about a first step that was skipped: not to us
        assert precision.skipped is not None
        skipped.append(bool(precision.skipped))
        assert torch.equal(before, values(mine)) is skipped[-1]
    first = skipped.index(False)
    assert 0 < first < 30 and not any(skipped[first:])
    assert precision.report() == {"loss_scale": OVERFLOWS * 0.5**first}

    plain, theirs = FullPrecision(), model()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    expected = [step(theirs, optimizer, plain, clip) for _ in range(40 - first)]
    # skipped steps aside it is the same training, but for float16's 3 digits in every product
    assert torch.allclose(values(mine), values(theirs), atol=5e-3)
    if clip is not None:
        # of unscaled gradients: scaled, it would be about 1e8 times as large
        assert float(norms[first]) == pytest.approx(float(expected[0]), rel=5e-3)
        assert not any(torch.isfinite(n) for n in norms[:first])


def test_the_scale_grows_again(tmp_path: Path) -> None:
    precision, mine = scaled(1024.0, tmp_path, growth_interval=3), model()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    for _ in range(7):
        step(mine, optimizer, precision, None)
    assert precision.report() == {"loss_scale": 4096.0}


def test_a_resumed_run_goes_on_with_its_scale(tmp_path: Path) -> None:
    def state(precision: ScaledPrecision) -> TrainState:
        made, data = model(), Position()
        optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        return TrainState(made, optimizer, scheduler, precision, data, Plain())  # type: ignore[arg-type]

    def train(held: TrainState, steps: int) -> list[bool]:
        found = []
        for _ in range(steps):
            step(held.model, held.optimizer, held.precision, 1.0)
            assert held.precision.skipped is not None
            found.append(bool(held.precision.skipped))
            held.step += 1
        return found

    whole = state(scaled(OVERFLOWS, tmp_path, growth_interval=5))
    assert train(whole, 4) == [True] * 4
    opened("sync", tmp_path).save(whole, 4, now=True)
    rest = train(whole, 30)

    resumed = state(scaled(1.0, tmp_path, growth_interval=5))
    assert opened("sync", tmp_path).load(resumed) == 4
    assert resumed.precision.report() == {"loss_scale": OVERFLOWS / 16}
    assert train(resumed, 30) == rest and True in rest[10:]  # it grew until it overflowed again
    assert torch.equal(values(resumed.model), values(whole.model))


class Position:
    sampling = "seeded"

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("init_scale", 0.0, "init_scale=0.0: give a finite scale above 0"),
        ("init_scale", float("inf"), "init_scale=inf: give a finite scale above 0"),
        ("growth_factor", 1.0, "growth_factor=1.0: give a finite factor above 1"),
        ("backoff_factor", 1.0, "backoff_factor=1.0: give a factor between 0 and 1"),
        ("growth_interval", 0, "growth_interval=0: give 1 or more"),
    ],
)
def test_values_that_make_no_scale(field: str, value: Any, said: str) -> None:
    good = {"init_scale": 1.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1}
    with pytest.raises(ValueError, match=f"^{said}$"):
        Scaled("float16", **(good | {field: value}))
