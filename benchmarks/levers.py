"""What each lever gives on two small workloads: one table, for the guide.

    python benchmarks/levers.py [--repeats N] [--write [FILE]] [--json FILE] [OVERRIDE...]

A sweep a workload by `paceline -m hydra/sweeper=ladder`: eager, then one lever more a rung, every
cell in fresh processes, the repeats outermost, so that a drift of the machine falls on all rungs.
The workloads: the default job (a GPT on real text) and experiment=digits (a residual network on
small real images). OVERRIDE, as for paceline, holds for both.

- times eager: the rate over that of the first rung, geometric mean over the repeats, its 95 %
  interval, the verdict: as in the sweep's table.
- times the rung before: the same against the rung that this one stands on.
- compile: seconds with an empty cache, and of the repeats that found their graphs in it.
- pays after: the step at which compiling has paid for itself, against eager steps measured in turns
  with compiled ones in the same process.

--write puts the table into FILE (docs/guide.md), between its two marker lines. About 8 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.compare import columns, pairs
from paceline.compare.pairs import Cell
from paceline.compare.verdict import agreement, judge

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guide.md"
BEGIN, END = "<!-- levers: begin -->", "<!-- levers: end -->"

WORKLOADS = {
    "gpt on Python source": ["run.steps=60"],
    "resnet on digits": ["experiment=digits"],
}
COMMON = ["measure=quick", "measure.window_s=2"]


def main() -> None:
    parser = argparse.ArgumentParser(description="what each lever gives, on two workloads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", type=Path, nargs="?", const=GUIDE, metavar="FILE")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--only", choices=WORKLOADS, help="this workload alone")
    parser.add_argument("overrides", nargs="*", help="for each workload, as for paceline")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: give 1 or more; an interval needs 2")
    if args.write and not writable(args.write):
        parser.error(
            f"--write {args.write}: the lines {BEGIN} and {END} aren't in it, once each and in "
            "this order; add them where the table belongs"
        )
    with tempfile.TemporaryDirectory() as folder:
        found = [
            climbed(name, [*own, *COMMON, *args.overrides], args.repeats, Path(folder, str(n)))
            for n, (name, own) in enumerate(WORKLOADS.items())
            if args.only in (None, name)
        ]
    text = markdown(found, args.repeats)
    print(text)
    if args.write:
        write(text, args.write)
    if args.json:
        args.json.write_text(json.dumps({"workloads": found}, indent=1) + "\n")


def climbed(name: str, overrides: list[str], repeats: int, folder: Path) -> dict[str, Any]:
    """Run a workload's sweep in `folder`; its command, its environment and a row for each rung."""
    folder.mkdir()
    last = {override.partition("=")[0]: override for override in overrides}  # the last one counts
    typed = ["-m", "hydra/sweeper=ladder", f"repeat=range({repeats})", *last.values()]
    command = [sys.executable, "-m", "paceline", *typed, "hydra.sweep.dir=sweep"]
    done = subprocess.run(
        command,
        cwd=folder,
        # torch's compiler cache, empty: else what this machine ran before decides what is cold
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr}")
    print(f"{name} done", file=sys.stderr, flush=True)
    swept = json.loads((folder / "sweep" / "table.json").read_text())
    if not swept["rows"][0]["repeats"]:
        raise SystemExit(f"{shlex.join(command)}: eager gave no rate: {swept['rows'][0]['note']}")
    cells = pairs.cells(pairs.load([folder / "sweep"]))
    assert [cell.name for cell in cells] == [row["name"] for row in swept["rows"]]
    eager = next(record for record in cells[0].records if pairs.rated(record))
    return {
        "name": name,
        "command": shlex.join(["paceline", *typed]),
        "unit": swept["unit"],
        "started_at": eager["job"]["started_at"],
        "torch": eager["environment"]["torch"],
        "machine": eager["environment"]["gpu"] or eager["environment"]["cpu"],
        "notes": swept["notes"],
        "rungs": [rung(n, cells, swept["rows"]) for n in range(len(cells))],
    }


