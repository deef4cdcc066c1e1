"""What a job costs beside its training: paceline's sweep against `torchrun script.py`.

    python benchmarks/job_overhead.py [--rounds N] [--repeats K] [--steps S] [--json FILE]

The job: a small MLP on made-up data, a few steps, 1 rank without and 2 ranks with DDP on gloo, one
thread a rank. Each round runs, one after the other,

- `torchrun --standalone --nproc-per-node=N plain_job.py`, K times with N=1 and with N=2. Overhead:
  the wall time of the command less that of the script's step loop, which it prints;
- one sweep, `paceline -m repeat=range(K) strategy=single,ddp ...`. Overhead of a job, from the
  second on: the time from its start to the start of the next one, less its training steps
  (`step_s` in steps.npz). A start is when the job's directory was claimed: the modification time
  of its .lock. Between two starts lie all of the job's own work, its record, its row, and Hydra's
  files of the next one. The last job of a sweep has no next one and is left out;
- what precedes the first start, composing and checking all cells: `plan=true` does that and no
  more. Its wall time with many cells less that with two, a cell, is added to each of paceline's.

Reported: medians, the ratio of the medians of a round (median over rounds, Student's t interval of
their geometric mean), and what the first job and the whole sweep cost, with python's start and the
table at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from paceline.record.measure import t_interval

TARGET = 0.25
RANKS = {"single": 1, "ddp": 2}
PLANNED_CELLS = 40
PLAIN_JOB = Path(__file__).with_name("plain_job.py")
JOB = [
    "model=mlp",
    "data=synthetic",
    "scheduler=constant",
    "launch.threads_per_rank=1",
    "measure.window_s=0",
    "measure.warmup_steps=2",
    "run.eval_batches=0",
    "run.device=cpu",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="overhead of a job: paceline and torchrun")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="of both jobs in a round, 2 or more")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error(f"--repeats {args.repeats}: a sweep needs 2 or more to have a second job")
    rounds = [one_round(args.repeats, args.steps, n, args.rounds) for n in range(args.rounds)]
    result = {"rounds": args.rounds, "rows": [row(n, rounds) for n in RANKS.values()]}
    result |= {
        "first_job_s": statistics.median(r["first_job_s"] for r in rounds),
        "sweep_overhead_a_job_s": statistics.median(r["sweep_a_job_s"] for r in rounds),
        "compose_s": statistics.median(r["compose_s"] for r in rounds),
        "phases_s": phases(rounds),
    }
    print_result(result, 2 * args.repeats)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def one_round(repeats: int, steps: int, number: int, rounds: int) -> dict[str, Any]:
    torchrun: dict[int, list[float]] = {n: [] for n in RANKS.values()}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(repeats):
            for ranks in RANKS.values():
                torchrun[ranks].append(by_torchrun(ranks, steps, directory))
        sweep = by_sweep(repeats, steps, Path(directory))
        compose_s = planned(steps, PLANNED_CELLS, directory) - planned(steps, 2, directory)
    print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return sweep | {"torchrun": torchrun, "compose_s": compose_s / (PLANNED_CELLS - 2)}


def by_torchrun(ranks: int, steps: int, directory: str) -> float:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    wall, output = timed([*launch, str(PLAIN_JOB), str(steps)], directory)
    loop = re.search(r"loop_s ([\d.]+)", output)
    assert loop, output
    return wall - float(loop[1])


def by_sweep(repeats: int, steps: int, directory: Path) -> dict[str, Any]:
    sweep = directory / "sweep"
    swept = [f"repeat=range({repeats})", f"strategy={','.join(RANKS)}", f"run.steps={steps}"]
    command = ["-m", "paceline", "-m", *swept, *JOB, f"hydra.sweep.dir={sweep}"]
    wall, output = timed(command, str(directory))
    cells = [cell(path.parent) for path in sweep.glob("*/result.json")]
    cells.sort(key=lambda one: one["start"])
    assert len(cells) == repeats * len(RANKS), output
    for this, following in itertools.pairwise(cells):
        this["overhead_s"] = following["start"] - this["start"] - this["steps_s"]
    return {
        "cells": cells[1:-1],
        "first_job_s": cells[0]["overhead_s"],
        "sweep_a_job_s": (wall - sum(one["steps_s"] for one in cells)) / len(cells),
    }


def cell(directory: Path) -> dict[str, Any]:
    record = json.loads((directory / "result.json").read_text())
    assert record["status"]["state"] == "completed", record["status"]
    with np.load(directory / "steps.npz") as steps:
        steps_s = float(steps["step_s"].sum())
    return {
        "start": os.stat(directory / ".lock").st_mtime_ns / 1e9,
        "ranks": record["requested"]["world_size"],
        "steps_s": steps_s,
        "phases_s": record["ledger"]["phases_s"],
    }


def planned(steps: int, cells: int, directory: str) -> float:
    swept = [f"repeat=range({cells // 2})", "strategy=single,ddp", f"run.steps={steps}"]
    where = f"hydra.sweep.dir={directory}/planned"
    return timed(["-m", "paceline", "-m", *swept, *JOB, "plan=true", where], directory)[0]


def timed(arguments: list[str], directory: str) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wall = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
    return wall, done.stdout


def row(ranks: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    ours, theirs = [], []
    for one in rounds:
        jobs = [c["overhead_s"] for c in one["cells"] if c["ranks"] == ranks]
        ours.append(statistics.median(jobs) + one["compose_s"])
        theirs.append(statistics.median(one["torchrun"][ranks]))
    ratios = np.array(ours) / np.array(theirs)
    interval = t_interval(np.log(ratios))
    bounds = (interval.low, interval.high)
    return {
        "ranks": ranks,
        "torchrun_s": statistics.median(theirs),
        "paceline_s": statistics.median(ours),
        "ratio": float(np.median(ratios)),
        "ci95": [None if bound is None else math.exp(bound) for bound in bounds],
        "target": TARGET,
    }


def phases(rounds: list[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Medians, by ranks, of what the record says of the time outside the steps."""
    found = {}
    for ranks in RANKS.values():
        cells = [c["phases_s"] for r in rounds for c in r["cells"] if c["ranks"] == ranks]
        names = ("startup", "build", "evaluate", "finish", "other")
        found[ranks] = {n: statistics.median(c[n] or 0.0 for c in cells) for n in names}
    return found


def print_result(result: dict[str, Any], cells: int) -> None:
    print(f"\n### Overhead of a job, from the second of a sweep on: {result['rounds']} rounds\n")
    print("| ranks | torchrun s | paceline s | ratio | 95 %          | target |")
    print("|------:|-----------:|-----------:|------:|---------------|--------|")
    for one in result["rows"]:
        low, high = one["ci95"]
        interval = "" if low is None else f"{low:.3f} - {high:.3f}"
        print(
            f"| {one['ranks']:5} | {one['torchrun_s']:10.2f} | {one['paceline_s']:10.2f} "
            f"| {one['ratio']:5.3f} | {interval:13} | {one['target']:.2f}   |"
        )
    print(f"\nof paceline's, composing and checking the cell: {result['compose_s']:.3f} s")
    for ranks, spans in result["phases_s"].items():
        listed = ", ".join(f"{name} {seconds:.3f}" for name, seconds in spans.items())
        print(f"by the record, {ranks} ranks, seconds: {listed}")
    print(
        f"the first job of a sweep: {result['first_job_s']:.2f} s; a sweep of {cells} jobs, all in "
        f"all, beside its steps: {result['sweep_overhead_a_job_s']:.2f} s a job"
    )


if __name__ == "__main__":
    main()
