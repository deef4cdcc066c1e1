"""The cells of a sweep: each its own world, own processes, own config; any sweeper and launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import TINY, Command
from tests.swept import Swept, sweep

pytestmark = pytest.mark.distributed

LEAKY = '''
import json, os
from pathlib import Path

import torch
from torch import nn

TIMES_MADE = []


class Model(nn.Module):
    """Notes what it finds, then leaves a mess in every global that it knows."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)
        found = {
            "made": len(TIMES_MADE),
            "dtype": str(torch.get_default_dtype()),
            "threads": torch.get_num_threads(),
            "env": os.environ.get("LEFT_BY_MODEL"),
            "grad": torch.is_grad_enabled(),
            "pid": os.getpid(),
        }
        with Path("found.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\\n")
        TIMES_MADE.append(self)
        os.environ["LEFT_BY_MODEL"] = "1"
        torch.set_num_threads(torch.get_num_threads() + 1)

    def forward(self, x):
        out = self.head(x)
        torch.set_default_dtype(torch.float64)
        return out
'''

STRANGE = '''
import os

from torch import nn


class Model(nn.Module):
    """Trains on something else as soon as there are two ranks."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.head(x * int(os.environ["WORLD_SIZE"]))
'''

SWEEPER = '''
import json
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper


class OneByOne(Sweeper):
    """Asks for one cell after the other and writes down what it gets."""

    def __init__(self, params):
        self.params = params

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        *shared, swept = arguments
        key, _, values = swept.partition("=")
        got = []
        for number, value in enumerate(values.split(",")):
            (job,) = self.launcher.launch([[*shared, f"{key}={value}"]], initial_job_idx=number)
            try:
                got.append([job.status.name, float(job.return_value)])
            except ValueError as error:
                got.append([job.status.name, str(error)])
        Path("got.json").write_text(json.dumps(got))


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="one_by_one",
    node={"_target_": "hydra_plugins.one_by_one.OneByOne", "params": {}},
)
'''


def own(command: Command, text: str, name: str = "mine.py") -> str:
    """The user's own module in the folder where the command runs."""
    path = command.cwd / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return "model._target_=mine.Model"


@pytest.mark.slow
class TestWorldSizes:
    """strategy=single,ddp launch.nproc=1,2."""

    WORDS = (*TINY, "strategy=single,ddp", "launch.nproc=1,2")

    def test_world_size_is_swept(self, worlds: Swept) -> None:
        assert worlds.done.code == 0, worlds.done.err
        two = worlds.cell("strategy=ddp", "launch.nproc=2")
        assert two["effective"]["world_size"] == 2
        assert two["validity"]["verdict"] == "valid"
        assert worlds.row("ddp", "2")["world_size"] == 2

    def test_what_cannot_run_is_skipped_with_the_reason(self, worlds: Swept) -> None:
        status = worlds.cell("strategy=single", "launch.nproc=2")["status"]
        assert status["state"] == "skipped"
        assert "runs one process, launch.nproc=2" in status["message"]
        assert worlds.row("single", "2")["state"] == "skipped"

    def test_ddp_over_one_rank_is_ineffective(self, worlds: Swept) -> None:
        validity = worlds.cell("strategy=ddp", "launch.nproc=1")["validity"]
        assert validity["verdict"] == "ineffective"
        assert any("synchronises nothing" in r for r in validity["reasons"])
        shown = worlds.row("ddp", "1")
        assert (shown["validity"], shown["verdict"]) == ("ineffective", "invalid")

    def test_other_threads_are_pointed_out(self, worlds: Swept) -> None:
        valid = [r for r in worlds.records if r["validity"]["verdict"] == "valid"]
        threads = {r["effective"]["threads_per_rank"] for r in valid}
        noted = any(n.startswith("threads_per_rank differs") for n in worlds.table["notes"])
        assert noted == (len(threads) == 2)  # on one core every rank has one thread

    def test_under_strict_it_ends_with_3(self, worlds: Swept, module_command: Command) -> None:
        again = sweep(module_command, *self.WORDS, "strict=true")
        assert again.done.code == 3
        assert {r["job"]["rerun"] for r in again.records} == {0}
        assert [r["job"]["started_at"] for r in again.records] == [
            r["job"]["started_at"] for r in worlds.records
        ]


@pytest.fixture(scope="module")
def worlds(module_command: Command) -> Swept:
    return sweep(module_command, *TestWorldSizes.WORDS)


