"""What a person sees: the table of a sweep, the explanation of a job, the account of a failure."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.compare import columns
from paceline.compare.columns import figure
from paceline.compare.verdict import ONE_REPEAT
from paceline.record.schema import RAN
from paceline.report import advice, comm, levers, profile, saves, size

DROPPED = (
    "note",
    "steady",
    "numerics",
    "peak GiB",
    "data wait",
    "final loss",
    "recompiles",
    "compile s",
)
"""Columns a narrow terminal goes without, the least important first; a note becomes a line."""

NOTE_WIDTH = 40
BAR_WIDTH = 24
FILE_WIDTH = 160
TRACEBACK_LINES = 40
REASONS = 6

STYLES = {
    "faster": "green",
    "slower": "red",
    "baseline": "bold",
    "invalid": "red",
    "failed": "red",
    "interrupted": "yellow",
    "preempted": "yellow",
    "completed": "green",
}

ENDED_BADLY = ("failed", "invalid", "interrupted", "preempted")

SAME_WORDS = {
    ("off", "eager"),
    ("fp32", "float32"),
    ("tf32", "float32"),
    ("bf16", "bfloat16"),
    ("fp16", "float16"),
}
"""Requested -> effective words that mean the same."""


def screen() -> Console:
    """Standard output: as wide as the terminal, wide enough for a whole table in a file."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def table(made: dict[str, Any], console: Console) -> None:
    """The table that compare/table.py made, as wide as fits, and what must be read with it."""
    shown = columns.columns(made, full=False)
    if not any(shown["note"]):
        del shown["note"]
    for name in DROPPED:
        if sum(_width(n, texts) + 2 for n, texts in shown.items()) <= console.width:
            break
        shown.pop(name, None)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numbers = ["steady", "compile s", "data wait", "peak GiB", "final loss", "ratio"]
    numbers.append(f"{made['unit']}/s")
    for name in shown:
        grid.add_column(Text(name), justify="right" if name in numbers else "left", overflow="fold")
    for texts in zip(*shown.values(), strict=True):
        grid.add_row(*(Text(text, STYLES.get(text, "")) for text in texts))
    console.print(grid)

    bad = [row for row in made["rows"] if _ended_badly(row)]
    for row in bad:
        word = row["state"] if row["state"] in ENDED_BADLY else "invalid"
        why = str(row["note"]).removeprefix(f"{word}: ")
        _say(console, f"{word}  {_label(row)}: {why}  ({row['dir']})", "red")
    if "note" not in shown:
        _say_notes([row for row in made["rows"] if row not in bad and row["note"]], console)
    for note in made["notes"]:
        _say(console, f"note: {note}", "yellow")
    if max((row["repeats"] for row in made["rows"]), default=0) == 1 and len(made["rows"]) > 1:
        _say(console, f"no intervals: {ONE_REPEAT}", "dim")


def job(record: dict[str, Any], console: Console) -> None:
    """A finished job explained: how fast, doing what, where the time goes, does it still train."""
    status = record["status"]
    if status["state"] not in RAN:
        failure(record, console)
        return
    validity = record["validity"]
    head = Text(str(record["job"]["name"]), "bold")
    head.append(f"  {status['state']}", STYLES.get(status["state"], ""))
    head.append(f", {validity['verdict']}", "green" if validity["verdict"] == "valid" else "red")
    console.print(head, soft_wrap=True)
    lines = _rate(record) + _batch(record) + size.scaling_lines(record) + _phases(record)
    lines += levers.counter_run_lines(record) + comm.lines(record) + saves.lines(record)
    lines += profile.lines(record)
    lines += _training(record) + _ran_as(record)
    reasons = validity["reasons"][:REASONS]
    label = "not known" if validity["verdict"] == "valid" else "validity"
    lines += [(label if i == 0 else "", reason) for i, reason in enumerate(reasons)]
    lines += _diagnosis(record) + levers.restart_lines(record)
    lines.append(("record", f"{record['job']['dir']}/result.json"))
    for name, text in lines:
        _say(console, f"  {name:<11}{text}")


