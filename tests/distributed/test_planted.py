"""Planted faults that train fast and wrong, and the gate that names each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import TINY, Command
from tests.swept import Swept, sweep

pytestmark = pytest.mark.distributed

MINE = '''
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.data.digits import Digits
from paceline.precision.full import FullPrecision


@dataclass(frozen=True)
class Precision:
    """A loss that is scaled and never scaled back, an optimizer that rests every so many steps."""

    factor: float
    rests_every: int

    def open(self, context):
        return Faulty(self)


class Faulty(FullPrecision):
    def __init__(self, settings):
        super().__init__()
        self.settings, self.steps = settings, 0

    def scale(self, loss):
        return loss * self.settings.factor

    def step(self, optimizer, clip):
        self.steps += 1
        every = self.settings.rests_every
        if every and self.steps % every == 0:
            return torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
        return super().step(optimizer, clip)


@dataclass(frozen=True)
class Strategy:
    """DDP, but for a `fault`."""

    fault: str

    def open(self, context):
        return self

    def wrap(self, model, world, compile, precision, comm_hook):
        if self.fault == "drops":
            model.register_forward_hook(drop)
        return DistributedDataParallel(model.to(world.device))

    def grad_sync(self, model, enabled):
        on = {"never": False, "inverted": not enabled}.get(self.fault, enabled)
        return nullcontext() if on else model.no_sync()


def drop(model, inputs, outputs):
    return torch.cat([outputs[:-1], outputs[-1:].detach()]) if model.training else outputs


@dataclass(frozen=True)
class Data(Digits):
    """With 3 batches of prefetch a sample comes twice in place of another, with 4 one is lost."""

    def open(self, context):
        stream = super().open(context)
        batches, fault = stream.batches, self.loader.prefetch_factor
        if fault == 3:
            stream.batches = lambda first: map(twice, batches(first))
        if fault == 4:
            stream.batches = lambda first: map(lose, batches(first))
        return stream


def twice(batch):
    return [torch.cat([part[:1], part[:1], part[2:]]) for part in batch]


def lose(batch):
    return [part[:-1] for part in batch]


class Known:
    """Four micro-batches on two ranks: 6 and 10, 16 and 20. The mean is 13."""

    unit, sampling = "samples", "own"

    def __init__(self, context):
        self.mine = [(6.0, 10.0), (16.0, 20.0)][context.world.rank]

    def count(self, batch):
        return len(batch)

    def num_batches(self):
        return None

    def digest(self, micro_batches):
        return None

    def batches(self, first_step):
        while True:
            yield from (torch.tensor([x]) for x in self.mine)

    def held_out(self, batches):
        return iter(())

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@dataclass(frozen=True)
class KnownData:
    def open(self, context):
        return Known(context)


class Weight(nn.Module):
    """Its loss is weight * x, so the gradient is x."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.weight * x


@dataclass(frozen=True)
class Sum:
    fixed_weight = True

    def open(self, context):
        return self

    def __call__(self, model, batch):
        return model(batch).sum(), torch.tensor(float(len(batch)))