def test_nothing_leaks_from_one_cell_into_the_next(command: Command) -> None:
    words = [own(command, LEAKY), "launch.threads_per_rank=1", "tag=a,b"]
    swept = sweep(command, *TINY, *words)
    assert swept.done.code == 0, swept.done.err
    found = [json.loads(x) for x in (command.cwd / "found.jsonl").read_text().splitlines()]
    assert len({f.pop("pid") for f in found}) == 2
    clean = {"made": 0, "dtype": "torch.float32", "threads": 1, "env": None, "grad": True}
    assert found == [clean, clean]
    for record in swept.records:  # what the model did to the threads is seen, too
        assert record["requested"]["threads_per_rank"] == 1
        assert record["effective"]["threads_per_rank"] == 2
        assert record["validity"]["verdict"] == "ineffective"


@pytest.mark.slow
def test_a_cell_that_trains_otherwise_fails_the_gate_against_the_baseline(command: Command) -> None:
    swept = sweep(command, *TINY, own(command, STRANGE), "strategy=single,ddp", "strict=true")
    assert {r["validity"]["verdict"] for r in swept.records} == {"valid"}
    diverged = swept.row("ddp")
    assert (diverged["validity"], diverged["verdict"]) == ("diverged", "invalid")
    assert swept.done.code == 3


@pytest.mark.slow
def test_a_stock_launcher_ends_with_the_table_too(command: Command) -> None:
    words = ["data.global_batch_size=64,32", "hydra/launcher=basic"]
    swept = sweep(command, *TINY, *words)
    assert swept.done.code == 0, swept.done.err
    assert [r["overrides"]["data.global_batch_size"] for r in swept.table["rows"]] == ["64", "32"]
    assert [r["verdict"] for r in swept.table["rows"]] == ["baseline", "other_work"]
    assert "global_batch_size" in swept.done.out
    assert "can't tell" in swept.done.out or "other work" in swept.done.out


@pytest.mark.slow
def test_a_sweeper_gets_a_rate_or_a_typed_failure(command: Command) -> None:
    own(command, SWEEPER, "hydra_plugins/one_by_one.py")
    words = ["run.clip_grad_norm=null", "hydra/sweeper=one_by_one", "optimizer.lr=0.1,1e30"]
    done = command("-m", *TINY, *words)
    assert done.code == 1, done.err
    (first, rate), (second, why) = json.loads((command.cwd / "got.json").read_text())
    assert (first, second) == ("COMPLETED", "COMPLETED")
    good, bad = sorted(done.jobs("outputs/sweeps/*"), key=lambda r: str(r["status"]["state"]))
    assert rate == good["throughput"]["sustained_units_per_s"]
    assert bad["status"]["kind"] == "nonfinite"
    assert "nonfinite" in why
    assert [r["state"] for r in done.table()["rows"]] == ["completed", "failed"]


@pytest.mark.slow
def test_repeats_are_the_outermost_loop_wherever_they_are_typed(command: Command) -> None:
    done = command("-m", *TINY, "run.steps=10", "strategy=single,ddp", "repeat=range(2)")
    assert done.code == 0, done.err
    jobs = sorted((r["job"] for r in done.jobs("outputs/sweeps/*")), key=lambda j: j["started_at"])
    order = [(j["repeat"], "strategy=ddp" in j["overrides"]) for j in jobs]
    assert order == [(0, False), (0, True), (1, False), (1, True)]
    assert [r["repeats"] for r in done.table()["rows"]] == [2, 2]


def test_ranks_get_a_config_without_anything_left_to_resolve(command: Command) -> None:
    seed = "run.seed='${oc.decode:${oc.env:SEED_OF_MINE}}'"
    words = ["strategy=ddp", seed, "scheduler.total_iters=${run.accumulation_steps}"]
    words += ["launch.threads_per_rank=1"]
    done = command(*TINY, *words, env={"SEED_OF_MINE": "7"})
    assert done.code == 0, done.err
    record = done.job()
    text = (Path(record["job"]["dir"]) / "job.yaml").read_text()
    config: dict[str, Any] = yaml.safe_load(text)["config"]
    assert "${" not in yaml.safe_dump(config)
    assert config["run"]["seed"] == record["job"]["seed"] == 7
    assert config["scheduler"]["total_iters"] == 1
    assert record["requested"]["threads_per_rank"] == record["effective"]["threads_per_rank"] == 1
