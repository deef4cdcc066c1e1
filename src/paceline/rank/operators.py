"""A few steps under torch's profiler: how much of a step is spent inside of large operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.rank.train import Parts, beyond_training, train
from paceline.rank.world import max_over_ranks

STEPS = 2

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
    # accumulate: else a cycle that ended is dropped, and a warning says so
    with profile(activities=activities, acc_events=True) as watched:
        done = train(parts, step, step + STEPS, extra=True)
        if on_gpu:
            torch.cuda.synchronize(parts.world.device)
    if done < step + STEPS:
        return None
    count, large_us = _count(list(watched.events() or []), on_gpu)
    found = torch.tensor([count, 1e-6 * large_us], dtype=torch.float64) / STEPS
    most = max_over_ranks(found, parts.world)
    return {"operators": float(most[0]), "large_s": float(most[1])}


def _count(events: list[Any], on_gpu: bool) -> tuple[int, float]:
    count, large_us = 0, 0.0
    for event in events:
        if event.name.startswith(COLLECTIVES):
            continue
        if str(event.device_type).endswith("CUDA"):
            # spans that the host named appear on the device too, around the kernels in them
            large_us += 0.0 if event.is_user_annotation else event.time_range.elapsed_us()
        elif not _in_optimizer(event):
            count += 1
            if not on_gpu and event.self_cpu_time_total >= 1e6 * LARGE_S:
                large_us += event.self_cpu_time_total
    return count, large_us


def _in_optimizer(event: Any) -> bool:
    while event is not None:
        if event.name.startswith(OPTIMIZER):
            return True
        event = event.cpu_parent
    return False