def failure(record: dict[str, Any], console: Console, traceback: bool = True) -> None:
    """A job without a rate: where it ended and why, the traceback of the first cause last."""
    status, name = record["status"], record["job"]["name"]
    keys = ("rank", "phase", "step")
    where = ", ".join(f"{key} {status[key]}" for key in keys if status[key] is not None)
    words = [str(status["state"]), f"({status['kind']})" if status["kind"] else "", str(name)]
    style = STYLES.get(str(status["state"]), "")
    _say(console, " ".join(w for w in words if w) + (f": {where}" if where else ""), style)
    if status["message"]:
        _say(console, f"  {status['message']}")
    if record["job"]["dir"]:
        _say(console, f"  logs: {record['job']['dir']}/log")
    lines = str(status["traceback"] or "").rstrip().splitlines() if traceback else []
    if len(lines) > TRACEBACK_LINES:
        _say(console, f"  ... {len(lines) - TRACEBACK_LINES} lines more, in result.json", "dim")
    for line in lines[-TRACEBACK_LINES:]:
        _say(console, f"  {line}", "dim")


# ---------------------------------------------------------------- the table


def _width(name: str, texts: list[str]) -> int:
    widest = max(map(len, [name, *texts]))
    return min(widest, NOTE_WIDTH) if name == "note" else widest


def _ended_badly(row: dict[str, Any]) -> bool:
    unrated = row["verdict"] == "invalid" and row["state"] in RAN
    return row["state"] in ENDED_BADLY or unrated


def _label(row: dict[str, Any]) -> str:
    chosen = " ".join(f"{key}={value}" for key, value in row["overrides"].items())
    return chosen or str(row["name"])


def _say_notes(rows: list[dict[str, Any]], console: Console) -> None:
    """Each note once, with the cells that have it; one repeat everywhere is said at the end."""
    whose: dict[str, list[str]] = {}
    for row in rows:
        if row["note"] != ONE_REPEAT:
            whose.setdefault(row["note"], []).append(_label(row))
    for note, labels in whose.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        _say(console, f"{labels[0]}{more}: {note}", "dim")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style), soft_wrap=True)


# ---------------------------------------------------------------- a job, line by line


def _rate(record: dict[str, Any]) -> list[tuple[str, str]]:
    rate = record["throughput"]
    unit, steady, interval = rate["unit"], rate["steady_units_per_s"], rate["ci95"]
    if steady is None:
        return [("rate", "none: no steady step was measured")]
    half = columns.half_width(interval)
    scope = {"within_process": "within this process", "restarts": "over restarts"}
    known = scope.get(rate["ci_scope"], "no interval") if half else "no interval"
    first = f"{figure(steady)} {unit}/s{half} ({known}), steady"
    second = (
        f"{figure(rate['sustained_units_per_s'])} {unit}/s with what recurs; "
        f"{figure(rate['end_to_end_units_per_s'])} over the whole job"
    )
    lines = [("rate", first), ("sustained", second)]
    if rate["step_s_median"] is not None:
        left_out = (rate["steps_excluded"] or {}).items()
        excluded = ", ".join(f"{count} {tag}" for tag, count in left_out)
        step = f"{_ms(rate['step_s_median'])} median, {_ms(rate['step_s_p95'])} p95"
        tail = f"; left out: {excluded}" if excluded else ""
        lines.append(("step", f"{step} over {rate['steps_measured']} steady steps{tail}"))
    if rate["mfu"] is not None:
        lines.append(("mfu", f"{rate['mfu']:.1%} of {rate['peak_flops']:.3g} FLOP/s a device"))
    return lines


