"""The text of a sbatch script: what a person can read, edit and submit by hand. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "slurm"
"""In a job's or a sweep's directory: scripts, their logs, and what is known of the submitted."""

PHASE, EXIT_CODE = "phase", "exit_code"
"""Files in it: how far the script came (setup, run); how the job itself says that it ended."""

MARK = "PACELINE_SUBMITTED"
"""Set in every job: what is started there submits nothing."""

COLLECTOR_MINUTES = 10

FREE_PORT = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'


@dataclass(frozen=True)
class Ask:
    """What one SLURM job is asked for. `nodes`: at least, at most. `ranks`: of a node. `slurm`: the
    checked `launch.slurm`. `directory`: of a job, or of a sweep whose cells run in turn."""

    name: str
    command: str
    directory: Path
    nodes: tuple[int, int]
    ranks: int
    workers: int
    slurm: Mapping[str, Any]
    python: str

    @property
    def elastic(self) -> bool:
        return self.nodes[0] < self.nodes[1]

    @property
    def cpus_per_task(self) -> int | None:
        """auto: as many as the ranks of a node and their loader workers."""
        asked: Any = self.slurm["cpus_per_task"]
        return self.ranks * (1 + self.workers) if asked == "auto" else asked


def job_text(ask: Ask) -> str:
    """One job: its ranks on all nodes by one controller a node."""
    started = _srun(ask, '"$directory"', '"$SLURM_JOB_NUM_NODES"')
    body = [
        *_meet(ask),
        f'rm -f "$directory/{FOLDER}/{EXIT_CODE}"',
        "code=0",
        _broken(started) + " || code=$?",
        f'if [ -s "$directory/{FOLDER}/{EXIT_CODE}" ]; then',
        f'  code=$(cat "$directory/{FOLDER}/{EXIT_CODE}")  # of node 0; srun may have lost another',
        "fi",
    ]
    return _whole(ask, body)


def allocation_text(ask: Ask) -> str:
    """A whole sweep: its cells one after the other, each started by srun."""
    words = [*_python(ask), "run", '"$directory"']
    return _whole(ask, ["code=0", f"{' '.join(words)} || code=$?"])


def collector_text(ask: Ask) -> str:
    """What makes the table once the last cell has ended."""
    lines = ["#!/bin/bash", _comment(ask.command), "# the table, once all cells have ended"]
    lines += _directives(
        {
            "job-name": f"{ask.name}-table",
            **_of_the_cluster(ask.slurm),
            "nodes": 1,
            "ntasks": 1,
            "time": COLLECTOR_MINUTES,
            "output": _log(ask.directory, "collect"),
            "open-mode": "append",
        }
    )
    lines += ["set -e -o pipefail", *ask.slurm["setup"]]
    lines.append(" ".join([*_python(ask), "status", shlex.quote(str(ask.directory)), "--wait"]))
    return "\n".join(lines) + "\n"


def cell_text(ask: Ask, nodes: int) -> str:
    """One cell inside of an allocation, for a shell; it may take fewer nodes than there are."""
    start = _broken(_srun(ask, shlex.quote(str(ask.directory)), str(nodes)))
    return "\n".join([*_meet(ask), f"exec {start}"]) + "\n"


def _meet(ask: Ask) -> list[str]:
    """Where the nodes of a step meet: the first one's name, and a port that is free there, which
    the script knows, for it runs there."""
    return [
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"port=$({' '.join(_interpreter(ask))} -c {shlex.quote(FREE_PORT)})",
    ]


def _srun(ask: Ask, directory: str, nodes: str) -> list[list[str]]:
    """One controller on each node: groups of words of a shell, one a line."""
    survives = ["--no-kill"] if ask.elastic else []
    cpus = [] if ask.cpus_per_task is None else [f"--cpus-per-task={ask.cpus_per_task}"]
    return [
        ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"],
        [*cpus, "--kill-on-bad-exit=0", *survives],
        ["bash", "-c", '\'trap "" USR2; exec "$@"\'', "paceline"],
        [*_python(ask), "run", directory, "--meet", '"$head:$port"'],
    ]


def _whole(ask: Ask, body: list[str]) -> str:
    slurm, most_requeues = ask.slurm, ask.slurm["max_requeues"]
    least, most = ask.nodes
    options: dict[str, Any] = {
        "job-name": ask.name,
        **_of_the_cluster(slurm),
        "nodes": f"{least}-{most}" if ask.elastic else most,
        # with a range of nodes it would ask for the fewest
        "ntasks-per-node": None if ask.elastic else 1,
        "cpus-per-task": ask.cpus_per_task,
        "gpus-per-node": slurm["gpus_per_node"] or None,
        "mem": slurm["mem"],
        "time": slurm["time"],
        "exclusive": slurm["exclusive"],
        "no-kill": ask.elastic,
        "output": _log(ask.directory, "%j"),
        "open-mode": "append",
        "requeue" if most_requeues else "no-requeue": True,
        "signal": f"USR2@{slurm['signal_s']}" if slurm["signal_s"] else None,
        **{name.removeprefix("--").replace("_", "-"): v for name, v in slurm["options"].items()},
    }
    lines = ["#!/bin/bash", _comment(ask.command)]
    lines += ["# written by paceline; it can be read, edited and submitted by hand: sbatch FILE"]
    lines += _directives(options)
    lines += [
        "set -e -o pipefail",
        "trap '' USR2  # a word before the end of the time: for the ranks, which save and leave",
        f"export {MARK}=1",
        f"directory={shlex.quote(str(ask.directory))}",
        "",
        f'echo setup > "$directory/{FOLDER}/{PHASE}"',
        *slurm["setup"],
        f'echo run > "$directory/{FOLDER}/{PHASE}"',
        "",
        *body,
        "",
        "# 75: preempted, all saved. Back to the queue; the same directory is gone on with",
        f'if [ "$code" -eq 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {most_requeues} ]; then',
        '  scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _of_the_cluster(slurm: Mapping[str, Any]) -> dict[str, Any]:
    return {name: slurm[name] for name in ("partition", "account", "qos", "constraint")}


def _directives(options: Mapping[str, Any]) -> list[str]:
    """One line each; True: without a value, None and False: left out."""
    lines = []
    for name, value in options.items():
        if value is not None and value is not False:
            text = "" if value is True else f"={_value(str(value))}"
            lines.append(f"#SBATCH --{name}{text}")
    return [*lines, ""]


def _value(text: str) -> str:
    """sbatch reads its lines like a shell."""
    return f'"{text}"' if any(c in text for c in " '#\\&|();<>*") else text


def _comment(text: str) -> str:
    return f"# {' '.join(text.split())}"


def _log(directory: Path, name: str) -> str:
    return f"{str(directory).replace('%', '%%')}/{FOLDER}/{name}.log"


def _python(ask: Ask) -> list[str]:
    return [*_interpreter(ask), "-m", "paceline"]


def _interpreter(ask: Ask) -> list[str]:
    prefix = [ask.slurm["prefix"]] if ask.slurm["prefix"] else []
    return [*prefix, shlex.quote(ask.python)]


def _broken(groups: list[list[str]]) -> str:
    return " \\\n  ".join(" ".join(words) for words in groups)
