"""`paceline doctor`: is this machine fit for training, how fast is each part of it, and what is the
way out where it isn't."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.controller.adopt import adopted
from paceline.controller.doctor import collectives, disk, host, loader, toolchain
from paceline.controller.launch import stop_forkserver
from paceline.controller.session import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    Interrupted,
    stoppable,
)
from paceline.report.doctor import Findings
from paceline.report.terminal import screen
from paceline.types import ConfigError


def run(argv: list[str]) -> int:
    """The exit code: 0 all that is needed is there, 1 something isn't, 2 bad arguments, 130
    interrupted."""
    parser = argparse.ArgumentParser(
        prog="paceline doctor",
        description="Measure what training needs of this machine, or of the ranks of the launcher "
        "around it (torchrun): each line is ok, slow or missing, with the way out.",
    )
    parser.add_argument(
        "--nproc", type=_positive, metavar="N", help="ranks that talk (devices, else 2)"
    )
    parser.add_argument("--dir", type=Path, default=Path(), help="where the disk is measured (.)")
    parser.add_argument("--wait", type=_positive, default=30, metavar="S",
                        help="seconds that ranks wait for each other to come (30)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer sizes, shorter measurements")
    parser.add_argument("--json", action="store_true", help="print one object, nothing else")
    try:
        asked = parser.parse_args(argv)
        with stoppable():
            return _run(asked)
    except SystemExit as end:  # argparse has said what is wrong, or printed its help
        return end.code if isinstance(end.code, int) else EXIT_OK
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except Interrupted:
        print("interrupted: what wasn't measured isn't known", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        stop_forkserver()


def _run(asked: argparse.Namespace) -> int:
    problems = []
    if adopted() and asked.nproc is not None:
        problems.append(f"--nproc {asked.nproc}: the ranks are those of the launcher; leave it out")
    if not asked.dir.is_dir():
        problems.append(f"--dir {asked.dir}: there is no such directory; make it, or give another")
    if problems:
        raise ConfigError(problems)
    if adopted() and os.environ["RANK"] != "0":
        collectives.between_launched(asked.quick, asked.wait)
        return EXIT_OK  # rank 0 says how it went
    console = Console(quiet=True) if asked.json else screen()
    found = Findings(console)
    _measure(asked, found, console)
    if asked.json:
        print(json.dumps(found.as_json(), indent=1, allow_nan=False))
    found.end()
    return EXIT_OK if found.fine else EXIT_FAILED


def _measure(asked: argparse.Namespace, found: Findings, console: Console) -> None:
    found.add("packages", host.packages_facts())
    cores = host.cores_facts(alone=not adopted())
    found.add("cores", cores)
    limits = host.limits_facts() | _in_flight(cores["usable"])
    found.add("limits", limits)
    if adopted():  # the other ranks are waiting
        _all_reduce(collectives.of_launcher().world_size, asked, found, console)
    found.add("slurm", host.slurm_facts())
    with console.status("importing torch"):
        torch = toolchain.torch_facts()
    found.add("torch", torch)
    if torch["error"] is None:
        if not adopted():
            _all_reduce(asked.nproc or len(torch["devices"]) or 2, asked, found, console)
        with console.status("compiling a small graph"):
            compiler = toolchain.compiler_facts()
        found.add("compiler", compiler)
        with console.status("loading batches"):
            room = limits["shared_free_bytes"]
            loading = loader.loader_facts(cores["usable"], asked.quick, room)
        found.add("loader", loading)
    with console.status(f"writing to {asked.dir.absolute()}"):
        written = disk.disk_facts(asked.dir.absolute(), asked.quick)
    found.add("disk", written)


def _all_reduce(ranks: int, asked: argparse.Namespace, found: Findings, console: Console) -> None:
    if ranks == 1:
        found.add("collectives", {"world_size": 1, "rows": [], "error": None})
        return
    with console.status(f"all-reduce between {ranks} ranks"):
        if adopted():
            facts = collectives.between_launched(asked.quick, asked.wait)
        else:
            facts = collectives.between_own(ranks, asked.quick, asked.wait)
    found.add("collectives", facts)


def _in_flight(workers: int) -> dict[str, Any]:
    """What the loader's measurement takes with so many workers: a batch is one tensor, and so one
    file while it is on its way; a worker holds three pipes."""
    batches = loader.in_flight_bytes(workers) // loader.BATCH_BYTES
    return {
        "workers": workers,
        "batch_bytes": loader.BATCH_BYTES,
        "in_flight_bytes": loader.in_flight_bytes(workers),
        "in_flight_files": batches + 6 * workers,
    }


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: give 1 or more")
    return value
