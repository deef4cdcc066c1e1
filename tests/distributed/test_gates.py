"""Speed counts only if it still trains: planted faults, and the gate that names each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import TINY, Command, Done

pytestmark = pytest.mark.distributed

MINE = '''
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel


class Lazy(torch.optim.SGD):
    """Never changes a parameter, and is very fast."""

    def step(self, closure=None):
        return None


class Elsewhere(torch.optim.SGD):
    """Made on copies, as one that was made before the wrapper replaced the parameters."""

    def __init__(self, params, **options):
        super().__init__([p.detach().clone().requires_grad_() for p in params], **options)


@dataclass(frozen=True)
class NeverSync:
    """DDP whose gradients stay on their rank."""

    def open(self, context):
        return self

    def wrap(self, model, world, compile, precision, comm_hook):
        model.to(world.device)
        compile(model)
        return DistributedDataParallel(model)

    def grad_sync(self, model, enabled):
        return model.no_sync()


@dataclass(frozen=True)
class Double:
    """A loss scaled wrongly, which is no business of these gates: the curve shows it."""

    def open(self, context):
        return self

    fixed_weight = True

    def __call__(self, model, batch):
        inputs, targets = batch
        loss = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
        return 2 * loss, torch.tensor(float(targets.numel()))
'''


@pytest.fixture(scope="module")
def planted(module_command: Command) -> dict[str, Done]:
    (module_command.cwd / "mine.py").write_text(MINE)
    conf = module_command.cwd / "conf" / "strategy"
    conf.mkdir(parents=True)
    (conf / "nosync.yaml").write_text("_target_: mine.NeverSync\n")
    mine = ["--config-dir", "conf", "strategy=nosync", "launch.nproc=2"]
    return {
        "lazy": module_command(*TINY, "optimizer._target_=mine.Lazy", "tag=lazy"),
        "elsewhere": module_command(*TINY, "optimizer._target_=mine.Elsewhere", "tag=elsewhere"),
        "still": module_command(*TINY, "optimizer.lr=0", "tag=still", "strict=true"),
        "nosync": module_command(*mine, *TINY, "tag=nosync"),
    }


def record(done: Done, tag: str) -> dict[str, Any]:
    (found,) = [r for r in done.jobs() if r["job"]["tag"] == tag]
    return found


def test_an_optimizer_that_does_nothing_is_stopped_after_the_first_step(
    planted: dict[str, Done],
) -> None:
    done = planted["lazy"]
    status = record(done, "lazy")["status"]
    assert (status["state"], status["kind"], status["phase"]) == ("failed", "error", "gates")
    assert status["message"].startswith("no parameter changed in the first step, with a learning")
    assert "is the optimizer (Lazy) built on the model's own parameters" in status["message"]
    assert done.code == 1


def test_an_optimizer_on_other_parameters_is_stopped_before_it(planted: dict[str, Done]) -> None:
    done = planted["elsewhere"]
    status = record(done, "elsewhere")["status"]
    assert (status["state"], status["kind"], status["phase"]) == ("failed", "error", "build")
    assert "6 of 6 trainable parameters" in status["message"]
    assert "layers.0.linear.weight" in status["message"]
    assert done.code == 1


def test_what_no_first_step_can_show_is_found_in_the_end(planted: dict[str, Done]) -> None:
    done = planted["still"]
    found = record(done, "still")
    assert found["status"]["state"] == "invalid"
    assert found["validity"]["verdict"] == "not_training"
    assert found["numerics"]["params_changed"] is False
    assert "no parameter changed in 30 steps" in found["validity"]["reasons"][0]
    assert "not_training" in done.out


def test_under_strict_a_failed_gate_is_exit_3(planted: dict[str, Done]) -> None:
    assert planted["still"].code == 3


def test_gradients_that_differ_between_ranks(planted: dict[str, Done]) -> None:
    found = record(planted["nosync"], "nosync")
    assert found["numerics"]["grads_equal"] is False
    assert found["validity"]["verdict"] == "not_training"
    assert any("differ between ranks" in r for r in found["validity"]["reasons"])
    assert any("off its float64 reference" in r for r in found["validity"]["reasons"])


@pytest.mark.slow
def test_such_a_cell_cannot_win(command: Command) -> None:
    (command.cwd / "mine.py").write_text(MINE)
    done = command("-m", *TINY, "optimizer._target_=torch.optim.SGD,mine.Lazy", "repeat=range(2)")
    rows = done.table()["rows"]
    assert [r["verdict"] for r in rows] == ["baseline", "invalid"]
    assert "no parameter changed" in rows[1]["note"]
    assert rows[1]["state"] == "failed"


@pytest.mark.slow
def test_another_loss_is_other_work(command: Command) -> None:
    (command.cwd / "mine.py").write_text(MINE)
    (command.cwd / "conf" / "loss").mkdir(parents=True)
    (command.cwd / "conf" / "loss" / "double.yaml").write_text("_target_: mine.Double\n")
    plain = command(*TINY)
    double = command("--config-dir", "conf", *TINY, "loss=double")
    assert plain.code == double.code == 0, double.err
    one, other = done_dirs(double)
    compared = command("compare", one, other, "--json")
    assert '"verdict": "other_work"' in compared.out


def done_dirs(done: Done) -> list[str]:
    return sorted(str(p) for p in (done.cwd / "outputs/jobs").iterdir())
