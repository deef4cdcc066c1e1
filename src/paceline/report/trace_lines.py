"""A trace in lines: the shares of its time, and the first rows of each table."""

from __future__ import annotations

from typing import Any

from paceline.diagnose.trace.main_thread import PARTS

WIDTH = 100
LABEL = 14
BAR_WIDTH = 24
ROWS = 3
STEPS = 12

DEVICE_PARTS = {
    "compute_pct": "compute",
    "communication_only_pct": "communication",
    "copy_only_pct": "copies",
    "launch_bound_pct": "idle: host late",
    "queued_pct": "idle: queued",
    "unlaunched_pct": "idle: unknown",
    "idle_pct": "idle",
}
HOST_PARTS = [name.removesuffix("_pct") for name in PARTS]

Lines = list[tuple[str, str]]


def lines(trace: dict[str, Any]) -> Lines:
    """(label, text) of a trace that diagnose/trace/analysis.py answered."""
    steps = trace["steps"]
    # the bars below are the first piece of evidence
    said = {**trace, "evidence": trace["evidence"][1:]}
    made = bound(said, "the steps" if steps["each"] else "the trace")
    if trace["rank"] is None:
        made.append(("rank", f"n/a: {trace['rank_from']}"))
    elif "order" in trace["rank_from"]:
        made.append(("rank", f"numbered by {trace['rank_from']}"))
    has_device = steps["idle_pct"] is not None
    made += _device(trace) if has_device else _host(trace)
    made += _steps(steps["each"], has_device)
    made += _table("kernels", trace["kernels"], "total_us")
    made += _table("operators", trace["operators"], "self_us")
    made += _idle(trace) + _collectives(trace) + _syncs(trace) + _compile(trace)
    return made + [("note", note) for note in trace["notes"]]


def _device(trace: dict[str, Any]) -> Lines:
    """Shares that add up to 100."""
    steps = trace["steps"]
    known = steps["launch_bound_pct"] is not None
    left_out = ("idle_pct",) if known else ("launch_bound_pct", "queued_pct", "unlaunched_pct")
    shares = {name: steps[key] for key, name in DEVICE_PARTS.items() if key not in left_out}
    always = ("compute", "communication", "copies", "idle: host late", "idle")
    lines = _bars("device", {n: v for n, v in shares.items() if v >= 0.05 or n in always})
    if steps["overlap_pct"] is None:
        lines.append(("overlap", f"n/a: {steps['reasons']['overlap_pct']}"))
    else:
        text = f"{steps['overlap_pct']:.1f} % of {steps['communication_pct']:.1f} % communication"
        lines.append(("overlap", f"{text} runs beside compute"))
    return [*lines, _whole(trace)]


def _whole(trace: dict[str, Any]) -> tuple[str, str]:
    text = (
        f"idle {trace['idle_pct']:.1f} %, compute {trace['compute_pct']:.1f} %, non-compute "
        f"{trace['non_compute_pct']:.1f} % of {time_text(trace['span_us'])}"
    )
    return "whole trace", text


def _host(trace: dict[str, Any]) -> Lines:
    parts = trace["main_thread"]
    lines = [("device", f"n/a: {trace['steps']['reasons']['idle_pct']}")]
    lines += [] if trace["idle_pct"] is None else [_whole(trace)]
    if parts["wall_us"] is None:
        return [*lines, ("main thread", f"n/a: {parts['reasons']['wall_us']}")]
    shares = {name: parts[f"{name}_pct"] for name in HOST_PARTS}
    held = {name: share for name, share in shares.items() if share is not None and share >= 0.05}
    lines += _bars("main thread", held)
    unknown = [name for name, share in shares.items() if share is None]
    if unknown:
        why = parts["reasons"][f"{unknown[0]}_pct"]
        lines.append(("", f" {', '.join(unknown)}: n/a: {why}"))
    return lines


def _bars(label: str, shares: dict[str, float]) -> Lines:
    lines: Lines = []
    for name, share in shares.items():
        bar = "█" * round(share / 100 * BAR_WIDTH)
        lines.append(("" if lines else label, f"{name:<16}{share:>6.1f} %  {bar}".rstrip()))
    return lines


