"""Is it the same training with every strategy, world, accumulation, precision and compiler?

    python benchmarks/matrix.py [--pairwise] [--dir DIR] [--json FILE] [OVERRIDE...]

One sweep of a small GPT on real text by the `paceline` command, its first cell one eager fp32
process. Then, from the sweep's files alone, for every cell:

- it completed, its own gates hold (parameters changed, samples counted = used, all finite), and its
  losses are within the gate of the first cell's; or it was skipped, with the reason. Strategies
  that are alone synchronise nothing, and so have no rate: their losses count here all the same;
- gradients are equal over the ranks that hold the same parameters;
- it started from the same parameters and met the same samples: one digest each over all cells.

--pairwise: few cells with every pair of settings in one of them (hydra/sweeper=pairwise), instead
of all. --dir keeps the sweep, and goes on with one that was interrupted. OVERRIDE, as for paceline,
takes the place of a setting. Exit code 1 if anything fails. On two busy cores the 72 cells that can
run took 23 minutes, the pairwise ones 2.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from paceline.compare import pairs
from paceline.compare.numerics import Agreement, agree
from paceline.types import ConfigError

SETTINGS = {
    "strategy": "single,ddp,fsdp,hsdp",
    "launch.nproc": "1,2,4",
    "run.accumulation_steps": "1,4",
    "precision": "fp32,bf16",
    "compile": "off,inductor",
}
SMALL = {
    "model.width": "32",
    "model.layers": "2",
    "model.context_length": "32",
    "data.sequence_length": "32",
    "data.global_batch_size": "16",
    "data.max_bytes": "400000",
    "run.steps": "20",
    "run.eval_batches": "2",
    "measure": "quick",
    "measure.window_s": "0",
    "launch.threads_per_rank": "1",
    "sweep.nudged_baselines": "4",
}
HEADS = ("strategy", "world", "accumulation", "precision", "compile", "result")
REPLICATED = ("ddp", "hsdp")
"""Strategies under which two ranks hold the same parameters."""

SELF = Agreement("equal", None, None, 0.0)
NONE = Agreement(None, None, None, None)


def main() -> None:
    parser = argparse.ArgumentParser(description="is it the same training, whatever runs it?")
    parser.add_argument("--pairwise", action="store_true", help="few cells, with every pair")
    parser.add_argument("--dir", type=Path, help="keep the sweep here, or go on with it")
    parser.add_argument("--json", type=Path, help="write what was found here too")
    parser.add_argument("overrides", nargs="*", help="in the place of a setting, as for paceline")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = (args.dir or Path(folder, "sweep")).absolute()
        impossible = swept(command(args.overrides, where, args.pairwise))
        found = judged(where)
    print(markdown(found, impossible))
    if args.json:
        args.json.write_text(
            json.dumps({"cells": found, "impossible": impossible}, indent=1) + "\n"
        )
    sys.exit(1 if any(cell["wrong"] for cell in found) else 0)


def command(overrides: list[str], where: Path, pairwise: bool) -> list[str]:
    own = [override.partition("=") for override in overrides]
    typed = {**SETTINGS, **SMALL, **{key: value for key, _, value in own}}
    sweeper = ["hydra/sweeper=pairwise"] if pairwise else []
    words = [*sweeper, *(f"{key}={value}" for key, value in typed.items())]
    return [sys.executable, "-m", "paceline", "-m", *words, f"hydra.sweep.dir={where}"]


def swept(words: list[str]) -> list[str]:
    """Run the sweep, its lines on stderr as they come; those of what can't run together."""
    lines = []
    live = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=live) as sweep:
        assert sweep.stdout is not None
        for line in sweep.stdout:
            lines.append(line.rstrip())
            print(lines[-1], file=sys.stderr, flush=True)
    if sweep.returncode not in (0, 1):  # 1: a job failed, which has a row of its own
        raise SystemExit(f"{shlex.join(words)} ended with {sweep.returncode}")
    return [line for line in lines if line.startswith("can't run")]


