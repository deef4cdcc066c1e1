"""SLURM's commands: the only place that runs them. What they refuse, in our words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from paceline.types import ConfigError

TIMEOUT_S = 60
AT_ONCE = 200
"""Jobs that one command is asked about."""

PREFIXES = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
"""Variables that change what the commands do: a job's own, or a person's taste."""

SQUEUE = ("JobArrayID", "State", "Reason", "NodeList", "RestartCnt", "exit_code", "StartTime")
SACCT = ("JobID", "State", "Reason", "NodeList", "ExitCode", "Start")
"""What is asked of each job, in this order; state.py reads it. Both end a field by `|`."""

UNAVAILABLE = "Requested node configuration is not available"
"""Said of what a partition can never give, and of nodes that are merely down."""

LARGE = f"{UNAVAILABLE}|node count"

REFUSALS = {
    r"accounting/qos policy|qos.*limit|assoc.*limit": (
        "launch.slurm.qos",
        "ask for less, or wait until fewer of your jobs are queued",
    ),
    r"invalid account": ("launch.slurm.account", "name one that you may use"),
    r"invalid qos": ("launch.slurm.qos", "name one that your account has"),
    r"invalid feature|constraint": ("launch.slurm.constraint", "name a feature that nodes have"),
    r"time limit|--time spec": ("launch.slurm.time", "give minutes or D-HH:MM:SS, up to the limit"),
    r"gres\b|gpus": ("launch.slurm.gpus_per_node", "ask for what the partition's nodes have"),
    r"memory": ("launch.slurm.mem", "ask for at most what a node of the partition has"),
    r"node count|more processors|cpu count": ("launch.nnodes", "ask for fewer nodes or cpus"),
    r"dependency": ("launch.slurm.dependency", "name a job that there is, as afterok:123"),
    r"option|specification|invalid": ("launch.slurm.options", "correct it, or leave it out"),
}
"""Of SLURM's words, any case -> the key to change, and how."""

SILENT = (
    r"unable to contact|timed out|zero bytes|connection refused|connect failure|cannot stat|"
    r"configuration source"
)
"""The words of a command that reached no cluster."""


def sbatch(script: Path, dependency: str | None, test_only: bool) -> str:
    """Submit a script: the id of its job, "" under `test_only`, which submits nothing.

    Raises ConfigError. `test_only` refuses more than submitting does: SLURM takes jobs larger than
    a partition and lets them wait for ever. Nodes that are down are waited for, so no refusal.
    """
    after = [] if dependency is None else [f"--dependency={dependency}"]
    only = ["--test-only"] if test_only else []
    code, out, err = _run(["sbatch", "--parsable", *only, *after, str(script)])
    if code == 0:
        return out.strip().partition(";")[0]
    problem = _too_large(script, err) if re.search(LARGE, err, re.IGNORECASE) else refusal(err)
    if problem is None and test_only and UNAVAILABLE in err:
        return ""
    raise ConfigError([problem or refusal(err)])


def squeue(ids: Iterable[str]) -> str:
    """A line for each of these jobs that the controller still knows, also if over: fields SQUEUE.
    Raises ConfigError when there is no squeue, or no answer."""
    fields = ",".join(f"{name}:|" for name in SQUEUE)
    found = []
    for some in _chunks(ids):
        code, out, err = _run(["squeue", "-h", "-t", "all", "-j", ",".join(some), "-O", fields])
        # said of a single unknown id; of several, those that are unknown are left out
        if code and "Invalid job id" not in err:
            raise ConfigError([_failed("squeue", err)])
        found.append(out)
    return "".join(found)


def sacct(ids: Iterable[str]) -> str | None:
    """A line for each time that each of these jobs was started, oldest first: fields SACCT. None on
    a cluster without accounting. Raises ConfigError when it can't be asked now."""
    found = []
    for some in _chunks(ids):
        words = ["sacct", "-D", "-X", "-P", "-n", "-j", ",".join(some), "--format", ",".join(SACCT)]
        if shutil.which(words[0]) is None:
            return None
        code, out, err = _run(words)
        if "accounting storage is disabled" in err:
            return None
        if code:
            raise ConfigError([_failed("sacct", err)])
        found.append(out)
    return "".join(found)


