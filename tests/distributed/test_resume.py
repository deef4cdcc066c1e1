"""A run that is stopped and goes on IS the unbroken run; on other ranks, within rounding."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.checkpoint.reading import read_whole
from paceline.checkpoint.shelf import Shelf
from paceline.checkpoint.state import leaves
from tests.conftest import TINY, Command, Done

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STEPS = 20
MODES = ("sync", "dcp", "async")
AT_ONCE = f"measure.warmup_steps={STEPS - 1}"
"""Until warm-up is over, ranks agree about a stop after every step; later about once a second."""

MODEL = '''
import os, signal
from pathlib import Path

from torch import nn


class Model(nn.Module):
    """Draws random numbers. The last rank is told to stop in step N if stop_{JOB}_{N} exists; the
    others only hear of it."""

    def __init__(self, inputs, hidden, outputs, dropout=0.2):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, outputs)
        )
        self.register_buffer("seen", __import__("torch").zeros((), dtype=__import__("torch").int64))

    def blocks(self):
        return [self.net[0], self.net[3]]

    def forward(self, x):
        if self.training:
            last = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
            stop = Path(f"stop_{os.environ['JOB']}_{int(self.seen)}")
            if last and stop.exists():
                stop.unlink()
                os.kill(os.getpid(), signal.SIGTERM)
            self.seen += 1
        return self.net(x)
'''
COMMON = [
    *TINY,
    "model._target_=mine.Model",
    "optimizer=adamw",
    f"run.steps={STEPS}",
    "launch.threads_per_rank=1",
    "data.global_batch_size=24",
    "measure.gradient_check=false",
]


def job(done: Done, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((done.cwd / f"outputs/jobs/{name}/result.json").read_text())
    return found


def final_state(cwd: Path, name: str) -> dict[str, torch.Tensor]:
    """Everything that was saved after the last step, by name: model, optimizer, generators."""
    newest = Shelf(cwd / f"outputs/jobs/{name}/checkpoint").committed()[-1]
    assert newest.name == f"step_{STEPS:08d}"
    return {".".join(where): value for where, value in leaves(read_whole(newest))}


def unlike(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    assert one.keys() == other.keys()
    return [
        name
        for name, value in one.items()
        if not (torch.equal(value, other[name]) if torch.is_tensor(value) else value == other[name])
    ]


def run(command: Command, name: str, stops: list[int], *words: str) -> list[Done]:
    """The same command until it completes; it is stopped in these steps."""
    ran = []
    for stop in [*stops, None]:
        if stop is not None:
            (command.cwd / f"stop_{name}_{stop}").touch()
        done = command(*COMMON, f"hydra.run.dir=outputs/jobs/{name}", *words, env={"JOB": name})
        assert done.code == (0 if stop is None else 75), done.out + done.err
        ran.append(done)
    return ran


@pytest.fixture(scope="module")
def unbroken(module_command: Command) -> dict[str, dict[str, Any]]:
    """By strategy: the record and the final state."""
    (module_command.cwd / "mine.py").write_text(MODEL)
    found = {}
    for strategy in ("single", "ddp", "fsdp"):
        words = ["checkpoint=sync", f"strategy={strategy}", AT_ONCE]
        (done,) = run(module_command, strategy, [], *words)
        found[strategy] = {
            "record": job(done, strategy),
            "state": final_state(done.cwd, strategy),
        }
    return found


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_stopped_twice_it_is_the_unbroken_run(
    module_command: Command, unbroken: dict[str, dict[str, Any]], strategy: str
) -> None:
    with ThreadPoolExecutor() as beside:  # most of a job's time is its start
        jobs = [beside.submit(stopped_twice, module_command, m, strategy) for m in MODES]
        found = [job.result() for job in jobs]
    whole = unbroken[strategy]["record"]
    for mode, (second, last) in zip(MODES, found, strict=True):
        resumed = job(last, f"{mode}-{strategy}")
        for key in ("loss", "grad_norm", "final_loss", "eval_loss", "init_digest"):
            assert resumed["numerics"][key] == whole["numerics"][key], (mode, key)
        state = final_state(last.cwd, f"{mode}-{strategy}")
        assert unlike(state, unbroken[strategy]["state"]) == [], mode
        assert resumed["checkpoint"]["resumed_from"] == second + 1
        assert f"resumed from step {second + 1}" in last.out
        assert resumed["checkpoint"]["restored"]["rederived"] == []


def stopped_twice(command: Command, mode: str, strategy: str) -> tuple[int, Done]:
    """The second of two steps drawn at random, and the last of three starts."""
    name = f"{mode}-{strategy}"
    draw = np.random.default_rng([*name.encode()])
    first, second = (int(n) for n in np.sort(draw.choice(np.arange(2, STEPS - 2), 2, False)))
    words = [f"checkpoint={mode}", "checkpoint.every_steps=7", f"strategy={strategy}", AT_ONCE]
    return second, run(command, name, [first, second], *words)[-1]


def test_written_by_a_process_of_its_own(
    module_command: Command, unbroken: dict[str, dict[str, Any]]
) -> None:
    words = ["checkpoint=async", "checkpoint.stager=process", "checkpoint.every_steps=5", AT_ONCE]
    ran = run(module_command, "process", [8], *words, "strategy=ddp")
    assert job(ran[-1], "process")["checkpoint"]["resumed_from"] == 9
    assert unlike(final_state(ran[-1].cwd, "process"), unbroken["ddp"]["state"]) == []


def test_on_other_ranks_and_strategies_it_is_the_same_training(module_command: Command) -> None:
    """fsdp on 2 ranks -> single -> ddp on 3, without dropout, which each rank draws for itself."""
    (module_command.cwd / "mine.py").write_text(MODEL)
    plain = ["+model.dropout=0", "checkpoint.every_steps=7"]
    (whole,) = run(module_command, "whole", [], "checkpoint=async", *plain)
    legs = [["strategy=fsdp"], ["strategy=single"], ["strategy=ddp", "launch.nproc=3"]]
    digests, where = [], None
    for number, leg in enumerate(legs):
        end = (7, 14, STEPS)[number]
        # more steps, another strategy and another world: other jobs of the same training
        words = [*plain, *leg, "checkpoint=async", f"run.steps={end}"]
        words += [f"checkpoint.resume=outputs/jobs/leg-{number - 1}"] if where else []
        (done,) = run(module_command, f"leg-{number}", [], *words)
        where = job(done, f"leg-{number}")
        digests.append(int(where["numerics"]["samples_digest"], 16))
        assert where["checkpoint"]["resumed_from"] == (None, 7, 14)[number]
    assert where is not None
    assert where["checkpoint"]["resharded"] == {
        "from": {"world_size": 1},
        "to": {"world_size": 3},
    }
    assert where["checkpoint"]["restored"]["rederived"] == ["rng"]
    unbroken = job(whole, "whole")["numerics"]
    assert np.allclose(where["numerics"]["loss"], unbroken["loss"], rtol=1e-5)
    assert len(where["numerics"]["loss"]) == STEPS
    # each leg's samples, of its own steps: together those of the unbroken run, none twice
    assert sum(digests) % 2**64 == int(unbroken["samples_digest"], 16)


def test_strict_refuses_what_would_start_anew(module_command: Command) -> None:
    (module_command.cwd / "mine.py").write_text(MODEL)
    words = ["checkpoint=dcp", "strategy=ddp", "run.steps=8"]
    run(module_command, "two", [], *words)
    more = ["checkpoint=dcp", "checkpoint.resume=outputs/jobs/two", "checkpoint.strict=true"]
    done = module_command(
        *COMMON, *more, "hydra.run.dir=outputs/jobs/one", "strategy=single", env={"JOB": "one"}
    )
    assert done.code == 1
    assert "can't be gone on with exactly: rng would start anew" in done.out
