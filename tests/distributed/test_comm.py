"""Real jobs of several ranks: hooks, counts, planted faults of synchronisation, stragglers."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import TINY, Command
from tests.swept import Swept, sweep

pytestmark = pytest.mark.distributed

DDP = ["strategy=ddp", "launch.nproc=2", "launch.threads_per_rank=1"]
HOOKS = ("none", "fp16", "bf16", "powersgd")

STRATEGIES = '''
from contextlib import nullcontext
from dataclasses import dataclass

from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Every:
    """Averages in every micro-batch: right, and as slow as no accumulation."""

    def open(self, context):
        return self

    def wrap(self, model, world, compile, precision, comm_hook):
        wrapped = DistributedDataParallel(model)
        comm_hook.register(wrapped)
        return wrapped

    def grad_sync(self, model, enabled):
        return nullcontext()


@dataclass(frozen=True)
class First(Every):
    """Averages in all but the last."""

    def grad_sync(self, model, enabled):
        return model.no_sync() if enabled else nullcontext()
'''

SLOW = '''
import time

import torch
import torch.distributed as dist
from torch import nn

NAP_S = 0.05


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        time.sleep(NAP_S)
        return grad


class Model(nn.Module):
    """Rank 1 sleeps 50 ms a micro-batch, forward or backward."""

    def __init__(self, inputs, hidden, outputs, where):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 64), nn.Linear(64, outputs)
        self.where = where

    def forward(self, x):
        x = self.first(x)
        if dist.get_rank() == 1 and self.training:
            if self.where == "forward":
                time.sleep(NAP_S)
            if self.where == "backward":
                x = Nap.apply(x)
        return self.last(x)


class Items:
    """The same in the data."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if dist.is_initialized() and dist.get_rank() == 1:
            time.sleep(NAP_S / 8)
        return torch.full((64,), index / 400), index % 10