def scancel(ids: Iterable[str]) -> None:
    """End these jobs; those that are over already are left alone. Raises ConfigError."""
    for some in _chunks(ids):
        code, _, err = _run(["scancel", *some])
        if code and "already completing" not in err:
            raise ConfigError([_failed("scancel", err)])


def partitions() -> list[str]:
    """Their names, the default first. Raises ConfigError."""
    return [name for name, _, _ in sorted(_partitions(), key=lambda p: not p[1])]


def _partitions() -> Iterator[tuple[str, bool, tuple[int, int]]]:
    """Name, is it the default, (nodes that are down or drained, nodes in all)."""
    code, out, err = _run(["sinfo", "-h", "-o", "%P|%F"])
    if code:
        raise ConfigError([_failed("sinfo", err)])
    for line in out.splitlines():
        name, _, counts = line.strip().partition("|")
        numbers = counts.split("/")
        if len(numbers) == 4 and all(n.isdigit() for n in numbers):
            yield name.rstrip("*"), name.endswith("*"), (int(numbers[2]), int(numbers[3]))


def _run(words: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error. Raises ConfigError without the command or after
    TIMEOUT_S."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(PREFIXES) or k == "SLURM_CONF"}
    try:
        done = subprocess.run(
            words,
            env=kept | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except OSError as error:
        raise ConfigError(
            [
                f"{words[0]}: not found; is this a machine that may submit to SLURM? "
                "hydra/launcher=local runs here"
            ]
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError([_failed(words[0], f"timed out after {TIMEOUT_S} s")]) from error
    return done.returncode, done.stdout, done.stderr


def _chunks(ids: Iterable[str]) -> Iterator[list[str]]:
    left = list(dict.fromkeys(ids))
    for start in range(0, len(left), AT_ONCE):
        yield left[start : start + AT_ONCE]


def refusal(err: str) -> str:
    """Why sbatch took no job, from what it wrote: key, way out, its own words."""
    if re.search(SILENT, err, re.IGNORECASE):
        return _failed("sbatch", err)
    if re.search("partition", err, re.IGNORECASE) and not re.search("account", err, re.IGNORECASE):
        there = ", ".join(partitions())
        return f"launch.slurm.partition: SLURM takes none like this; there are {there} {_said(err)}"
    for pattern, (key, way) in REFUSALS.items():
        if re.search(pattern, err, re.IGNORECASE):
            return f"{key}: SLURM refuses it; {way} {_said(err)}"
    return f"sbatch takes no job; see its script and `sbatch --test-only` {_said(err)}"


def _too_large(script: Path, err: str) -> str | None:
    """What the partition can never give; None if that can't be told from nodes that are down."""
    known = {name: (default, counts) for name, default, counts in _partitions()}
    asked = dict(re.findall(r"^#SBATCH --(partition|nodes)=(\S+)", script.read_text(), re.M))
    name = asked.get("partition") or next((n for n, (default, _) in known.items() if default), None)
    if name not in known:
        return None  # several, or none by default
    down, total = known[name][1]
    nodes = int(asked.get("nodes", "1").partition("-")[0])
    if nodes > total:
        return (
            f"launch.nnodes={nodes}: partition {name} has {total}; ask for fewer nodes, or name "
            f"another launch.slurm.partition {_said(err)}"
        )
    if down:
        return None
    return (
        f"partition {name} has {total} nodes, but none like that; ask for less: "
        "launch.slurm.cpus_per_task, gpus_per_node, mem or constraint, or name another "
        f"launch.slurm.partition {_said(err)}"
    )


def _failed(command: str, err: str) -> str:
    if re.search(SILENT, err, re.IGNORECASE):
        return (
            f"{command}: SLURM's controller does not answer; wait for it and type the same again, "
            f"or hydra/launcher=local runs here {_said(err)}"
        )
    return f"{command} failed {_said(err)}"


def _said(err: str) -> str:
    """SLURM's own words: the last two lines, of which one has the reason."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return f"[{'; '.join(lines[-2:]) or 'it said nothing'}]"
