"""`paceline run DIR`: a job, or a sweep, where it was planned: what the nodes of a cluster do."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from paceline.controller import launch
from paceline.controller.frozen import read_job
from paceline.controller.job import run_job
from paceline.controller.plan import on_this_node
from paceline.controller.refusal import print_problems
from paceline.controller.rules.nodes import node_counts
from paceline.controller.session import EXIT_CONFIG, SESSION, Interrupted, stoppable
from paceline.controller.slurm import script
from paceline.report import terminal
from paceline.types import ConfigError


def run(argv: list[str]) -> int:
    """The exit code: that of the job, or the worst of the sweep's."""
    parser = argparse.ArgumentParser(
        prog="paceline run", description="Run a job as its job.yaml says, on this node."
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="of a job, or of a sweep")
    parser.add_argument("--meet", metavar="HOST:PORT", help="where the nodes of the job meet")
    try:
        asked = parser.parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    code = _run(asked.directory, asked.meet)
    folder = asked.directory / script.FOLDER
    if os.environ.get("SLURM_NODEID", "0") == "0" and folder.is_dir():
        (folder / script.EXIT_CODE).write_text(f"{code}\n")
    return code


def _run(directory: Path, endpoint: str | None) -> int:
    try:
        with stoppable():
            if (directory / "sweep.json").exists():
                from paceline.controller.slurm import allocation

                allocation.run_sweep(directory)
            else:
                job = read_job(directory)
                several = node_counts(job.config)[1] > 1
                run_job(on_this_node(job, endpoint if several else None), terminal.screen())
    except ConfigError as error:
        print_problems(error.problems)
        return EXIT_CONFIG
    except Interrupted:
        SESSION.states += [] if SESSION.states else ["interrupted"]
    finally:
        SESSION.held.close()
        launch.stop_forkserver()
    return SESSION.exit_code()
