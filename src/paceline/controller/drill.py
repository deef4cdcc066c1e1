"""`paceline checkpoint drill`: does this checkpoint really bring the training back?

A job's checkpoint is restored in clean ranks, as many as saved it and another number. What they
hold is compared with a plain reading of the files, and their next steps with the uninterrupted
training.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.checkpoint import shelf
from paceline.controller.adopt import adopted
from paceline.controller.certificate import FAILED, show, verdict_of
from paceline.controller.directory import FROZEN
from paceline.controller.drilling import Drill
from paceline.controller.frozen import read_job
from paceline.controller.job import now
from paceline.controller.launch import stop_forkserver
from paceline.controller.plan import Job
from paceline.controller.session import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    Interrupted,
    stoppable,
)
from paceline.record.schema import write_json
from paceline.report.kept import check
from paceline.report.terminal import screen
from paceline.types import CheckpointError, ConfigError

SCHEMA = 1
CERTIFICATE = "drill.json"


def run(argv: list[str]) -> int:
    """The exit code: 0 passed or partial, 1 failed, 2 nothing can be drilled, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="paceline checkpoint drill",
        description="Restore a checkpoint in clean processes and hold it to the training it is of.",
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        help="a job, its checkpoint folder, or one checkpoint",
    )
    parser.add_argument(
        "--steps", type=_positive, default=5, help="optimizer steps that are compared (5)"
    )
    parser.add_argument(
        "--world",
        type=_positive,
        metavar="RANKS",
        help="the other number of ranks (1; 2 where one rank saved)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the runs of the drill")
    parser.add_argument("--json", action="store_true", help="print the certificate, nothing else")
    try:
        return _run(parser.parse_args(argv))
    except SystemExit as end:  # argparse has said what is wrong, or printed its help
        return end.code if isinstance(end.code, int) else EXIT_OK
    except (ConfigError, CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except Interrupted:
        print(
            "interrupted: the runs of the drill are removed, nothing is certified", file=sys.stderr
        )
        return EXIT_INTERRUPTED


def _run(asked: argparse.Namespace) -> int:
    if adopted():
        raise ConfigError(["a drill starts its ranks itself: run it without a launcher around it"])
    paths = shelf.find(asked.directory.absolute())
    directory = _job_of(paths[-1])
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where the job found a user's own classes
    console = Console(quiet=True) if asked.json else screen()
    with _held(directory), stoppable():  # outside of the runs, which take signals themselves
        made = _certificate(read_job(directory), paths, asked, console)
        write_json(directory / CERTIFICATE, made)
    if asked.json:
        print((directory / CERTIFICATE).read_text(), end="")
    else:
        show(made, directory / CERTIFICATE, console)
    return EXIT_FAILED if made["verdict"] == FAILED else EXIT_OK


def _certificate(
    job: Job, paths: list[Path], asked: argparse.Namespace, console: Console
) -> dict[str, Any]:
    """`paths`: the newest one that is whole is drilled."""
    path, manifest, damaged = _newest_good(paths)
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "job": job.name,
        "checkpoint": None,
        "step": None,
        "verified_bytes": None,
        "damaged": damaged,
        "runs": [],
        "reasons": [],
        "verdict": FAILED,
        "logs": None,
        "when": now(),
        "versions": _versions(),
    }
    if path is None or manifest is None:
        return made
    made |= {
        "checkpoint": str(path.relative_to(job.directory)),
        "step": manifest.step,
        "verified_bytes": manifest.size,
        "format": manifest.format,
        "saved_by": manifest.world["world_size"],
    }
    with _place(job.directory, asked.keep) as place:
        drill = Drill(job, path, manifest.world["world_size"], asked.steps, place, console)
        made["runs"], made["reasons"] = drill.run(asked.world)
        if not damaged:
            made["verdict"] = verdict_of(made["runs"], made["reasons"])
        failed = made["verdict"] == FAILED
        made["logs"] = str(place) if failed or asked.keep else None
        _tidy(place, asked.keep, failed)
    return made


def _newest_good(
    paths: list[Path],
) -> tuple[Path | None, shelf.Manifest | None, list[str]]:
    """All bytes of the newest that is whole are what was written; what is wrong with newer ones."""
    damaged: list[str] = []
    for path in reversed(paths):
        wrong = check(path).problems
        if not wrong:
            return path, shelf.read_manifest(path), damaged
        damaged += wrong
    return None, None, damaged


def _job_of(path: Path) -> Path:
    """The directory of the job that a checkpoint is of. Raises ConfigError."""
    for directory in path.parents[:3]:
        if (directory / FROZEN).exists():
            return directory
    raise ConfigError(
        [
            f"{path} isn't in the directory of a job: there is no {FROZEN} above it; a drill "
            "starts that job, so give a directory that has both"
        ]
    )


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Keep the job from being started meanwhile, writing nothing into its directory. Raises
    ConfigError when it runs."""
    try:
        descriptor = os.open(directory / ".lock", os.O_RDONLY)
    except FileNotFoundError:  # a copy of a job
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            [f"{directory} is in use by a running paceline; wait for it, or drill a copy"]
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _place(directory: Path, keep: bool) -> Iterator[Path]:
    """A new DIR/drill/NNN for the runs; whatever breaks them, no process and no file is left."""
    runs = directory / "drill"
    runs.mkdir(exist_ok=True)
    number = max((int(p.name) for p in runs.iterdir() if p.name.isdigit()), default=0) + 1
    place = runs / f"{number:03d}"
    place.mkdir()
    try:
        yield place
    except BaseException:
        _tidy(place, keep, failed=False)
        raise
    finally:
        stop_forkserver()


def _tidy(place: Path, keep: bool, failed: bool) -> None:
    """Only the logs of a failed drill stay."""
    if keep:
        return
    for path in place.iterdir() if failed else ():
        for part in path.iterdir():
            if part.name != "log":
                shutil.rmtree(part) if part.is_dir() else part.unlink()
    if not failed:
        shutil.rmtree(place)
    if not any(place.parent.iterdir()):
        place.parent.rmdir()


def _versions() -> dict[str, str]:
    import torch

    return {"torch": str(torch.__version__), "python": platform.python_version()}


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: give 1 or more")
    return value
