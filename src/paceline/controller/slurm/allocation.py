"""A whole sweep inside of one allocation: on its first node, each cell by srun, in turn."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rich.console import Console

from paceline.controller.directory import finished
from paceline.controller.frozen import read_job
from paceline.controller.job import outcome
from paceline.controller.plan import Job
from paceline.controller.slurm import script, settle
from paceline.controller.slurm.book import read_book
from paceline.controller.slurm.submit import ask_of
from paceline.controller.turns import Turns, in_turn
from paceline.record.schema import read_json
from paceline.report import terminal
from paceline.types import ConfigError, Failed


def run_sweep(sweep_dir: Path) -> None:
    """Run what is missing of a submitted sweep. Raises Interrupted when a cell was told to stop,
    ConfigError outside of a job of SLURM."""
    nodes, book = os.environ.get("SLURM_JOB_NUM_NODES"), read_book(sweep_dir)
    if nodes is None or book is None:
        raise ConfigError(
            [f"{sweep_dir}: its cells run in turn in a job of SLURM; submit its slurm/sweep.sh"]
        )
    jobs = [read_job(entry.cell) for entry in book.entries]
    missing = [job for job in jobs if finished(job.directory) is None]
    console = terminal.screen()
    turns = Turns(
        jobs,
        [job for job in missing if job.nudge is None],
        [job for job in missing if job.nudge is not None],
    )
    on_failure = jobs[0].config["sweep"]["on_failure"]
    in_turn(turns, on_failure, console, run=lambda job, console: _by_srun(job, int(nodes), console))


def _by_srun(job: Job, nodes: int, console: Console) -> float | Failed:
    ask = ask_of(job)
    text = script.cell_text(ask, min(nodes, ask.nodes[1]))
    code = subprocess.run(["bash", "-c", text], check=False).returncode
    record = read_json(job.directory / "result.json")
    if record is None:
        log = f"{script.FOLDER}/{os.environ['SLURM_JOB_ID']}.log of the sweep"
        record = settle.typed(job, "start", f"srun ended with exit code {code}; see {log}")
        console.print(record["status"]["message"], markup=False, highlight=False, soft_wrap=True)
    return outcome(record, job)
