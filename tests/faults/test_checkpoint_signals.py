"""Told to stop in each phase, one rank or all: after the same step, saved, and it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.victim import torn
from tests.conftest import TINY, Command

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

MINE = '''
import os, time
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from paceline.data.digits import Digits

RANK = os.environ.get("RANK")
SLOW = Path("slow").exists()


@dataclass(frozen=True)
class Late(Digits):
    """Each micro-batch comes late."""

    def open(self, context):
        found = super().open(context)
        timely = found.batches

        def late(first_step):
            for batch in timely(first_step):
                Path("waits").touch()
                time.sleep(0.4 * SLOW)
                yield batch

        found.batches = late
        return found


class Model(nn.Sequential):
    def __init__(self, inputs, hidden, outputs):
        layers = [nn.Linear(inputs, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], hidden[1])]
        super().__init__(*layers, nn.Linear(hidden[1], outputs))
        if RANK is not None:
            Path(f"rank{RANK}.pid").write_text(str(os.getpid()))

    def forward(self, x):
        time.sleep(0.05 * SLOW)
        return super().forward(x)
'''
"""Slow as long as there is a file `slow`, so that what goes on is not."""

JOB = [
    *TINY,
    "model._target_=mine.Model",
    "run.steps=40",
    "strategy=ddp",
    "launch.nproc=2",
    "launch.threads_per_rank=1",
    "launch.stop_grace_s=100",  # a cold compilation is waited for, on a busy machine too
    "hydra.run.dir=job",
]
BIG = ["optimizer=adamw", "model.hidden=[2048,2048]", "checkpoint.every_steps=3"]
"""50 MiB of state."""


@dataclass(frozen=True)
class Case:
    """`began`: a file, or a pattern of one, that says that the phase is on; or LOADED. `to`: rank 1
    alone, or the whole process group."""

    began: str
    to: str
    number: signal.Signals
    checkpoint: Sequence[str]
    words: Sequence[str] = ()
    delay_s: float = 0.0


LOADED = "loaded"
"""Says the log of rank 1: building is over, and the first step begins."""

SAVING = "job/checkpoint/.staging/step_*"
CASES = {
    "data wait": Case(
        "waits",
        "rank",
        signal.SIGUSR1,
        ["checkpoint=sync"],
        ["data._target_=mine.Late", "data.loader.num_workers=0"],
        1.0,
    ),
    "compile, all": Case(
        LOADED,
        "group",
        signal.SIGTERM,
        ["checkpoint=sync"],
        ["compile=inductor", "compile.cache=cold"],
        0.5,
    ),
    "warm-up, all": Case("job/log/progress.json", "group", signal.SIGUSR1, ["checkpoint=dcp"]),
    "sync save": Case(SAVING, "rank", signal.SIGTERM, ["checkpoint=sync", *BIG]),
    "dcp save, all": Case(SAVING, "group", signal.SIGTERM, ["checkpoint=dcp", *BIG]),
    "async in flight": Case(SAVING, "rank", signal.SIGTERM, ["checkpoint=async", *BIG]),
    "async in flight by a process, all": Case(
        SAVING, "group", signal.SIGTERM, ["checkpoint=async", "checkpoint.stager=process", *BIG]
    ),
}


def on(cwd: Path, began: str) -> bool:
    if began == LOADED:
        log = cwd / "job/log/rank1.log"
        return log.exists() and "fresh start" in log.read_text()
    folder, name = cwd / Path(began).parent, Path(began).name
    return folder.exists() and any(
        re.fullmatch(name.replace("*", ".*"), n) for n in os.listdir(folder)
    )


@pytest.mark.parametrize("phase", CASES)
def test_a_signal_in_each_phase(command: Command, until: Callable[..., None], phase: str) -> None:
    case, cwd = CASES[phase], command.cwd
    (cwd / "mine.py").write_text(MINE)
    (cwd / "slow").touch()
    words = [*JOB, *case.words, *case.checkpoint]
    process = command.start(*words)
    until(lambda: on(cwd, case.began) or process.poll() is not None)
    time.sleep(case.delay_s)
    if case.to == "group":
        os.killpg(process.pid, case.number)
    else:
        os.kill(int((cwd / "rank1.pid").read_text()), case.number)
    done = command.wait(process)
    assert done.code == 75, done.out + done.err
    assert "Traceback" not in done.out + done.err
    command.assert_nothing_left(within_s=5)

    status = json.loads((cwd / "job/status.json").read_text())["status"]
    assert status["state"] == "preempted"
    said = [
        re.findall(r"stopped by (\w+) after step (\d+)", (cwd / f"job/log/rank{n}.log").read_text())
        for n in (0, 1)
    ]
    assert said[0] == said[1] and len(said[0]) == 1, said
    ((name, step),) = said[0]
    assert name == case.number.name
    assert 0 < int(step) < 40
    places = sorted((cwd / "job/checkpoint").glob("step_*"))
    assert places[-1].name == f"step_{int(step):08d}"
    assert [wrong for place in places for wrong in torn(place)] == []
    record: dict[str, Any] = json.loads((cwd / "job/result.json").read_text())
    assert {save["state"] for save in record["checkpoint"]["saves"]} == {"committed"}

    (cwd / "slow").unlink()
    again = command(*words)
    assert again.code == 0, again.out + again.err
    assert f"resumed from step {step}" in again.out
    record = json.loads((cwd / "job/result.json").read_text())
    assert record["checkpoint"]["resumed_from"] == int(step)
    assert len(record["numerics"]["loss"]) == 40
    assert not record["checkpoint"]["restored"]["bad"]
