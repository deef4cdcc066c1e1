"""A table's rows as texts for a reader: which columns there are, and how each figure is written."""

from __future__ import annotations

from typing import Any

from paceline.record.schema import RAN

SAID = {"cant_tell": "can't tell", "other_work": "other work", "pending": "not run"}
"""Words of the files -> words for a reader."""


WAITS_AT = 0.05
"""Of a step, in some row: from there on its wait for data has a column."""


def columns(table: dict[str, Any], full: bool = True) -> dict[str, list[str]]:
    """Header -> texts for a reader, a text a row. `full`: keys and names in full length."""
    rows = table["rows"]
    found: dict[str, list[str]] = {}
    for key in table["swept"]:
        found[key if full else _short(key, table["swept"])] = [r["overrides"][key] for r in rows]
    named = {tuple(row["overrides"].values()) for row in rows}
    if full or len(named) < len(rows) or not table["swept"]:
        found["cell"] = [row["name"] for row in rows]
    found |= _sizes(table, full)
    unit = table["unit"]
    rate = f"{unit}/s" if unit else "rate"
    found[rate] = [_rate(row, show_unit=not unit) for row in rows]
    found["steady"] = [figure(row["steady_units_per_s"]) for row in rows]
    found["ratio"] = [_ratio(row) for row in rows]
    if any(row["scaling_efficiency"] is not None for row in rows):
        found["efficiency"] = [figure(row["scaling_efficiency"], ".1%") for row in rows]
    found["verdict"] = [verdict(row) for row in rows]
    if any(row["compile_s"] is not None for row in rows):
        found["compile s"] = [_compile_s(row) for row in rows]
        found["pays after"] = [_pays(row) for row in rows]
    if any(row["recompiles"] for row in rows):
        found["recompiles"] = [_recompiles(row) for row in rows]
    if any(row["save_blocked_s"] is not None for row in rows):
        found["a save takes"] = [_save(row) for row in rows]
    if any((row["data_wait_share"] or 0) >= WAITS_AT for row in rows):
        found["data wait"] = [figure(row["data_wait_share"], ".0%") for row in rows]
    found["peak GiB"] = [figure(row["peak_memory_gib"], ".2f") for row in rows]
    found["final loss"] = [figure(row["final_loss"], ".4f") for row in rows]
    if any(row["loss_deviation"] or row["numerics"]["verdict"] == "diverged" for row in rows):
        found["numerics"] = [_numerics(row) for row in rows]
    found["note"] = [row["note"] or "" for row in rows]
    return found


def verdict(row: dict[str, Any]) -> str:
    """The verdict in a reader's words; how it ended where it gave no rate."""
    ended = row["state"] not in RAN and not row["repeats"]
    word = str(row["state"] if ended else row["verdict"])
    return SAID.get(word, word)


def figure(value: float | None, form: str = ".4g") -> str:
    """A number for a reader: `-` if unknown, thousands with commas."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if form == ".4g" and abs(value) >= 1000 else f"{value:{form}}"


def half_width(interval: list[Any] | None) -> str:
    """` ± 1.2 %` of the interval's middle; nothing without a finite interval."""
    if not interval or not all(isinstance(end, int | float) for end in interval):
        return ""
    low, high = interval
    if not high + low:
        return ""
    percent = 100 * (high - low) / (high + low)
    return " ± over 100 %" if percent > 100 else f" ± {percent:.1f} %"


def _sizes(table: dict[str, Any], full: bool) -> dict[str, list[str]]:
    """Ranks and both batch sizes, where rows differ in one; how they scale, where not all alike."""
    rows, found = table["rows"], {}
    shown = {"ranks": "world_size", "batch": "global_batch_size", "per rank": "per_rank_batch_size"}
    if full or any(len({row[key] for row in rows}) > 1 for key in shown.values()):
        found = {name: [figure(row[key], ",") for row in rows] for name, key in shown.items()}
    modes = {row["scaling_mode"] for row in rows if row["scaling_mode"]}
    if len(modes) > 1 and "scaling.mode" not in table["swept"]:
        found["scaling"] = [row["scaling_mode"] or "-" for row in rows]
    return found


def _short(key: str, keys: list[str]) -> str:
    last = key.rpartition(".")[2]
    return last if [k.rpartition(".")[2] for k in keys].count(last) == 1 else key


def _rate(row: dict[str, Any], show_unit: bool) -> str:
    value, interval = row["sustained_units_per_s"], row["ci95"]
    if value is None:
        return "-"
    unit = f" {row['unit']}/s" if show_unit and row["unit"] else ""
    return f"{figure(value)}{unit}{half_width(interval)}"


def _ratio(row: dict[str, Any]) -> str:
    value, interval = row["ratio_to_baseline"], row["ratio_ci95"]
    if value is None:
        return "-"
    if interval is None:
        return f"{value:.3f}"
    if interval[1] > 10 * interval[0]:
        return f"{value:.3f} [far too wide]"
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _compile_s(row: dict[str, Any]) -> str:
    """`15.2` cold, `1.4 warm`, `15.2, 1.4 warm`."""
    cold = [figure(row["compile_s"], ".1f")] if row["compiled_cold"] else []
    warm = row["compile_warm_s"]
    both = [*cold, f"{figure(warm, '.1f')} warm"] if warm is not None else cold
    return ", ".join(both) or "-"


def _pays(row: dict[str, Any]) -> str:
    """The break-even step against eager, or why there is none."""
    if row["break_even_steps"] is not None:
        return f"{row['break_even_steps']:,} steps"
    return str(row["break_even_why"] or "-").partition(":")[0]


def _recompiles(row: dict[str, Any]) -> str:
    return f"{row['recompiles']} in {row['recompile_s']:.1f} s" if row["recompiles"] else "-"


def _save(row: dict[str, Any]) -> str:
    """`12 ms blocked`, `3 ms blocked + 8 ms slower steps`."""
    blocked, slowed = row["save_blocked_s"], row["save_slowed_s"]
    if blocked is None:
        return "-"
    more = f" + {figure(1e3 * slowed, '.3g')} ms slower steps" if slowed else ""
    return f"{figure(1e3 * blocked, '.3g')} ms blocked{more}"


def _numerics(row: dict[str, Any]) -> str:
    """`equal`, `within 3e-07` of the baseline's losses, `diverged`."""
    verdict, off = row["numerics"]["verdict"], row["loss_deviation"]
    if verdict == "within" and isinstance(off, float):
        return f"within {off:.0e}"
    return str(verdict or "-")
