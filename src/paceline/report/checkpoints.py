"""`paceline checkpoint ls`, `verify`, `export`: what was saved, is it whole, the model of it.

Only an export imports torch, once it has found a checkpoint that is whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.report import terminal
from paceline.report.kept import Row, check, committed, rows
from paceline.types import CheckpointError, ConfigError

OK, BAD, BAD_INPUT = 0, 1, 2
SUFFIXES = (".safetensors", ".pt")
PARTS = ("model", "optimizer")


MEANING = {
    "incomplete": "being written, or left by a crash; nothing reads it",
    "superseded": "training went on from an earlier step, or saved it again",
}

STYLES = {
    "committed": "green",
    "damaged": "red",
    "incomplete": "yellow",
    "quarantined": "red",
    "superseded": "dim",
}

USAGE = """\
paceline checkpoint ls DIR [--json]
       paceline checkpoint verify DIR [--step N] [--json]
       paceline checkpoint drill DIR ... (all of it: paceline checkpoint drill --help)
       paceline checkpoint export DIR --to FILE [--step N] [--what {model,optimizer}]
                                  [--force] [--json]"""


def run(argv: list[str]) -> int:
    """The exit code: 0; 1 if a checkpoint is bad; 2 if what was asked for can't be."""
    if not argv:
        _parser().print_help(sys.stderr)
        return BAD_INPUT
    try:
        asked = _parser().parse_args(argv)
        return {"ls": _ls, "verify": _verify, "export": _export}[asked.command](asked)
    except SystemExit as end:  # argparse has said what is wrong, or printed its help
        return end.code if isinstance(end.code, int) else OK
    except (ConfigError, CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline checkpoint", usage=USAGE, description="What a job has saved."
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="", title="commands", prog="paceline checkpoint"
    )
    ls = commands.add_parser("ls", help="every checkpoint, and which one a resume takes")
    verify = commands.add_parser(
        "verify", help="read every committed one to its last byte; exit code 1 if any is bad"
    )
    commands.add_parser("drill", help="restore one in clean processes: is it the same training?")
    export = commands.add_parser("export", help="the model in one file, for inference")
    for one in (ls, verify, export):
        one.add_argument(
            "directory",
            metavar="DIR",
            type=Path,
            help="a job, its checkpoint folder, or one checkpoint (step_...)",
        )
        one.add_argument("--json", action="store_true", help="print JSON and nothing else")
    for one in (verify, export):
        one.add_argument("--step", metavar="N", type=int, help="the committed one of this step")
    export.add_argument(
        "--to", metavar="FILE", type=Path, required=True, help="NAME.safetensors or NAME.pt"
    )
    export.add_argument("--what", choices=PARTS, default="model", help="default: model")
    export.add_argument("--force", action="store_true", help="replace FILE")
    return parser


def _ls(asked: argparse.Namespace) -> int:
    found = rows(asked.directory)
    taken = next((row for row in found if row.resume), None)
    if asked.json:
        step = taken.step if taken else None
        _print_json({"resume": step, "checkpoints": [asdict(row) for row in found]})
        return OK
    console = terminal.screen()
    _table(found, console)
    for row in found:
        if row.why:
            name = _name(row.step, Path(row.path))
            _say(console, f"{row.state} {name}: {row.why}", STYLES[row.state])
    for state, meaning in MEANING.items():
        if any(row.state == state for row in found):
            _say(console, f"{state}: {meaning}", STYLES[state])
    if taken:
        name = _name(taken.step, Path(taken.path))
        _say(console, f"a resume takes {name}: {taken.path}", "bold")
    elif any(row.state == "damaged" for row in found):
        text = "NO GOOD CHECKPOINT: a resume fails; checkpoint.resume=off starts from step 0"
        _say(console, text, "bold red")
    else:
        _say(console, "NO COMMITTED CHECKPOINT: nothing to resume from", "bold red")
    return OK


def _verify(asked: argparse.Namespace) -> int:
    seen = []
    console = terminal.screen()
    for checked in map(check, committed(asked.directory, asked.step)):
        seen.append(checked)
        if asked.json:
            continue
        name = _name(checked.step, checked.path)
        if not checked.problems:
            many = "file" if checked.files == 1 else "files"
            held = f"{checked.files} {many}, {_size(checked.bytes)}"
            _say(console, f"ok       {name}  {held}", "green")
        for problem in checked.problems:
            _say(console, f"damaged  {name}  {problem}", "red")
    if asked.json:
        _print_json([asdict(one) | {"path": str(one.path), "ok": not one.problems} for one in seen])
    return BAD if any(one.problems for one in seen) else OK


def _export(asked: argparse.Namespace) -> int:
    _check_target(asked.to, asked.what, asked.force)
    bad: list[str] = []
    for path in reversed(committed(asked.directory, asked.step)):
        checked = check(path)
        if not checked.problems:
            break
        bad += checked.problems
    else:
        print("\n".join(bad), file=sys.stderr)
        print(f"{asked.to} was not written: no checkpoint there is good", file=sys.stderr)
        return BAD
    for problem in bad:
        print(f"WARNING {problem}; exporting {path.name}", file=sys.stderr)
    from paceline.checkpoint.export import export

    done = export(path, asked.what, asked.to)
    if asked.json:
        made = {"step": checked.step, "path": str(path), "what": asked.what, "to": str(asked.to)}
        _print_json(made | done | {"bad": bad})
        return OK
    held = f"{done['tensors']} tensors, {done['elements']:,} elements, {_size(done['bytes'])}"
    text = f"{asked.to}: the {asked.what} of step {checked.step}, {held}"
    _say(terminal.screen(), text, "green")
    return OK


def _check_target(to: Path, what: str, force: bool) -> None:
    """Before anything is read: can the file be made at all?"""
    problems = []
    if to.suffix not in SUFFIXES:
        problems.append(f"--to {to}: the name decides the format; end it in .safetensors or .pt")
    elif what != "model" and to.suffix == ".safetensors":
        problems.append(f"--to {to}: {what} holds more than tensors; give a name that ends in .pt")
    if to.is_dir():
        problems.append(f"--to {to}: is a directory; give a file in it")
    elif to.exists() and not force:
        problems.append(f"--to {to}: exists; --force replaces it")
    elif not to.parent.is_dir():
        problems.append(f"--to {to}: {to.parent} is no directory; make it first")
    if problems:
        raise ConfigError(problems)


def _table(found: list[Row], console: Console) -> None:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("step", "state", "format", "size", "ranks", "saved"):
        right = name in ("step", "size", "ranks")
        grid.add_column(name, justify="right" if right else "left", no_wrap=True)
    grid.add_column("")
    for row, texts in zip(found, _texts(found), strict=True):
        cells = [Text(text) for text in texts]
        cells[1].stylize(STYLES[row.state])
        grid.add_row(*cells, Text("<- resume" if row.resume else "", "bold"))
    console.print(grid)


def _texts(found: list[Row]) -> Iterator[list[str]]:
    for row in found:
        saved = (row.saved_at or "-").replace("T", " ").replace("+00:00", " UTC")
        ranks = "-" if row.ranks is None else str(row.ranks)
        step = "-" if row.step is None else str(row.step)
        yield [step, row.state, row.format or "-", _size(row.bytes), ranks, saved]


def _name(step: int | None, path: Path) -> str:
    return path.name if step is None else f"step {step}"


def _size(count: float) -> str:
    """Bytes for a reader."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def _say(console: Console, text: str, style: str) -> None:
    console.print(Text(text, style), soft_wrap=True)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))