'''
CONF = {
    "precision/mine": "_target_: mine.Precision\nfactor: 1.0\nrests_every: 0\n",
    "strategy/mine": "_target_: mine.Strategy\nfault: none\n",
    "data/known": "_target_: mine.KnownData\n",
    "model/weight": "_target_: mine.Weight\n",
    "loss/sum": "_target_: mine.Sum\n",
}


@pytest.fixture(autouse=True)
def mine(command: Command) -> None:
    (command.cwd / "mine.py").write_text(MINE)
    for name, text in CONF.items():
        path = command.cwd / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def swept(command: Command, *words: str, timeout_s: float = 120) -> Swept:
    mine = ["--config-dir", "conf", "launch.threads_per_rank=1"]
    found = sweep(command, *mine, *words, timeout_s=timeout_s)
    assert found.done.code == 0, found.done.err
    return found


def gates(found: Swept) -> dict[str, tuple[str, Any, Any]]:
    """The swept value -> its validity, and the verdict and gate of its numerics."""
    return {
        " ".join(row["overrides"].values()): (
            row["validity"],
            row["numerics"]["verdict"],
            row["numerics"]["gate"],
        )
        for row in found.table["rows"]
    }


GRADIENT = ("diverged", "diverged", "gradient")


def test_a_loss_that_is_scaled_wrongly(command: Command) -> None:
    found = swept(command, *TINY, "precision=mine", "precision.factor=1,0.5,0.98")
    assert gates(found) == {"1": ("valid", None, None), "0.5": GRADIENT, "0.98": GRADIENT}
    for factor, off in (("0.5", 0.5), ("0.98", 0.02)):
        record = found.cell(f"precision.factor={factor}")
        gradient = record["numerics"]["gradient"]
        assert gradient["error"] == pytest.approx(off, rel=1e-4)
        assert gradient["eager_error"] < 1e-6
        assert record["status"]["state"] == "invalid"
        assert record["validity"]["reasons"][0].startswith(
            f"gradient of the first step: {off:.1e} off its float64 reference, eager in this "
        )
    assert [row["verdict"] for row in found.table["rows"]] == ["baseline", "invalid", "invalid"]


def test_a_strategy_that_drops_or_syncs_wrongly(command: Command) -> None:
    faults = "strategy.fault=none,drops,never,inverted"
    found = swept(command, *TINY, "strategy=mine", "run.accumulation_steps=2", faults)
    assert {v: g for v, g in gates(found).items() if v in ("none", "drops")} == {
        "none": ("valid", None, None),
        "drops": GRADIENT,
    }
    for fault in ("never", "inverted"):
        record = found.cell(f"strategy.fault={fault}")
        assert record["validity"]["verdict"] == "not_training"
        assert record["numerics"]["grads_equal"] is False
        assert any("off its float64 reference" in r for r in record["validity"]["reasons"])


@pytest.mark.slow
def test_known_gradients(command: Command) -> None:
    words = [word for word in TINY if word != "data.flatten=true"]
    words += ["strategy=mine", "run.accumulation_steps=2", "data=known", "model=weight", "loss=sum"]
    words += ["run.clip_grad_norm=1000", "optimizer.lr=1e-6", "run.eval_batches=0"]
    found = swept(command, *words, "strategy.fault=none,never,inverted")
    right, never, inverted = (
        found.cell(f"strategy.fault={fault}") for fault in ("none", "never", "inverted")
    )
    assert right["numerics"]["gradient"]["norm"] == 13
    assert right["numerics"]["grad_norm"][0] == 13
    assert right["numerics"]["gradient"]["error"] == 0
    # 8 on one rank and 18 on the other; 10.5 and 15.5
    assert never["numerics"]["gradient"]["error"] == pytest.approx(5 / 13, rel=1e-6)
    assert inverted["numerics"]["gradient"]["error"] == pytest.approx(2.5 / 13, rel=1e-6)


@pytest.mark.slow
def test_other_samples_than_the_baselines(command: Command) -> None:
    words = [*TINY, "data._target_=mine.Data", "data.loader.prefetch_factor=2,3,4"]
    found = swept(command, *words)
    told = gates(found)
    # the stream believes that it gave the right ones, and a curve hides it for a while
    assert told["3"] == ("diverged", "diverged", "reference")
    assert told["4"][0] == "not_training"
    lost = found.cell("data.loader.prefetch_factor=4")
    assert f"{63 * 30} samples were used in 30 steps, {64 * 30}" in lost["validity"]["reasons"][0]


@pytest.mark.slow
def test_an_optimizer_that_rests_is_told_from_rounding(command: Command) -> None:
    words = [*TINY, "precision=mine", "precision.rests_every=0,10", "run.accumulation_steps=1,4"]
    found = swept(command, *words, "sweep.nudged_baselines=4")
    told = gates(found)
    assert told["0 4"] == ("valid", "within", "nudged")
    assert told["10 1"] == told["10 4"] == ("diverged", "diverged", "nudged")
    (row,) = [r for r in found.table["rows"] if tuple(r["overrides"].values()) == ("10", "1")]
    assert "the loss of step 10 is" in row["numerics"]["reason"]  # the first after the rest
    assert "4 nudged baselines allow" in row["numerics"]["reason"]
    # runs of their own, which differ from each other, and no rows
    nudged = [r for r in found.records if r["job"]["nudge"]]
    assert [r["job"]["nudge"]["number"] for r in nudged] == [1, 2, 3, 4]
    assert len({r["numerics"]["init_digest"] for r in nudged}) == 4
    assert len(found.table["rows"]) == 4
    assert "nudged baselines: 4 runs" in found.done.out
    again = command("compare", "outputs/sweeps/s", "--json")
    assert again.out.count('"gate": "nudged"') == 3
    finished = swept(command, *words, "sweep.nudged_baselines=4")
    assert finished.files == found.files


HONEST = [*TINY, "data.global_batch_size=32", "strategy=single,ddp", "run.accumulation_steps=1,4"]


def assert_honest(found: Swept) -> None:
    assert all(row["validity"] == "valid" for row in found.table["rows"])
    verdicts = [row["numerics"]["verdict"] for row in found.table["rows"][1:]]
    assert set(verdicts) <= {"equal", "within"} and "within" in verdicts
    cells = [r for r in found.records if not r["job"]["nudge"]]
    assert all(r["numerics"]["gradient"]["error"] is not None for r in cells)
    sketches: dict[str, list[float]] = {}  # bf16_pure rounds its start
    for record in cells:
        numerics = record["numerics"]
        sketch = numerics["gradient"]["sketch"]
        assert sketches.setdefault(numerics["init_digest"], sketch) == pytest.approx(sketch)


@pytest.mark.slow
def test_honest_cells_pass(command: Command) -> None:
    assert_honest(swept(command, *HONEST, "precision=fp32,bf16", "sweep.nudged_baselines=4"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["strategy=single,fsdp", "compile=off,inductor", "precision=fp32,bf16"],
        ["strategy=single,ddp,fsdp", "precision=fp32,fp16,bf16_pure"],
    ],
    ids=["compiled", "low"],
)
def test_honest_cells_pass_compiled_sharded_and_low(command: Command, words: list[str]) -> None:
    words = [*TINY, *words, "data.global_batch_size=32", "run.accumulation_steps=4"]
    assert_honest(swept(command, *words, "sweep.nudged_baselines=4", timeout_s=400))