def judged(where: Path) -> list[dict[str, Any]]:
    """What is right and wrong with each cell of the sweep, in the order of its settings."""
    table = json.loads((where / "table.json").read_text())
    try:
        records = {Path(record["job"]["dir"]).name: record for record in pairs.load([where])}
    except ConfigError as error:
        raise SystemExit("\n".join(error.problems)) from error
    rows = [(row, records[Path(row["dir"]).name]) for row in table["rows"]]
    base = next(record for row, record in rows if row["name"] == table["baseline"])
    nudged = [record for record in records.values() if record["job"]["nudge"]]
    found = [cell(row, record, base, nudged) for row, record in rows]
    order = {k: list(dict.fromkeys(one["settings"][k] for one in found)) for k in SETTINGS}
    return sorted(found, key=lambda one: [order[k].index(one["settings"][k]) for k in SETTINGS])


def cell(
    row: dict[str, Any], record: dict[str, Any], base: dict[str, Any], nudged: list[dict[str, Any]]
) -> dict[str, Any]:
    """`base`: the record of the baseline. `nudged`: those of its runs from a start that is another
    by a rounding."""
    typed = pairs.settings(record["job"]["overrides"])
    skipped = record["status"]["message"] if row["state"] == "skipped" else None
    agreed = SELF if record is base else NONE if skipped else agree(record, base, nudged)
    return {
        "name": row["name"],
        "settings": {key: typed[key] for key in SETTINGS},
        "skipped": skipped,
        "numerics": agreed.verdict,
        "gate": agreed.gate,
        "loss_deviation": agreed.deviation,
        "grads_equal": record["numerics"]["grads_equal"],
        "wrong": [] if skipped else wrong(record, base, agreed),
    }


def wrong(record: dict[str, Any], base: dict[str, Any], agreed: Agreement) -> list[str]:
    """Why a cell that wasn't skipped isn't right; empty if it is."""
    status, validity = record["status"], record["validity"]
    if status["state"] != "completed":
        said = (status["message"] or "no message").splitlines()[0]
        return [f"{status['state']}: {said}"]
    found = []
    if validity["verdict"] != "valid" and not synchronises_nothing(record):
        found.append(f"{validity['verdict']}: {validity['reasons'][0]}")
    if agreed.verdict not in ("equal", "within"):
        found.append(f"{agreed.verdict or 'not compared'} ({agreed.gate}): {agreed.reason}")
    mine, theirs, asked = record["numerics"], base["numerics"], record["requested"]
    if record is base and asked["world_size"] != 1:
        found.append("the baseline is no single process; begin strategy and launch.nproc with one")
    replicated = asked["strategy"] in REPLICATED and asked["world_size"] > 1
    if mine["grads_equal"] is False or (replicated and mine["grads_equal"] is None):
        found.append(f"gradients equal over ranks: {mine['grads_equal']}")
    for key in ("init_digest", "samples_digest"):
        if mine[key] is None or mine[key] != theirs[key]:
            found.append(f"{key} {mine[key]}, the baseline's is {theirs[key]}")
    return found


def synchronises_nothing(record: dict[str, Any]) -> bool:
    """Is it called ineffective for being alone, and for nothing else before that?"""
    verdict, reasons = record["validity"]["verdict"], record["validity"]["reasons"]
    return verdict == "ineffective" and reasons[0].startswith(
        f"strategy={record['requested']['strategy']} over 1 rank "
    )


def markdown(found: list[dict[str, Any]], impossible: list[str]) -> str:
    lines = ["| " + " | ".join(HEADS) + " |", "|---|---:|---:|---|---|---|"]
    for one in found:
        texts = [*one["settings"].values(), said(one)]
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |")
    lines += ["", *(f"- {line}" for line in impossible)]
    ends = Counter(said(one).split()[0].rstrip(",:") for one in found)
    largest = max((one["loss_deviation"] for one in found if right(one)), default=0.0)
    lines.append(
        f"- {len(found)} cells: {ends['ok']} ok, {ends['skipped']} skipped, {ends['WRONG']} wrong; "
        f"losses at most {largest:.1e} off"
    )
    return "\n".join(lines)


def right(one: dict[str, Any]) -> bool:
    return not one["wrong"] and not one["skipped"]


def said(one: dict[str, Any]) -> str:
    """`ok, losses 1.2e-07 off, gradients equal`, `skipped: why`, `WRONG: what`."""
    if one["skipped"]:
        return f"skipped: {one['skipped']}"
    if one["wrong"]:
        return f"WRONG: {'; '.join(one['wrong'])}"
    equal = ", gradients equal over ranks" if one["grads_equal"] else ""
    return f"ok, losses {one['loss_deviation']:.1e} off{equal}"


if __name__ == "__main__":
    main()