def _batch(record: dict[str, Any]) -> list[tuple[str, str]]:
    rate, facts = record["throughput"], record["requested"] | record["effective"]
    total, micro = rate["global_batch_size"], rate["micro_batch_size"]
    world = facts.get("world_size")
    text = f"{world} ranks" if world != 1 else "1 rank"
    if total and micro and world:
        accumulated = total // (micro * world)
        steps = f" x {accumulated} micro-batches" if accumulated > 1 else ""
        text = f"{total} a step = {text} x {micro} a rank{steps}"
    threads = facts.get("threads_per_rank")
    return [("batch", f"{text}; {threads} thread{'' if threads == 1 else 's'} a rank")]


def _phases(record: dict[str, Any]) -> list[tuple[str, str]]:
    """A bar for each phase that takes at least half a percent of the steady steps."""
    phases, wall_s = record["ledger"]["steady_phases_s"], record["ledger"]["steady_wall_s"]
    if not phases or not wall_s:
        return []
    shares = {name: (seconds or 0.0) / wall_s for name, seconds in phases.items()}
    lines: list[tuple[str, str]] = []
    for name, share in shares.items():
        if share >= 0.005 or name == "other":
            bar = "█" * round(share * BAR_WIDTH)
            text = f"{name.replace('_', ' '):<11}{share:>6.1%}  {bar}".rstrip()
            lines.append(("" if lines else "steady step", f" {text}"))
    return lines


def _training(record: dict[str, Any]) -> list[tuple[str, str]]:
    numerics, memory = record["numerics"], record["memory"]
    lines = levers.compile_lines(record)
    if numerics["loss"]:
        held_out = numerics["eval_loss"]
        tail = "" if held_out is None else f", held out {_loss(held_out)}"
        start, end = _loss(numerics["loss"][0]), _loss(numerics["final_loss"])
        lines.append(("loss", f"{start} -> {end}{tail}"))
    lines += levers.training_lines(record)
    peaks = {"device": memory["peak_device_gib"], "host": memory["peak_host_gib"]}
    known = [f"{name} {gib:.2f} GiB" for name, gib in peaks.items() if gib is not None]
    lines += [("memory", ", ".join(known) + " at most")] if known else []
    lines += _use(record["utilisation"])
    return lines + size.memory_lines(record)


def _use(found: dict[str, Any]) -> list[tuple[str, str]]:
    shown = {"cpu_percent": ("cpu", "%"), "gpu_percent": ("gpu", "%"), "power_w": ("", " W")}
    texts = [
        f"{word} {found[key]:.0f}{unit}".strip()
        for key, (word, unit) in shown.items()
        if found[key] is not None
    ]
    return [("use", ", ".join(texts))] if texts else []


def _ran_as(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What was asked for and what ran, where the two aren't the same words."""
    asked, ran = record["requested"], dict(record["effective"])
    precision = ran.get("precision")
    if isinstance(precision, dict):
        ran["precision"] = precision.get("compute")
    if ran.get("compile") != "eager":
        ran.pop("compile", None)  # its own lines say what ran
    if asked.get("device") == str(ran.get("device")).partition(":")[0]:
        ran.pop("device")
    if asked.get("strategy") == "single" and "(" not in str(ran.get("strategy")):
        ran.pop("strategy", None)
    found = [
        f"{key}={asked[key]} ran as {ran[key]}"
        for key in asked
        if ran.get(key) is not None
        and not isinstance(asked[key], dict)
        and asked[key] != ran[key]
        and (asked[key], ran[key]) not in SAME_WORDS
    ]
    return [("ran as" if i == 0 else "", text) for i, text in enumerate(found)]


def _diagnosis(record: dict[str, Any]) -> list[tuple[str, str]]:
    found = record["diagnosis"]
    if not found["bound"]:
        return []
    share = f" ({found['share']:.0%} of the step)" if _numbers([found["share"]]) else ""
    return [("bound by", f"{found['bound']}{share}"), *advice.lines(record)]


def _numbers(values: Any) -> bool:
    return bool(values) and all(isinstance(v, int | float) for v in values)


def _loss(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else str(value)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