def _steps(each: list[dict[str, Any]], has_device: bool) -> Lines:
    """A short table, if there is more than one step."""
    if len(each) < 2:
        return []
    if has_device:
        columns = {"idle": "idle_pct", "compute": "compute_pct", "non-comp": "non_compute_pct"}
        rows = each
    else:
        rows = [step["main_thread"] | {"step": step["step"]} for step in each]
        seen = [key for key in PARTS if any((row[key] or 0) >= 0.05 for row in rows)]
        columns = {key.removesuffix("_pct")[:9]: key for key in seen}
    lines = [("each step", f"{'step':>8}{'wall ms':>10}" + "".join(f"{c:>10}" for c in columns))]
    for step in rows[:STEPS]:
        cells = "".join(f"{_cell(step[key]):>10}" for key in columns.values())
        lines.append(("", f"{step['step']:>8}{step['wall_us'] / 1000:>10.1f}{cells}"))
    if len(rows) > STEPS:
        lines.append(("", f"... {len(rows) - STEPS} steps more, in --json"))
    return lines


def _table(label: str, rows: list[dict[str, Any]], time: str) -> Lines:
    lines: Lines = []
    for row in rows[:ROWS]:
        percent = "" if row["share_pct"] is None else f"{row['share_pct']:.1f} %"
        text = (
            f"{percent:>7} {time_text(row[time]):>9} {row['count']:>6} x  {_short(row['name'], 58)}"
        )
        lines.append(("" if lines else label, text))
    return lines


def _idle(trace: dict[str, Any]) -> Lines:
    lines: Lines = []
    causes = {"launch_bound": "host late", "queued": "queued", "unlaunched": "launch unknown"}
    for stretch in trace["idle_stretches"][:ROWS]:
        host = stretch["host"]
        doing = "no host event covers half of it"
        if host is not None:
            doing = f"{host['kind']} {_short(host['name'], 36)} ({host['covers_pct']:.0f} %)"
        text = f"{time_text(stretch['duration_us']):>9} at {time_text(stretch['start_us'])}"
        lines.append(("" if lines else "idle most", f"{text}, {causes[stretch['cause']]}: {doing}"))
    return lines


def _collectives(trace: dict[str, Any]) -> Lines:
    lines: Lines = []
    for row in trace["collectives"][:ROWS]:
        size = "size n/a" if row["bytes"] is None else _size(row["bytes"])
        what = (
            f"{_short(row['collective'], 30)} of {size} {_short(row['dtype'] or '', 20)}".rstrip()
        )
        group = f", {row['group_size']} ranks" if row["group_size"] else ""
        bus = row["bus_gb_per_s"]
        speed = "bus n/a" if bus is None else f"{bus:.3g} GB/s bus"
        text = f"{row['count']} x {what}{group}: {time_text(row['mean_us'])} each, {speed}"
        lines.append(("" if lines else "collectives", text))
    reasons = sorted(set(trace["collectives_reasons"].values()))
    return lines + [("", f"n/a: {why}") for why in reasons]


def _syncs(trace: dict[str, Any]) -> Lines:
    syncs, lines = trace["syncs"], []
    if syncs["count"] is None:
        return []
    text = f"{syncs['count']} calls wait for the device, {time_text(syncs['total_us'])} in all"
    lines.append(("syncs", text))
    for call in syncs["calls"][:ROWS]:
        head = f"{time_text(call['total_us']):>9} {call['count']:>5} x {call['call']} in "
        room = WIDTH - LABEL - len(head)
        where = _short(call["where"] or "no operator", room * 3 // 5)
        within = f" of {_short(call['within'], room * 2 // 5 - 4)}" if call["within"] else ""
        lines.append(("", f"{head}{where}{within}"))
    return lines


def _compile(trace: dict[str, Any]) -> Lines:
    made = trace["compile"]
    if not made["region_calls"] and not made["compiles"]:
        return []
    work = "compiling n/a: none annotated"
    if made["compiles"] is not None:
        work = f"compiled {made['compiles']} times, {time_text(made['compile_us'])} in all"
    return [("compile", f"{made['region_calls']} calls of compiled regions; {work}")]


def bound(said: dict[str, Any], of: str) -> Lines:
    share = f" ({said['share']:.0%} of {of})" if is_number(said["share"]) else ""
    whose = f", rank {said['rank']}" if said["bound"] == "straggler" else ""
    lines = [("bound by", f"{said['bound']}{share}{whose}")]
    return lines + [("" if i else "evidence", text) for i, text in enumerate(said["evidence"])]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f} %"


def _short(name: str, width: int) -> str:
    """A C++ name without what all of them have in front; nothing that a terminal obeys."""
    for lead in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.removeprefix(lead)
    name = "".join(c if c.isprintable() else "?" for c in " ".join(name.split()))
    return name if len(name) <= width else f"{name[: width - 1]}…"


def time_text(us: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= 0.9995 * size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} us"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
