"""Advice against each bound: one function a bound, which yields what could be typed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

from paceline.diagnose.case import NOISE, Advice, Case, said, tried

WORTH = 0.1
"""Of a step: the least share that anything is advised against."""

ROOMY = 0.8
"""Of the memory, at most, for a strategy that needs more of it."""

LATE = 0.25
"""Of the gain of workers: how far it may fall short, for they come when cores are free for them."""

SLACK = 1.25
"""Workers that could just keep up leave the step waiting whenever one of them is late."""

MOST_WORKERS = 8
ENOUGH = 0.97
"""Fewer workers are advised where they give this much of what the most would."""


def _input(case: Case) -> Advice:
    alone, cached = case.runs.get("loader_alone"), case.runs.get("cached_batch")
    loader = case.config["data"].get("loader")
    if loader is None:
        return
    if alone is None or cached is None:
        yield from _unmeasured(case, loader["num_workers"])
        return
    workers = _workers(case, alone, cached)
    if workers is not None:
        count, gain, basis = workers
        yield said(
            "data.loader.num_workers",
            count,
            f"the step waits for data {case.share('input'):.0%} of its time",
            gain,
            [gain * (1 - LATE), max(case.ceiling("input"), gain) * (1 + NOISE)],
            basis,
        )
    if case.config["data"].get("backend") == "pillow" and find_spec("torchvision") is not None:
        yield said(
            "data.backend",
            "torchvision",
            "images are decoded by Pillow",
            bounds=[1.0, case.ceiling("input")],
            basis="not predicted: it depends on the images; see also fast_decode, and DALI",
            same_work=False,
        )
    if case.config["data"].get("fast_decode") is False:
        yield said(
            "data.fast_decode",
            "true",
            "items are decoded at their full size",
            bounds=[1.0, case.ceiling("input")],
            basis="not predicted: it depends on the sizes of the images",
            same_work=False,
        )


def _unmeasured(case: Case, workers: int | str) -> Advice:
    if workers == 0:
        yield said(
            "data.loader.num_workers",
            "auto",
            f"the step waits for data {case.share('input'):.0%} of its time",
            bounds=[1.0, case.ceiling("input")],
            basis="not predicted: diagnose=intervene measures the loader alone",
        )


def _workers(
    case: Case, alone: dict[str, Any], cached: dict[str, Any]
) -> tuple[int, float, str] | None:
    """(number of workers, gain, basis). A step can't be shorter than with a perfect loader and the
    handing over of its batch, nor than the batch's loading spread over the workers, nor than all
    that the cores have to compute: max(c + h, l / n, cpu of all three / cores). Steps on one cached
    batch run hot; what the job's own steps take beside their wait counts if it is more."""
    ran = case.record["effective"]
    now = int((ran.get("data") or {}).get("workers") or 0)
    step_s = cached["base_step_s"]
    ready_s = max(step_s / cached["speedup"], _beside_the_wait_s(case.record))
    load_s, cpu_s = alone["step_s"] * max(now, 1), alone["cpu_s"]
    ranks = (ran.get("world_size") or 1) / (ran.get("nnodes") or 1)
    there = case.record["environment"].get("cores") or 1
    # other ranks load at other times; what others keep busy isn't there, half at most
    taken = alone.get("others_cores", 0.0) if ranks == 1 else 0.0
    cores = max(there / ranks - min(taken, there / 2), 1.0)
    on_cpu = str(ran.get("device", "cpu")).startswith("cpu")
    busy_s = ready_s * (ran.get("threads_per_rank") or 1 if on_cpu else 1)

    # with workers already there, what handing over takes of the cores is in the loader's own
    handing_s = 0.0 if now else alone.get("handover_cpu_s", 0.0)
    with_s = ready_s + alone.get("handover_s", 0.0)

    def predicted(count: int, slack: float = 1.0) -> float:
        computing_s = (cpu_s + handing_s + min(busy_s, cores * ready_s)) / cores
        return float(max(with_s, slack * load_s / count, computing_s))

    # a worker that waits needs no core of its own
    most = MOST_WORKERS if cpu_s < load_s / 4 else max(1, min(MOST_WORKERS, math.ceil(cores)))
    best = min(predicted(count) for count in range(1, most + 1))
    enough = (n for n in range(1, most + 1) if predicted(n, SLACK) * ENOUGH <= best)
    count = next(enough, most)
    if count == now:
        return None
    gain = (step_s + case.recurring_s) / (predicted(count) + case.recurring_s)
    what = "waiting" if cpu_s < load_s / 4 else f"{cpu_s / load_s:.0%} computing"
    basis = (
        f"a batch takes {1e3 * load_s:.3g} ms to load ({what}), a step with a perfect loader "
        f"{1e3 * with_s:.3g} ms, handed over by a worker; {count} workers on {cores:.3g} free cores"
    )
    return count, gain, basis


def _beside_the_wait_s(record: dict[str, Any]) -> float:
    ledger = record["ledger"]
    waits_s = ledger["steady_phases_s"].get("data_wait") or 0.0
    return float((ledger["steady_wall_s"] - waits_s) / record["throughput"]["steps_measured"])


