"""The sub-commands that read finished work: compare, report, status. They import no torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.text import Text

from paceline.compare import pairs
from paceline.compare import table as tables
from paceline.compare.columns import figure
from paceline.record.schema import RAN, read_json
from paceline.report import terminal
from paceline.types import ConfigError

OK, BAD_INPUT, HELD, LEFT = 0, 2, 3, 130


@dataclass(frozen=True)
class Submitted:
    """Jobs of a directory that went to a cluster. `cells`: name -> id, word, reason, nodes, since,
    restarts, state, step, steps, units_per_s, and in words where it `says` that it is. `note`: why
    the cluster could not be asked. `over`: each has its last word."""

    cells: dict[str, dict[str, Any]]
    note: str | None
    over: bool


class Cluster(Protocol):
    """The controller's side of `status`, which reports don't import."""

    def look(self, directory: Path) -> Submitted | None: ...

    def wait(self, directory: Path) -> None: ...

    def table(self, directory: Path) -> None: ...


def compare(argv: list[str]) -> int:
    """`compare DIR...`: one table over jobs and sweeps. Exit code 3 when --fail-if held."""
    parser = argparse.ArgumentParser(
        prog="paceline compare", description="Rank finished jobs against a baseline."
    )
    parser.add_argument("directories", metavar="DIR", nargs="+", type=Path, help="job or sweep")
    parser.add_argument("--baseline", metavar="NAME", help="a cell's name, hash, or a job's name")
    parser.add_argument(
        "--fail-if", choices=["slower"], help="exit with 3 if a cell's verdict is this"
    )
    parser.add_argument(
        "--force", action="store_true", help="rank over different machines and versions too"
    )
    _add_json(parser)
    return answered(parser, argv, _compare)


def report(argv: list[str]) -> int:
    """`report DIR`: a job or a sweep, explained again from its files."""
    parser = argparse.ArgumentParser(
        prog="paceline report", description="Explain a job, or a sweep, from its files."
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="job or sweep")
    _add_json(parser)
    return answered(parser, argv, _report)


def status(argv: list[str], cluster: Cluster | None = None) -> int:
    """`status DIR`: a line for each job, also while it runs. What went to `cluster` is asked there,
    and its table shown when all of it is over. Exit code 130 when --wait was interrupted."""
    parser = argparse.ArgumentParser(
        prog="paceline status", description="How far each job of a sweep is."
    )
    parser.add_argument("directory", metavar="SWEEP_DIR", type=Path, help="sweep or job")
    parser.add_argument(
        "--wait", action="store_true", help="until all that was submitted to a cluster is over"
    )
    _add_json(parser)
    return answered(parser, argv, lambda asked: _status(asked, cluster))


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def answered(
    parser: argparse.ArgumentParser,
    argv: list[str],
    command: Callable[[argparse.Namespace], int],
) -> int:
    """The exit code of a sub-command: its own, or that of bad input, which is said."""
    try:
        return command(parser.parse_args(argv))
    except SystemExit as end:  # argparse has said what is wrong, or printed its help
        return end.code if isinstance(end.code, int) else OK
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT


def _compare(asked: argparse.Namespace) -> int:
    made = _table(asked.directories, asked.baseline, asked.force)
    if asked.json:
        _print_json(made)
    else:
        terminal.table(made, terminal.screen())
    held = asked.fail_if and any(row["verdict"] == asked.fail_if for row in made["rows"])
    return HELD if held else OK


def _report(asked: argparse.Namespace) -> int:
    if pairs.is_job(asked.directory):
        (record,) = pairs.load([asked.directory])
        if asked.json:
            _print_json(record)
        else:
            terminal.job(record, terminal.screen())
        return OK
    made = _table([asked.directory])
    if asked.json:
        _print_json(made)
    else:
        terminal.table(made, terminal.screen())
    return OK


def _status(asked: argparse.Namespace, cluster: Cluster | None) -> int:
    directory: Path = asked.directory
    if cluster is not None and asked.wait:
        try:
            cluster.wait(directory)
        except KeyboardInterrupt:
            return LEFT
    submitted = None if cluster is None else cluster.look(directory)
    records, _ = _records([directory])
    cells = {} if submitted is None else submitted.cells
    lines = [_progress(record, cells.get(record["job"]["name"])) for record in records]
    if submitted is not None and submitted.note:
        print(submitted.note, file=sys.stderr)
    if asked.json:
        _print_json(lines)
        return OK
    console = terminal.screen()
    width = max((len(line["name"]) for line in lines), default=0)
    for line in lines:
        text = f"{line['name']:<{width}}  {line['state']:<11}  {_facts(line)}".rstrip()
        console.print(Text(text, terminal.STYLES.get(line["state"], "")), soft_wrap=True)
    if cluster is not None and submitted is not None and submitted.over:
        if pairs.is_job(directory):
            return _report(asked)
        cluster.table(directory)
    return OK


def _table(
    directories: list[Path], baseline: str | None = None, force: bool = False
) -> dict[str, Any]:
    records, sweep = _records(directories)
    return tables.make(records, baseline, sweep, force)


def _records(directories: list[Path]) -> tuple[list[pairs.Record], dict[str, Any] | None]:
    """Records of all directories and, `pending`, of what their sweeps haven't run; the first
    sweep.json."""
    records = pairs.load(directories)
    sweeps = [pairs.load_sweep(d) for d in directories if not pairs.is_job(d)]
    known = [sweep for sweep in sweeps if sweep is not None]
    for sweep in known:
        records += pairs.not_run(sweep, records)
    return records, known[0] if known else None


def _progress(record: pairs.Record, cell: dict[str, Any] | None) -> dict[str, Any]:
    """A line of `status`. `cell`: what a cluster says of the job."""
    job, said, rate = record["job"], record["status"], record["throughput"]
    line = {key: job[key] for key in ("name", "dir", "repeat", "rerun")}
    line |= {key: said[key] for key in ("state", "kind", "message")}
    line |= {"verdict": record["validity"]["verdict"], "unit": rate["unit"]}
    line |= {"sustained_units_per_s": rate["sustained_units_per_s"], "step": said["step"]}
    line["slurm"] = None
    if cell is not None:
        keys = ("id", "word", "reason", "nodes", "since", "restarts", "says")
        line["slurm"] = {key: cell[key] for key in keys}
        if cell["state"] != said["state"]:  # files alone don't tell who waits or runs elsewhere
            line |= {"state": cell["state"], "kind": None, "message": None}
    if line["state"] == "running":
        line |= _running(Path(job["dir"]))
    return line


def _running(directory: Path) -> dict[str, Any]:
    try:
        account = read_json(directory / "log" / "progress.json") or {}
    except (OSError, ValueError):
        account = {}
    return {key: account.get(key) for key in ("step", "steps", "loss", "units_per_s")}


def _facts(line: dict[str, Any]) -> str:
    slurm = line["slurm"]
    if slurm is None:
        return _own_facts(line)
    facts = ", ".join(filter(None, [slurm["says"], _own_facts(line)]))
    job = f"SLURM job {slurm['id']}"
    again = f", restart {slurm['restarts']}" if slurm["restarts"] else ""
    return facts if job in facts else f"{facts}  ({job}{again})".strip()


def _own_facts(line: dict[str, Any]) -> str:
    if line["state"] == "running":
        if line["step"] is None:
            return "starting"
        rate = "" if line["units_per_s"] is None else f", {figure(line['units_per_s'])}/s"
        return f"step {line['step']} of {line['steps']}{rate}"
    if line["state"] in RAN:
        rate = f"{figure(line['sustained_units_per_s'])} {line['unit']}/s"
        return rate if line["verdict"] == "valid" else f"{rate}, {line['verdict']}"
    message = next(iter(str(line["message"] or "").splitlines()), "")
    return ": ".join(word for word in (line["kind"], message) if word)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))
