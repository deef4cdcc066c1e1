"""The diagnosis on the terminal: what bounds the job, how much, and where to look."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.text import Text

from paceline.diagnose.trace.definitions import DEFINITIONS
from paceline.report import advice, trace_lines
from paceline.report.trace_lines import LABEL, STEPS, WIDTH, Lines, bound, time_text

BESIDE = ("ground", "check")


def show(found: dict[str, Any], console: Console) -> None:
    """Each job's own diagnosis, each trace, the ranks together."""
    for job in found["jobs"]:
        _say(console, f"{job['name']}  {job['state']}", "bold")
        _lines(console, _job(job))
    for trace in found["traces"]:
        whose = "rank n/a" if trace["rank"] is None else f"rank {trace['rank']}"
        of = f" of {trace['world_size']}" if trace["world_size"] else ""
        _say(console, f"{whose}{of}  {trace['path']}", "bold")
        _lines(console, _wrapped(trace_lines.lines(trace)))
    for group in found["ranks"]:
        ranks = ", ".join(map(str, group["ranks"]))
        _say(console, f"ranks {ranks} together", "bold")
        _lines(console, _wrapped(_ranks(group)))
    for line in found["skipped"]:
        _say(console, f"skipped {line}", "dim")
    if found["traces"]:
        _say(console, "What each figure means: paceline diagnose --definitions", "dim")


def definitions(console: Console) -> None:
    for name, text in DEFINITIONS.items():
        console.print(Text(f"{name}: {text}"), width=min(console.width, WIDTH))


def _job(job: dict[str, Any]) -> Lines:
    """From the record: the bound, what speaks for it, what to try and what it gave."""
    said = job["diagnosis"]
    if not said["bound"]:
        return [
            ("bound by", "n/a: the record holds no diagnosis (diagnose=off, or no steady step)")
        ]
    lines = bound(said, "a step")
    for one in said["advice"]:
        lines.append(("try", f"{one['override']}: {advice.gain(one)}; {one['why']}"))
        details = [one.get("basis"), one.get("check")]
        lines += [
            ("", f"  {label}: {text}") for label, text in zip(BESIDE, details, strict=True) if text
        ]
    return lines


def _ranks(group: dict[str, Any]) -> Lines:
    who = group["straggler"]
    head = (
        "no straggler" if who is None else f"straggler, rank {who} ({group['share']:.0%} of a step)"
    )
    lines = [("bound by" if who is not None else "straggler", head), ("evidence", group["why"])]
    if group["world_size"] and group["world_size"] > len(group["ranks"]):
        lines.append(
            ("", f"{len(group['ranks'])} of {group['world_size']} ranks have a trace here")
        )
    if not group["figures"]:
        return lines
    shown = sorted(group["figures"], key=lambda line: -line["own_us"])[:STEPS]
    lines.append(("a step", f"{'rank':>6}{'wall ms':>10}{'own ms':>10}{'wait ms':>10}"))
    for line in shown:
        cells = "".join(f"{line[key] / 1000:>10.2f}" for key in ("wall_us", "own_us", "wait_us"))
        lines.append(("", f"{line['rank']:>6}{cells}"))
    return [*lines, ("wait", f"spread over ranks {time_text(group['wait_spread_us'])}")]


def _wrapped(lines: Lines) -> Lines:
    """No wider than WIDTH."""
    made: Lines = []
    for label, text in lines:
        pieces = wrap(text, WIDTH - LABEL) if len(text) > WIDTH - LABEL else [text]
        made += [("" if i else label, piece) for i, piece in enumerate(pieces)]
    return made


def _lines(console: Console, lines: Lines) -> None:
    for label, text in lines:
        _say(console, f"  {label:<{LABEL - 2}}{text}".rstrip())


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style), soft_wrap=True)