'''


@pytest.fixture(scope="module")
def hooks(module_command: Command) -> Swept:
    words = [*TINY, *DDP, "run.accumulation_steps=2", "model.hidden=[256]"]
    return sweep(module_command, *words, f"comm_hook={','.join(HOOKS)}")


class TestHooks:
    @pytest.mark.parametrize("name", HOOKS)
    def test_each_runs_on_gloo_and_trains(self, hooks: Swept, name: str) -> None:
        assert hooks.done.code == 0, hooks.done.out
        record = hooks.cell(f"comm_hook={name}")
        assert record["validity"]["verdict"] == "valid"
        assert record["numerics"]["grads_equal"] is True
        losses = record["numerics"]["loss"]
        assert losses[-1] < losses[0]

    @pytest.mark.parametrize("name", HOOKS)
    def test_reductions_of_a_whole_step_are_those_expected(self, hooks: Swept, name: str) -> None:
        comm = hooks.cell(f"comm_hook={name}")["comm"]
        number = 3 if name == "powersgd" else 1
        assert comm["backend"] == "gloo"
        assert comm["collectives"] == {"all_reduce": number}
        assert comm["reductions"] == comm["expected"] == number

    def test_bytes_of_a_step(self, hooks: Swept) -> None:
        numbers = (64 * 256 + 256) + (256 * 10 + 10)
        factors = (64 + 256) + (256 + 10)  # P and Q of rank 1; vectors travel whole
        sent = {n: hooks.cell(f"comm_hook={n}")["comm"]["bytes_per_step"] for n in HOOKS}
        assert sent == {
            "none": 4 * numbers,
            "fp16": 2 * numbers,
            "bf16": 2 * numbers,
            "powersgd": 4 * (factors + 256 + 10),
        }
        for name in HOOKS:
            comm = hooks.cell(f"comm_hook={name}")["comm"]
            assert comm["gradient_bytes_uncompressed"] == 4 * numbers

    @pytest.mark.parametrize("name", HOOKS)
    def test_communication_has_its_phase(self, hooks: Swept, name: str) -> None:
        record = hooks.cell(f"comm_hook={name}")
        ledger, comm = record["ledger"], record["comm"]
        steps = record["throughput"]["steps_measured"]
        assert comm["exposed_s"] > 0
        assert ledger["steady_phases_s"]["comm"] <= comm["exposed_s"] * steps * (1 + 1e-9)
        assert sum(ledger["steady_phases_s"].values()) == pytest.approx(ledger["steady_wall_s"])
        assert ledger["phases_s"]["comm"] == pytest.approx(ledger["steady_phases_s"]["comm"])
        assert all("comm" in rank for rank in ledger["per_rank"])

    def test_what_is_compressed_moves_the_losses_a_little(self, hooks: Swept) -> None:
        last = {n: hooks.cell(f"comm_hook={n}")["numerics"]["loss"][-1] for n in HOOKS}
        assert 0 < abs(last["fp16"] - last["none"]) < abs(last["bf16"] - last["none"]) < 1e-2
        assert abs(last["powersgd"] - last["none"]) < 1


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    command = Command(tmp_path_factory.mktemp("planted"))
    (command.cwd / "mine.py").write_text(STRATEGIES)
    conf = command.cwd / "conf" / "strategy"
    conf.mkdir(parents=True)
    (conf / "every.yaml").write_text("_target_: mine.Every\n")
    (conf / "first.yaml").write_text("_target_: mine.First\n")
    words = [*TINY, *DDP[1:], "run.accumulation_steps=4", "comm_hook=fp16"]
    yield sweep(command, "--config-dir", "conf", *words, "strategy=every,first")
    command.assert_nothing_left()


class TestPlantedFaults:
    def test_reductions_in_every_micro_batch_are_counted(self, planted: Swept) -> None:
        record = planted.cell("strategy=every")
        assert record["comm"]["reductions"] == 4
        assert record["validity"]["verdict"] == "ineffective"
        said = record["validity"]["reasons"][0]
        assert "3 reductions of gradients before the last of 4 micro-batches" in said
        assert "1 in the last one are enough" in said
        assert record["numerics"]["grads_equal"] is True  # only slow

    def test_a_last_micro_batch_that_is_not_averaged_is_counted(self, planted: Swept) -> None:
        record = planted.cell("strategy=first")
        assert record["validity"]["verdict"] == "not_training"
        assert record["numerics"]["grads_equal"] is False
        assert any("3 reductions of gradients before" in r for r in record["validity"]["reasons"])


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Any:
    command = Command(tmp_path_factory.mktemp("late"))
    (command.cwd / "mine.py").write_text(SLOW)
    words = [*TINY, *DDP, "model._target_=mine.Model", "run.steps=20"]
    yield sweep(command, *words, "+model.where=nowhere,backward")
    command.assert_nothing_left()


def assert_rank_1_is_named(record: dict[str, Any], nap_s: float) -> None:
    found, ledger = record["diagnosis"], record["ledger"]
    assert (found["bound"], found["rank"]) == ("straggler", 1)
    steps = record["throughput"]["steps_measured"]
    assert found["share"] * ledger["steady_wall_s"] / steps > 0.8 * nap_s
    assert ledger["slowest_rank"] == 1
    assert found["evidence"][0].startswith("rank 1 works ")


class TestStragglers:
    def test_a_rank_that_sleeps_in_backward_is_named(self, late: Swept) -> None:
        assert_rank_1_is_named(late.cell("+model.where=backward"), 0.05)

    @pytest.mark.slow
    def test_and_one_that_sleeps_in_forward(self, command: Command) -> None:
        (command.cwd / "mine.py").write_text(SLOW)
        words = [*TINY, *DDP, "model._target_=mine.Model", "+model.where=forward", "run.steps=20"]
        assert_rank_1_is_named(command(*words).job(), 0.05)

    def test_the_others_wait_for_it_in_comm(self, late: Swept) -> None:
        first, second = late.cell("+model.where=backward")["ledger"]["per_rank"]
        assert first["comm"] > 0.8 * second["backward"]
        assert second["comm"] < 0.5 * first["comm"]

    def test_none_is_named_where_all_work_alike(self, late: Swept) -> None:
        assert late.cell("+model.where=nowhere")["diagnosis"]["bound"] != "straggler"

    @pytest.mark.slow
    def test_four_ranks_that_accumulate(self, command: Command) -> None:
        (command.cwd / "mine.py").write_text(SLOW)
        words = [*TINY, *DDP, "model._target_=mine.Model", "+model.where=backward"]
        done = command(*words, "launch.nproc=4", "run.accumulation_steps=4", "run.steps=20")
        assert_rank_1_is_named(done.job(), 4 * 0.05)
        assert "straggler  rank 1 works" in done.out

    @pytest.mark.slow
    @pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
    def test_slow_data_is_seen_under_any_strategy(self, command: Command, strategy: str) -> None:
        (command.cwd / "mine.py").write_text(SLOW)
        tiny = [w for w in TINY if not w.startswith("data")]
        words = [*tiny, *DDP[1:], f"strategy={strategy}", "data=map_style", "run.steps=20"]
        words += ["data.dataset._target_=mine.Items", "data.global_batch_size=16"]
        words += ["strategy.wrap=size"] if strategy == "fsdp" else []
        record = command(*words).job()
        assert_rank_1_is_named(record, 0.05)
        untold = any("isn't told apart" in text for text in record["diagnosis"]["evidence"])
        assert untold == (strategy == "fsdp")


class TestOverflow:
    """Gradients above 65504, by a loss that is larger than any batch makes it."""

    LOSS = """
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Large:
    factor: float

    def open(self, context):
        return self

    fixed_weight = True

    def __call__(self, model, batch):
        inputs, targets = batch
        loss = torch.nn.functional.cross_entropy(model(inputs).float(), targets, reduction="sum")
        return self.factor * loss, torch.tensor(float(targets.numel()))
"""

    def run(self, command: Command, *words: str) -> dict[str, Any]:
        (command.cwd / "mine.py").write_text(self.LOSS)
        (command.cwd / "conf" / "loss").mkdir(parents=True)
        (command.cwd / "conf" / "loss" / "large.yaml").write_text(
            "_target_: mine.Large\nfactor: 1.0\n"
        )
        tiny = [*TINY, *DDP, "--config-dir", "conf", "loss=large", "comm_hook=fp16"]
        return command(*tiny, "measure.gradient_check=false", *words).job()

    def test_the_hook_is_named_with_the_step_and_the_way_out(self, command: Command) -> None:
        # steps enough for a minute: it ends as soon as the losses are seen to be no numbers
        record = self.run(command, "loss.factor=1e8", "run.steps=100000", "optimizer.lr=1e-9")
        status = record["status"]
        assert (status["state"], status["kind"], status["step"]) == ("failed", "nonfinite", 0)
        assert status["message"].startswith("comm_hook=fp16: a gradient above 65504")
        assert "use comm_hook=bf16 or none; first at step 0" in status["message"]

    @pytest.mark.slow
    def test_a_loss_scale_that_is_too_large_is_no_fault_of_the_hook(self, command: Command) -> None:
        words = ["precision=fp16", "precision.init_scale=1e9", "optimizer.lr=0.01"]
        record = self.run(command, *words)
        assert record["status"]["state"] == "completed"
        assert record["numerics"]["skipped_steps"][0] == 0
        assert record["numerics"]["loss_scale"] < 1e9
        assert record["numerics"]["loss"][-1] < record["numerics"]["loss"][0]


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["fp16", "powersgd"])
def test_a_resumed_job_goes_on_as_an_unbroken_one(
    command: Command, until: Callable[..., None], hook: str
) -> None:
    words = [*TINY, *DDP, f"comm_hook={hook}", "model.hidden=[256,256]", "run.steps=600"]
    words += ["checkpoint=sync", "checkpoint.every_steps=100000"]
    process = command.start(*words, "tag=broken")

    def trains() -> bool:
        return any(
            json.loads(path.read_text())["step"] > 20
            for path in command.cwd.glob("outputs/jobs/*/log/progress.json")
        )

    until(trains)
    process.send_signal(signal.SIGTERM)
    assert command.wait(process).code == 75
    assert command(*words, "tag=broken").code == 0
    done = command(*words, "tag=unbroken")
    broken, unbroken = sorted(done.jobs(), key=lambda r: str(r["job"]["tag"]))
    assert 20 < broken["checkpoint"]["resumed_from"] < 600
    assert unbroken["checkpoint"]["resumed_from"] is None
    assert broken["numerics"]["loss"] == unbroken["numerics"]["loss"]
    assert broken["numerics"]["eval_loss"] == unbroken["numerics"]["eval_loss"]
