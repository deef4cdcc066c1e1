"""What each lever cost and gained, in lines: compiler, precision, counter-runs, unused parts."""

from __future__ import annotations

from typing import Any

from paceline.compare.columns import figure

SHOWN = 3
"""Breaks, recompiles and names shown of each kind; all are in result.json."""

Lines = list[tuple[str, str]]


def compile_lines(record: dict[str, Any]) -> Lines:
    """Seconds, frames, breaks, recompiles; against eager; hints where it isn't clearly faster."""
    found = record["compile"]
    if found["compile_s"] is None:
        return []
    frames, fallen = found["frames_compiled"], found["frames_fallen_back"]
    texts = [
        f"{found['compile_s']:.1f} s ({said_cache(found['cache'])}), first step "
        f"{found['first_step_s']:.1f} s; {_count(frames, 'frame')} compiled, {fallen} fell back"
    ]
    texts += _against_eager(found)
    texts += _some(
        [
            f"graph break{_at(b['where'])}: {b['reason']}"
            + (f" ({b['count']}x)" * (b["count"] > 1))
            for b in found["graph_breaks"]
        ],
        "graph breaks",
    )
    texts += _some(
        [
            f"recompiled in step {r['step']}, {r['compile_s']:.1f} s: {r['where']}: {r['reason']}"
            for r in found["recompiles"]
        ],
        "recompiles",
    )
    low = (found["speedup_ci95"] or [None])[0]
    if low is not None and low <= 1:
        texts += [f"hint: {hint}" for hint in hints(record)]
    return _labelled("compile", texts)


def said_cache(cache: dict[str, Any] | None) -> str:
    """`cold`, `warm: 2 of 2 graphs from the cache`."""
    if cache is None:
        return "cache unknown"
    hits, total = cache["hits"], cache["hits"] + cache["misses"]
    return f"{hits} of {total} graphs from the cache" if hits else "cold"


def hints(record: dict[str, Any]) -> list[str]:
    """Why compiling may not have helped: what was seen first, then the compiler's own words."""
    found, ledger = record["compile"], record["ledger"]
    said = []
    if found["frames_fallen_back"]:
        said.append("frames that fell back ran eager; remove the graph breaks above")
    elif found["graph_breaks"]:
        said.append("each graph break returns to Python; compile.fullgraph=true stops at the first")
    if found["recompiles"]:
        said.append("shapes change: try compile.dynamic=true, or pad to a few sizes")
    phases, wall_s = ledger["steady_phases_s"], ledger["steady_wall_s"]
    if wall_s and phases and phases["data_wait"] / wall_s > 0.3:
        said.append("the step waits for data, which no compiler shortens: data.loader.num_workers")
    if not said:
        said.append(
            "one graph, no recompiles: its time is in kernels that eager runs as fast; try "
            "precision=bf16, compile=max_autotune, or a larger micro-batch"
        )
    return said + [f"torch: {hint}" for hint in found["hints"][:SHOWN]]


def counter_run_lines(record: dict[str, Any]) -> Lines:
    """What a perfect loader would give, what the loader gives alone, what the other runs gain."""
    unit, texts, others = record["throughput"]["unit"], [], []
    for run in record["counter_runs"]:
        rate = f"{figure(run.get('units_per_s'))} {unit}/s"
        if run["name"] == "cached_batch":
            gain = f"{run['speedup']:.3f} times{_interval(run['speedup_ci95'])}"
            texts.append(f"{rate} with a perfect loader (one cached batch), {gain} this job's")
        elif run["name"] == "loader_alone":
            texts.append(f"{rate} from the loader alone, without training")
        elif "speedup" in run:
            others.append(f"{run['name'].replace('_', ' ')} {run['speedup']:.3f}")
    texts += [f"times the rate: {', '.join(others)}"] if others else []
    return _labelled("ceiling", texts)


def training_lines(record: dict[str, Any]) -> Lines:
    """Steps that fp16 skipped; how right the first gradient was; what got no gradient."""
    numerics = record["numerics"]
    lines: Lines = []
    skipped = numerics["skipped_steps"]
    if skipped is not None:
        scale = figure(numerics["loss_scale"])
        which = f" ({_names([str(s) for s in skipped])})" if skipped else ""
        text = f"{_count(len(skipped), 'step')} of overflow{which}; loss scale {scale} at the end"
        lines.append(("skipped", text))
    found = numerics["gradient"]
    if found["error"] is not None:
        lines.append(
            (
                "gradient",
                f"first step {found['error']:.1e} off its float64 reference, eager "
                f"{found['eager_error']:.1e}, {found['allowed']:.0e} allowed",
            )
        )
    names = numerics["unused_layers"] or numerics["unused_parameters"]
    if names:
        lines.append(("unused", f"{_names(names)}: no gradient reached them in the last step"))
    return lines


def restart_lines(record: dict[str, Any]) -> Lines:
    """What the ranks were started again after, and the time that it cost."""
    restarts = record["status"]["restarts"]
    lines = _resumed(record)
    if not restarts:
        return lines
    texts = [
        f"after {why['kind']} of rank {why['rank']}"
        + ("" if why["step"] is None else f" in step {why['step']}")
        for why in restarts
    ]
    resumed = record["checkpoint"]["resumed_from"]
    went_on = "from step 0" if resumed is None else f"from step {resumed}"
    texts[-1] += f"; {record['ledger']['phases_s']['restart']:.1f} s lost, went on {went_on}"
    return lines + _labelled("restarted", _some(texts, "restarts"))


def _resumed(record: dict[str, Any]) -> Lines:
    """Is it as fast as before it was stopped?"""
    found, rate = record["checkpoint"], record["throughput"]
    if not found["steady_before"] or found["resumed_from"] is None:
        return []
    before, now = figure(found["steady_before"][-1]), figure(rate["steady_units_per_s"])
    text = f"from step {found['resumed_from']}: {before} {rate['unit']}/s steady before, {now} now"
    return [("resumed", text)]


def _against_eager(found: dict[str, Any]) -> list[str]:
    speedup = found["speedup_over_eager"]
    if speedup is None:
        return []
    steps, interval = found["break_even_steps"], found["break_even_ci95"]
    pays = f"break-even {found['break_even_why']}"
    if steps is not None:
        pays = f"pays after {steps:,} steps [{interval[0]:,}, {interval[1]:,}]"
    return [f"{speedup:.3f} times eager{_interval(found['speedup_ci95'])}, side by side; {pays}"]


def _interval(interval: list[float] | None) -> str:
    return f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _some(texts: list[str], what: str) -> list[str]:
    more = len(texts) - SHOWN
    return texts[:SHOWN] + ([f"... and {more} {what} more, in result.json"] if more > 0 else [])


def _names(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _labelled(label: str, texts: list[str]) -> Lines:
    return [(label if i == 0 else "", text) for i, text in enumerate(texts)]