def rung(n: int, cells: list[Cell], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The sweep's row of a rung, with what it changes and its gain over the rung before."""
    if n == 0:
        return {"lever": None, "row": rows[0], "over_before": None}
    chosen, last = rows[n]["overrides"], rows[n - 1]["overrides"]
    lever = " ".join(f"{key}={value}" for key, value in chosen.items() if value != last[key])
    mine, before = cells[n], cells[n - 1]
    judged = judge(mine, before, agreement(mine, before, []))
    return {"lever": lever, "row": rows[n], "over_before": asdict(judged)}


def markdown(found: list[dict[str, Any]], repeats: int) -> str:
    lines = [
        "| workload | rung | rate | times eager [95 %] | times the rung before [95 %] "
        "| compile s | pays after |",
        "|---|---|---:|---|---|---|---|",
    ]
    for workload in found:
        shown = columns.columns({"swept": [], "unit": None, "rows": rows_of(workload)}, full=False)
        for n, one in enumerate(workload["rungs"]):
            row, before = one["row"], one["over_before"]
            texts = [
                workload["name"] if n == 0 else "",
                "eager" if n == 0 else f"+ `{one['lever']}`",
                shown["rate"][n],
                versus(row["ratio_to_baseline"], row["ratio_ci95"], columns.verdict(row)),
                "" if before is None else said_of(before),
                shown["compile s"][n] if "compile s" in shown else "-",
                shown["pays after"][n] if "pays after" in shown else "-",
            ]
            lines.append("| " + " | ".join(texts) + " |")
    first = found[0]
    lines += ["", f"{first['machine']}, torch {first['torch']}, {first['started_at'][:10]}, "]
    lines[-1] += f"{repeats} repeats, an empty compiler cache at the start; by"
    lines += ["", *(f"    {workload['command']}" for workload in found), ""]
    notes = [f"- {workload['name']}: {note}" for workload in found for note in notes_of(workload)]
    return "\n".join([*lines, *notes]).rstrip() + "\n"


def rows_of(workload: dict[str, Any]) -> list[dict[str, Any]]:
    return [one["row"] for one in workload["rungs"]]


def notes_of(workload: dict[str, Any]) -> list[str]:
    """The sweep's own notes, and those of its rows with the rungs that have them."""
    named: dict[str, list[str]] = {}
    for one in workload["rungs"]:
        if one["row"]["note"]:
            named.setdefault(one["row"]["note"], []).append(one["lever"] or "eager")
    return [*workload["notes"], *(f"{', '.join(who)}: {note}" for note, who in named.items())]


def said_of(judged: dict[str, Any]) -> str:
    word = columns.SAID.get(judged["verdict"], judged["verdict"])
    return versus(judged["ratio"], judged["ratio_ci95"], word)


def versus(ratio: float | None, interval: Any, verdict: str) -> str:
    """`1.412 [1.380, 1.445] faster`."""
    if verdict == "baseline":
        return ""
    if ratio is None:
        return verdict
    between = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
    return f"{ratio:.3f}{between} {verdict}"


def writable(path: Path) -> bool:
    """Is `path` not there yet, or are both marker lines in it?"""
    if not path.exists():
        return True
    lines = path.read_text().splitlines()
    once = lines.count(BEGIN) == lines.count(END) == 1
    return once and lines.index(BEGIN) < lines.index(END)


def write(text: str, path: Path) -> None:
    """Put `text` between the marker lines, which a new file gets under a title."""
    old = path.read_text() if path.exists() else f"# The guide\n\n{BEGIN}\n{END}\n"
    above, rest = old.split(f"{BEGIN}\n", 1)
    below = rest.partition(f"{END}\n")[2]
    path.write_text(f"{above}{BEGIN}\n{text}{END}\n{below}")


if __name__ == "__main__":
    main()
