"""A few steps under torch's profiler: how much of a step is spent inside of large operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.rank.train import Parts, beyond_training, train
from paceline.rank.world import max_over_ranks

STEPS = 3

LARGE_S = 50e-6
"""An operator that takes longer computes; one that takes less may be all dispatch, which costs a
few microseconds an operator on any device."""

OPTIMIZER, COLLECTIVES = "Optimizer.", ("gloo:", "nccl:", "c10d::", "ncclDevKernel", "ncclKernel")


def operators(parts: Parts, step: int) -> dict[str, float] | None:
    """Of a step, the slowest rank's: `operators`, how many ran on the host outside of the
    optimizer; `large_s`, seconds inside of those that took LARGE_S or longer, themselves, without
    what they called; on a GPU the seconds in which kernels ran. None if all ranks agreed to stop.
    """
    parts = beyond_training(parts)
    on_gpu = parts.world.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    skipped = max(1, parts.refill_steps)
    if train(parts, step, step + skipped, extra=True) < step + skipped:
        return None
    seen = []
    for _ in range(STEPS):
        # accumulate: else a cycle that ended is dropped, and a warning says so
        with profile(activities=activities, acc_events=True) as watched:
            done = train(parts, step, step + 1, extra=True)
            if on_gpu:
                torch.cuda.synchronize(parts.world.device)
        if done < step + 1:
            return None
        seen.append(_taken(list(watched.events() or []), on_gpu))
    count, large_us = _usual(seen)
    found = torch.tensor([count, 1e-6 * large_us], dtype=torch.float64)
    most = max_over_ranks(found, parts.world)
    return {"operators": float(most[0]), "large_s": float(most[1])}


Taken = list[tuple[str, float, bool]]
"""Name, us, and whether it may be all dispatch: of each operator or kernel of a step, in order."""


def _taken(events: list[Any], on_gpu: bool) -> Taken:
    found: Taken = []
    for event in events:
        if event.name.startswith(COLLECTIVES):
            continue
        if str(event.device_type).endswith("CUDA"):
            # spans that the host named appear on the device too, around the kernels in them
            if not event.is_user_annotation:
                found.append((event.name, event.time_range.elapsed_us(), False))
        elif not _in_optimizer(event):
            found.append((event.name, 0.0 if on_gpu else event.self_cpu_time_total, True))
    return found


def _usual(seen: list[Taken]) -> tuple[float, float]:
    """(operators on the host, us of what is large) of a step. An operator that was interrupted by
    another process looks large: of steps that did the same one after the other, the least counts
    for each of them; of steps that didn't, the step with the least."""
    alike = len({tuple(name for name, *_ in one) for one in seen}) == 1
    if alike:
        seen = [[(n, min(us), host) for n, us, host in _side_by_side(seen)]]

    def large(one: Taken) -> float:
        return sum(us for _, us, host in one if not host or us >= 1e6 * LARGE_S)

    least = min(seen, key=large)
    return sum(host for *_, host in least), large(least)


def _side_by_side(seen: list[Taken]) -> list[tuple[str, list[float], bool]]:
    return [(same[0][0], [us for _, us, _ in same], same[0][2]) for same in zip(*seen, strict=True)]


def _in_optimizer(event: Any) -> bool:
    while event is not None:
        if event.name.startswith(OPTIMIZER):
            return True
        event = event.cpu_parent
    return False