def _communication(case: Case) -> Advice:
    strategy, hook = case.choices.get("strategy"), case.choices.get("comm_hook")
    if strategy in ("fsdp", "hsdp"):
        yield from _unsharded(case)
        return
    parameters = (case.record["effective"].get("precision") or {}).get("reduction")
    if hook == "none" and parameters in (None, "float32"):
        half = 1 / (1 - case.share("communication") / 2)
        yield said(
            "comm_hook",
            "fp16",
            f"gradients travel {case.share('communication'):.0%} of a step",
            half,
            [1.0, case.ceiling("communication")],
            "half the bytes over a link whose bandwidth is the limit",
        )
        yield said(
            "comm_hook",
            "powersgd",
            "gradients of low rank are a fraction of their size",
            bounds=[1.0, case.ceiling("communication")],
            basis="not predicted: what it computes depends on the shapes of the parameters",
        )
    yield from _larger_batch(case, "gradients travel once a step, however large its batch")


def _unsharded(case: Case) -> Advice:
    """Sharding pays in memory; where a whole copy fits, a third of what it sends can stay."""
    known = case.record["memory"]["estimate"] or {}
    copy_gib, room_gib = known.get("ddp_gib"), known.get("available_gib")
    if copy_gib is None or room_gib is None or copy_gib > ROOMY * room_gib:
        return
    yield said(
        "strategy",
        "ddp",
        f"a whole copy takes {copy_gib:.2g} of {room_gib:.3g} GiB: nothing needs to be sharded",
        basis="not predicted: forward and backward contain the communication, untold",
    )


def _optimizer(case: Case) -> Advice:
    fused = case.runs.get("fused_optimizer")
    if fused is not None:
        yield tried(
            case,
            fused,
            "optimizer.fused",
            "true",
            f"the optimizer's step takes {case.share('optimizer'):.0%}",
            "tried in turns with the job as it is, in the same process",
        )
    elif case.config["optimizer"].get("fused", True) is None:
        yield said(
            "optimizer.fused",
            "true",
            f"the optimizer's step takes {case.share('optimizer'):.0%}",
            bounds=[1.0, case.ceiling("optimizer")],
            basis="not tried: diagnose=intervene does",
        )


def _host(case: Case) -> Advice:
    yield from _larger_batch(
        case, f"{case.share('host'):.0%} of a step doesn't grow with the batch"
    )
    if case.choices.get("compile") == "off":
        yield said(
            "compile",
            "inductor",
            "a compiled step needs less of the host",
            bounds=[1.0, case.ceiling("host")],
            basis="not predicted: compile.compare_eager measures it in that job",
        )


def _larger_batch(case: Case, why: str) -> Advice:
    double, batch = case.runs.get("double_batch"), case.config["data"].get("global_batch_size")
    if double is not None and batch and case.share("input") < WORTH:
        yield tried(
            case,
            double,
            "data.global_batch_size",
            2 * batch,
            why,
            "twice the batch, tried in the same process; it is another training: see scaling",
            same_work=False,
        )


def _compute(case: Case) -> Advice:
    on_gpu = str(case.record["effective"].get("device")).startswith("cuda")
    if case.choices.get("compile") == "off":
        yield said(
            "compile",
            "inductor",
            f"forward and backward compute {case.share('compute'):.0%} of a step",
            basis="not predicted: fused kernels move less memory, by how much is in the model",
        )
    if on_gpu and case.choices.get("precision") in ("fp32", "tf32"):
        yield said(
            "precision",
            "bf16",
            f"matrix products in {case.choices['precision']}",
            basis="not predicted: at most that of the device's peaks",
        )


def _checkpoint(case: Case) -> Advice:
    asked, cost_s = case.record["requested"]["checkpoint"], case.share("checkpoint") * case.step_s
    found = case.record["checkpoint"]["economics"]
    best = (found or {}).get("recommended_every_steps")
    every = asked["every_steps"]
    if best and every and best > every:
        left_s = cost_s * every / best
        gain = case.step_s / (case.step_s - cost_s + left_s)
        yield said(
            "checkpoint.every_steps",
            best,
            f"saves take {case.share('checkpoint'):.0%} of a step; for a failure in "
            f"{found['mtbf_s']:.0f} s Daly's rule saves less often",
            gain,
            [gain * (1 - NOISE), gain * (1 + NOISE)],
            f"a save takes {1e3 * cost_s * every:.3g} ms, whenever it comes",
        )
    if asked["option"] in ("sync", "dcp"):
        yield said(
            "checkpoint",
            "async",
            "training goes on while a save is written",
            bounds=[1.0, case.ceiling("checkpoint")],
            basis="not predicted: how far writing slows the steps beside it",
        )


def _recompile(case: Case) -> Advice:
    if case.config["compile"].get("dynamic") is True:
        return
    gain = case.ceiling("recompile")
    yield said(
        "compile.dynamic",
        "true",
        f"compiling again takes {case.share('recompile'):.0%} of a step",
        gain,
        [1.0, gain * (1 + NOISE)],
        "one kernel for all shapes, as fast as one for each; else pad to a few sizes",
    )


ADVISORS = {
    "input": _input,
    "communication": _communication,
    "optimizer": _optimizer,
    "host": _host,
    "compute": _compute,
    "checkpoint": _checkpoint,
    "recompile": _recompile,
}
