"""The table of a comparison: one row a cell, its repeats pooled; as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paceline.compare import hygiene, pairs, scaling
from paceline.compare.columns import columns
from paceline.compare.numerics import Agreement
from paceline.compare.pairs import Cell, Record, rated
from paceline.compare.verdict import Verdict, agreement, judge, why_unrated, worst
from paceline.record.measure import t_interval
from paceline.record.schema import RAN, write_json

RANKED = ("faster", "slower", "same")


def make(
    records: list[Record],
    baseline: str | None = None,
    sweep: dict[str, Any] | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """The contents of table.json (docs/design.md, 7). `sweep`: sweep.json, for its baseline;
    `force`: rank cells although they were measured on different machines or versions."""
    nudged = [record for record in records if record["job"]["nudge"]]
    rest = [record for record in records if not record["job"]["nudge"]]
    cells = [Cell(c.name, c.overrides, _current(c.records)) for c in pairs.cells(rest)]
    if not cells:
        return {"swept": [], "baseline": None, "unit": None, "notes": [], "rows": []}
    base = pairs.baseline(cells, baseline, sweep)
    swept = pairs.swept_keys(cells)
    rows = [_row(cell, base, swept, nudged, force) for cell in cells]
    scaling.add_efficiency(rows, base.name)
    compared = [record for cell in cells for record in cell.records if rated(record)]
    notes = hygiene.differences(compared)
    if any(row["withheld"] for row in rows):
        notes.append("verdicts are withheld where machines or versions differ; --force ranks them")
    for row in rows:
        del row["withheld"]
    units = {row["unit"] for row in rows if row["unit"]}
    return {
        "swept": swept,
        "baseline": base.name,
        "unit": units.pop() if len(units) == 1 else None,
        "notes": notes,
        "rows": rows,
    }


def write(table: dict[str, Any], directory: Path) -> None:
    """Write table.json, table.csv and table.md, each in one step."""
    write_json(directory / "table.json", table)
    _write_text(directory / "table.csv", _csv(table))
    _write_text(directory / "table.md", _markdown(table))


def _current(records: list[Record]) -> list[Record]:
    """Without the unfinished attempts at a repeat that a later start of the sweep completed."""
    done: dict[int, int] = {}
    for record in records:
        if record["status"]["state"] in RAN:
            repeat, rerun = record["job"]["repeat"] or 0, record["job"]["rerun"] or 0
            done[repeat] = max(done.get(repeat, 0), rerun)
    return [
        r
        for r in records
        if r["status"]["state"] in RAN
        or (r["job"]["rerun"] or 0) >= done.get(r["job"]["repeat"] or 0, -1)
    ]


def _row(
    cell: Cell, base: Cell, swept: list[str], nudged: list[Record], force: bool
) -> dict[str, Any]:
    valid = [r for r in cell.records if rated(r)]
    found = agreement(cell, base, nudged)
    judged, withheld = _judged(cell, base, found, force)
    shown, bad = (valid or cell.records)[0], worst(cell.records)
    chosen = pairs.settings(cell.overrides)
    throughput, effective = shown["throughput"], shown["requested"] | shown["effective"]
    rate, compiling = pooled_rate(valid), _compiling(valid)
    verdicts = [r["validity"]["verdict"] for r in cell.records if not rated(r)]
    diverged = "diverged" if found.verdict == "diverged" else None
    invalid = diverged or next((v for v in verdicts if v not in (None, "valid")), None)
    return {
        "name": cell.name,
        "dir": shown["job"]["dir"],
        "overrides": {key: chosen.get(key, "default") for key in swept},
        "state": bad["status"]["state"],
        "kind": bad["status"]["kind"],
        "validity": invalid or ("valid" if valid else None),
        "steady_units_per_s": _mean(valid, lambda r: r["throughput"]["steady_units_per_s"]),
        "sustained_units_per_s": rate["sustained_units_per_s"],
        "ci95": rate["ci95"],
        "ratio_to_baseline": judged.ratio,
        "ratio_ci95": list(judged.ratio_ci95) if judged.ratio_ci95 else None,
        "verdict": judged.verdict,
        "compile_s": compiling.pop("compile_s"),
        "peak_memory_gib": max(filter(None, map(_peak_gib, valid)), default=None),
        "final_loss": _mean(valid, lambda r: r["numerics"]["final_loss"]),
        "eval_loss": _mean(valid, lambda r: r["numerics"]["eval_loss"]),
        **_numerics(found),
        "save_blocked_s": _mean(valid, lambda r: _save_s(r, "blocked_s")),
        "save_slowed_s": _mean(valid, lambda r: _save_s(r, "slowed_s")),
        "data_wait_share": _mean(valid, _data_wait_share),
        "unit": throughput["unit"],
        "repeats": len(valid),
        "ci_scope": rate["ci_scope"],
        "threads_per_rank": effective.get("threads_per_rank"),
        **scaling.sizes(shown),
        **compiling,
        "source_changed": _source_changed(cell),
        "note": _note(cell, valid, judged),
        "withheld": withheld,
    }


def _numerics(found: Agreement) -> dict[str, Any]:
    off = found.deviation
    return {
        "loss_deviation": off if off is None or math.isfinite(off) else repr(off),
        "numerics": {"verdict": found.verdict, "gate": found.gate, "reason": found.reason},
    }


def _compiling(valid: list[Record]) -> dict[str, Any]:
    """`compile_s` is what it costs with an empty cache, where a repeat had one; those that found
    their graphs in the cache are in `compile_warm_s`: the order of a sweep decides who pays."""
    of = [r["compile"] for r in valid if r["compile"]["compile_s"] is not None]
    warm = [c for c in of if (c["cache"] or {}).get("hits")]
    cold = [c for c in of if c not in warm]
    steps = [c["break_even_steps"] for c in of]
    whys = [c["break_even_why"] for c in of if c["break_even_why"]]
    return {
        "compile_s": _mean_of(cold or warm, "compile_s"),
        "compile_warm_s": _mean_of(warm, "compile_s"),
        "compiled_cold": bool(cold),
        "recompiles": max((len(c["recompiles"]) for c in of), default=0),
        "recompile_s": sum(r["compile_s"] for c in of for r in c["recompiles"]) / max(len(of), 1),
        "break_even_steps": None if None in steps or not steps else round(float(np.mean(steps))),
        "break_even_why": whys[0] if whys else None,
    }


def _judged(cell: Cell, base: Cell, found: Agreement, force: bool) -> tuple[Verdict, bool]:
    """The verdict; can't tell, and True, when this cell and the baseline met other machines."""
    judged = judge(cell, base, found)
    if force or judged.verdict not in RANKED:
        return judged, False
    unsafe = hygiene.blocking([r for r in cell.records + base.records if rated(r)])
    if not unsafe:
        return judged, False
    return Verdict(judged.ratio, judged.ratio_ci95, "cant_tell", unsafe[0]), True


