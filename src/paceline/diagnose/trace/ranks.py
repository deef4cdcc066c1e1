"""Traces of several ranks beside each other: who is waited for, and by how much."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from paceline.diagnose.straggler import EACH, SHARE


def groups(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`together` of the traces that belong to one job: of a folder and a world size, or, where
    each rank has a folder of its own, all with the same world size and no rank twice."""
    folders: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for trace in traces:
        key = (str(Path(trace["path"]).parent), trace["world_size"])
        folders.setdefault(key, []).append(trace)
    made = [together(members) for members in folders.values()]
    if not any(made) and len({trace["world_size"] for trace in traces}) == 1:
        ranks = [trace["rank"] for trace in traces]
        made = [together(traces)] if len(ranks) == len(set(ranks)) else []
    return [group for group in made if group is not None]


def together(traces: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the ranks' steps say together; None with fewer than two ranks.

    A step of a rank is its wall; `wait` of it is communication that no computation hides, `own`
    the rest. All ranks end a collective together, so one that is late makes the others wait: the
    straggler has the longest own time, by a tenth of a step more than the median of the others and
    by half of that in every step, and waits the least. Only steps that all ranks have count.
    """
    ranks = _by_rank(traces)
    if len(ranks) < 2:
        return None
    common = sorted(set.intersection(*(set(steps) for steps in ranks.values())))
    found: dict[str, Any] = {"ranks": sorted(ranks), "world_size": _world(traces), "steps": common}
    found |= {"figures": [], "wait_spread_us": None, "straggler": None, "share": None}
    if not common:
        return found | {"why": "the ranks' traces have no step with known communication in common"}
    figures = [_figures(rank, ranks[rank], common) for rank in sorted(ranks)]
    waits = [line["wait_us"] for line in figures]
    found |= {"figures": figures, "wait_spread_us": max(waits) - min(waits)}
    return found | _straggler(ranks, figures, common)


def _by_rank(traces: list[dict[str, Any]]) -> dict[int, dict[int, dict[str, Any]]]:
    """Rank -> step -> its figures, over all traces of a rank."""
    ranks: dict[int, dict[int, dict[str, Any]]] = {}
    for trace in traces:
        if trace["rank"] is None:
            continue
        mine = ranks.setdefault(trace["rank"], {})
        mine |= {s["step"]: s for s in trace["steps"]["each"] if s["own_us"] is not None}
    return ranks


def _world(traces: list[dict[str, Any]]) -> int | None:
    sizes = {trace["world_size"] for trace in traces}
    return sizes.pop() if len(sizes) == 1 else None


def _figures(rank: int, steps: dict[int, dict[str, Any]], common: list[int]) -> dict[str, Any]:
    keys = ("wall_us", "own_us", "wait_us")
    return {"rank": rank} | {key: median(steps[s][key] for s in common) for key in keys}


def _straggler(
    ranks: dict[int, dict[int, dict[str, Any]]],
    figures: list[dict[str, Any]],
    common: list[int],
) -> dict[str, Any]:
    last = max(figures, key=lambda line: (line["own_us"], -line["rank"]))
    rank = last["rank"]
    step_us = median(line["wall_us"] for line in figures)
    excess = [
        ranks[rank][s]["own_us"] - median(ranks[r][s]["own_us"] for r in ranks if r != rank)
        for s in common
    ]
    if median(excess) < SHARE * step_us:
        most = 100 * median(excess) / step_us
        return {
            "why": f"no rank works a tenth of a step longer than the others (at most {most:.1f} %)"
        }
    if min(excess) < EACH * SHARE * step_us:
        return {"why": f"rank {rank} works longer than the others, but not in every step"}
    if last["wait_us"] > min(line["wait_us"] for line in figures):
        return {"why": f"rank {rank} works longest, but it isn't the one that waits the least"}
    others = [line for line in figures if line["rank"] != rank]
    return {
        "straggler": rank,
        "share": median(excess) / step_us,
        "why": (
            f"rank {rank} works {last['own_us'] / 1000:.3g} ms of a step itself, the median of the "
            f"others {median(o['own_us'] for o in others) / 1000:.3g} ms; it waits in collectives "
            f"for {last['wait_us'] / 1000:.3g} ms, they for "
            f"{median(o['wait_us'] for o in others) / 1000:.3g} ms"
        ),
    }
