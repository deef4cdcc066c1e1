"""`paceline diagnose`: what bounds a job, from its record and from traces, of paceline or not."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from paceline.compare import pairs
from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.columns import Trace
from paceline.diagnose.trace.definitions import DEFINITIONS
from paceline.diagnose.trace.ranks import groups
from paceline.diagnose.trace.reading import NotATraceError, read
from paceline.report import diagnosis_lines, terminal
from paceline.report.commands import OK, answered
from paceline.types import ConfigError

SUFFIXES = (".json", ".json.gz")
BESIDE_TRACES = ".summary.json"
"""What profiler=schedule lays beside its traces."""


def run(argv: list[str]) -> int:
    """The exit code: 0, or 2 where a path is missing or holds no trace."""
    parser = argparse.ArgumentParser(
        prog="paceline diagnose",
        description="What bounds a job: from its record, and from any PyTorch profiler trace.",
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="*", type=Path, help="job, trace (.json, .json.gz), folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--definitions", action="store_true", help="what each figure means")
    return answered(parser, argv, _diagnose)


def _diagnose(asked: argparse.Namespace) -> int:
    if not asked.paths and not asked.definitions:
        raise ConfigError(["give a job's directory, a trace, or a folder of traces"])
    if not asked.paths:
        if asked.json:
            print(json.dumps(DEFINITIONS, indent=1))
        else:
            diagnosis_lines.definitions(terminal.screen())
        return OK
    jobs, files = _find(asked.paths)
    traces, skipped = _read(files)
    if not traces and not jobs:
        raise ConfigError(skipped)
    answers = [analyse(trace) for trace in traces]
    found = {
        "jobs": jobs,
        "traces": answers,
        "ranks": groups(answers),
        "skipped": skipped,
        "definitions": DEFINITIONS,
    }
    if asked.json:
        print(json.dumps(found, indent=1, allow_nan=False))
        return OK
    console = terminal.screen()
    diagnosis_lines.show(found, console)
    if asked.definitions:
        diagnosis_lines.definitions(console)
    return OK


def _find(paths: list[Path]) -> tuple[list[dict[str, Any]], list[tuple[Path, bool]]]:
    """Jobs, and trace files with whether each was named itself: one that wasn't may be no trace.
    Every path that leads nowhere is named at once."""
    jobs, files, problems = [], [], []
    for path in paths:
        if not path.exists():
            problems.append(f"{path}: there is no such file or directory")
        elif path.is_file():
            files.append((path, True))
        elif pairs.is_job(path) or pairs.is_sweep(path):
            for record in pairs.load([path]):
                jobs.append(_job(record))
                files += [(file, False) for file in _folder(Path(record["job"]["dir"]) / "trace")]
        elif inside := _folder(path):
            files += [(file, False) for file in inside]
        else:
            problems.append(
                f"{path}: neither a job's directory (no result.json) nor a folder with traces "
                f"(*.json, *.json.gz); give one of them, or a trace itself"
            )
    if problems:
        raise ConfigError(problems)
    return jobs, files


def _folder(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    named = (p for p in sorted(path.iterdir()) if p.name.endswith(SUFFIXES) and p.is_file())
    return [p for p in named if not p.name.endswith(BESIDE_TRACES)]


def _job(record: dict[str, Any]) -> dict[str, Any]:
    job = {key: record["job"][key] for key in ("name", "dir")}
    return job | {"state": record["status"]["state"], "diagnosis": record["diagnosis"]}


def _read(files: list[tuple[Path, bool]]) -> tuple[list[Trace], list[str]]:
    """Traces, numbered by their order where none of several says its rank; what was skipped."""
    traces: list[Trace] = []
    skipped: list[str] = []
    problems: list[str] = []
    for path, named in files:
        try:
            traces.append(read(path))
        except NotATraceError as error:
            said = f"{path}: {error}; a trace is JSON with traceEvents, plain or gzip"
            (problems if named else skipped).append(said)
    if problems:
        raise ConfigError(problems)
    if len(traces) > 1 and all(trace.rank is None for trace in traces):
        for number, trace in enumerate(traces):
            trace.rank, trace.rank_from = number, "the order of the files, for none says its rank"
    return traces, skipped
