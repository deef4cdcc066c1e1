"""What ranks send each other and wait for, in lines."""

from __future__ import annotations

from typing import Any

Lines = list[tuple[str, str]]


def lines(record: dict[str, Any]) -> Lines:
    """Collectives, bytes and the exposed wait of a step; what a straggler does; the search for
    unused parameters. Nothing of a job of one rank."""
    texts = _sent(record) + _waited(record)
    found = [("comm" if i == 0 else "", text) for i, text in enumerate(texts)]
    diagnosis = record["diagnosis"]
    if diagnosis["bound"] == "straggler":
        found.append(("straggler", diagnosis["evidence"][0]))
    return found + _search(record)


def _sent(record: dict[str, Any]) -> list[str]:
    comm = record["comm"]
    if comm["collectives"] is None:
        return []
    counts = ", ".join(f"{n} {name.replace('_', '-')}" for name, n in comm["collectives"].items())
    text = f"{comm['backend']}: {counts or 'no collective'} a step; each rank puts in "
    text += said_bytes(comm["bytes_per_step"])
    mine, whole = comm["gradient_bytes_per_step"], comm["gradient_bytes_uncompressed"]
    if mine and whole and mine < whole:
        text += f", gradients compressed {whole / mine:.3g} times"
    return [text]


def _waited(record: dict[str, Any]) -> list[str]:
    comm, rate = record["comm"], record["throughput"]
    if comm["exposed_s"] is None or not rate["steps_measured"]:
        return []
    step_s = record["ledger"]["steady_wall_s"] / rate["steps_measured"]
    text = (
        f"{1e3 * comm['exposed_s']:.3g} ms exposed ({comm['exposed_s'] / step_s:.0%} of the step), "
        f"{1e3 * comm['overlap_s']:.3g} ms behind backward, by DDP's timers"
    )
    without = [r for r in record["counter_runs"] if r["name"] == "no_sync"]
    return [text, *(f"without it {_times(run)} the rate" for run in without)]


def _search(record: dict[str, Any]) -> Lines:
    """Of DDP with find_unused_parameters=true."""
    names, runs = record["comm"]["unused_in_some_step"], record["counter_runs"]
    if names is None:
        return []
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return [("search", f"{', '.join(names[:3])}{more} went unused in some step: it is needed")]
    text = "nothing was unused in any step: strategy.find_unused_parameters=false does"
    for run in (r for r in runs if r["name"] == "unused_search"):
        text += f"; without the search {_times(run)} the rate"
    return [("search", text)]


def _times(run: dict[str, Any]) -> str:
    interval = run["speedup_ci95"]
    sure = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
    return f"{run['speedup']:.3f} times{sure}"


def said_bytes(number: int) -> str:
    """As `104 kB`, in powers of 1000."""
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if number >= 1000**power:
            return f"{number / 1000**power:.3g} {unit}"
    return f"{number} B"