def pooled_rate(valid: list[Record]) -> dict[str, Any]:
    """Sustained rate and its interval: over restarts with two records or more, else its own."""
    if not valid:
        return {"sustained_units_per_s": None, "ci95": None, "ci_scope": None}
    if len(valid) == 1:
        return {k: valid[0]["throughput"][k] for k in ("sustained_units_per_s", "ci95", "ci_scope")}
    mean = t_interval(np.array([r["throughput"]["sustained_units_per_s"] for r in valid]))
    return {
        "sustained_units_per_s": mean.value,
        "ci95": [mean.low, mean.high],
        "ci_scope": "restarts",
    }


def _note(cell: Cell, valid: list[Record], judged: Verdict) -> str | None:
    notes = [judged.note] if judged.note else []
    if 0 < len(valid) < len(cell.records):
        why = why_unrated(worst([r for r in cell.records if not rated(r)]))
        notes.append(f"{len(valid)} of {len(cell.records)} repeats count; {why}")
    elif not valid and len(cell.records) > 1:
        notes.append(f"0 of {len(cell.records)} repeats count")
    notes += _source_changed(cell)
    return "; ".join(notes) or None


def _source_changed(cell: Cell) -> list[str]:
    """How the code that ran differs from what was submitted, of any of its jobs; each once."""
    sources = [r["environment"].get("source") or {"changed": []} for r in cell.records]
    return list(dict.fromkeys(sentence for s in sources for sentence in s["changed"]))


def _mean(records: list[Record], of: Callable[[Record], Any]) -> float | None:
    known = [v for v in map(of, records) if isinstance(v, int | float)]
    return float(np.mean(known)) if known else None


def _mean_of(sections: list[dict[str, Any]], key: str) -> float | None:
    known = [s[key] for s in sections if isinstance(s[key], int | float)]
    return float(np.mean(known)) if known else None


def _peak_gib(record: Record) -> float | None:
    memory = record["memory"]
    on_device: float | None = memory["peak_device_gib"]
    return memory["peak_host_gib"] if on_device is None else on_device


def _data_wait_share(record: Record) -> float | None:
    phases, wall_s = record["ledger"]["steady_phases_s"], record["ledger"]["steady_wall_s"]
    if not phases or not wall_s or phases.get("data_wait") is None:
        return None
    return float(phases["data_wait"] / wall_s)


def _save_s(record: Record, what: str) -> float | None:
    found = record["checkpoint"]["economics"]
    return None if found is None else found[what]


def _csv(table: dict[str, Any]) -> str:
    """A column for each swept key, then the fields; an interval is two columns."""
    lines = []
    for row in table["rows"]:
        line = dict(row["overrides"])
        for key, value in row.items():
            if key in ("ci95", "ratio_ci95"):
                low, high = value or (None, None)
                line |= {f"{key}_low": low, f"{key}_high": high}
            elif key == "numerics":
                line |= {"numerics": value["verdict"], "numerics_gate": value["gate"]}
            elif key == "source_changed":
                line[key] = "; ".join(value)
            elif key != "overrides":
                line[key] = value
        lines.append(line)
    out = io.StringIO()
    writer = csv.DictWriter(out, lines[0].keys() if lines else table["swept"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _markdown(table: dict[str, Any]) -> str:
    shown = columns(table)
    lines = ["| " + " | ".join(map(_md, shown)) + " |", "|" + " --- |" * len(shown)]
    for texts in zip(*shown.values(), strict=True):
        lines.append("| " + " | ".join(map(_md, texts)) + " |")
    lines += ["", f"Baseline: {_md(str(table['baseline']))}. Ratios are of sustained rates."]
    lines += [f"- {_md(note)}" for note in table["notes"]]
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, newline="")
    os.replace(temporary, path)
