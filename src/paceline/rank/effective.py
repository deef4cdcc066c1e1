"""What really ran, by looking: wrappers, dtypes, threads, compiled frames, workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline.rank import dtypes
from paceline.rank.train import Parts
from paceline.types import CompileReport


def look(parts: Parts, report: CompileReport) -> dict[str, Any]:
    """The `effective` section, in the same words as the requested one."""
    model, world = parts.state.model, parts.world
    parameters = list(model.parameters())
    return {
        "device": (parameters[0] if parameters else world).device.type,
        "world_size": world.world_size,
        "threads_per_rank": torch.get_num_threads(),
        "compile": _compiled(report),
        "precision": dtypes.look(parts),
        "activation_checkpointing": parts.checkpointing.report(),
        "optimizer": _optimizer(parts.state.optimizer),
        "strategy": _strategy(parts),
        "data": {
            "sampling": parts.state.data.sampling,
            "workers": getattr(parts.state.data, "workers_alive", 0),
        },
        "checkpoint": f"{len(parts.checkpoint.report()['saves'])} saves",
    }


def _strategy(parts: Parts) -> str:
    describe = getattr(parts.strategy, "describe", None)
    if describe is None:
        return wrappers(parts.model, parts.state.model)
    said: str = describe(lambda module: _is_compiled(vars(module).get("forward")))
    return said


def wrappers(outer: nn.Module, inner: nn.Module) -> str:
    """The classes from the outermost wrapper to the model, and which of them is compiled, as
    `DistributedDataParallel(compiled Gpt)`: the order in which they were put on."""
    names = []
    while outer is not inner:
        names.append(_name(outer))
        outer = outer.module  # type: ignore[assignment]
    names.append(_name(inner))
    return "(".join(names) + ")" * (len(names) - 1)


def _name(module: nn.Module) -> str:
    name = type(module).__name__
    if _is_compiled(vars(module).get("forward")):
        return f"compiled {name}"
    inside = sum(_is_compiled(vars(m).get("forward")) for m in module.modules())
    wraps = isinstance(getattr(module, "module", None), nn.Module)
    return f"{name} with {inside} compiled blocks" if inside and not wraps else name


def _is_compiled(function: Any) -> bool:
    return hasattr(getattr(function, "__func__", function), "_torchdynamo_orig_callable")


def _compiled(report: CompileReport) -> str:
    if not report.frames_compiled:
        return "eager"
    fallen = f", {report.frames_fallen_back} fell back" if report.frames_fallen_back else ""
    return f"{report.frames_compiled} frames{fallen}"


def _optimizer(optimizer: torch.optim.Optimizer) -> str:
    """As `AdamW, fused`: the class, and what its step runs as."""
    words = [type(optimizer).__name__]
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    words += [word for word in ("fused", "foreach", "capturable") if group.get(word)]
    return ", ".join([*words, "compiled"] if optimizer_compiled(optimizer) else words)


def optimizer_compiled(optimizer: torch.optim.Optimizer) -> bool:
    """Also under a scheduler, which wraps the step that it counts."""
    step: Any = optimizer.step
    while step is not None and not _is_compiled(step):
        step = getattr(step, "__wrapped__", None)
    return step is not None


def ineffective(
    requested: dict[str, Any], effective: dict[str, Any], report: CompileReport
) -> list[str]:
    """What was asked for and did nothing, one sentence each."""
    reasons = []
    if requested["compile"] != "off" and effective["compile"] == "eager":
        reasons.append(
            f"compile={requested['compile']}: no frame was compiled, the model ran eager (is "
            "TORCH_COMPILE_DISABLE or TORCHDYNAMO_DISABLE set?)"
        )
    reasons += [
        f"compile.recompile_limit={report.recompile_limit}: {place} was recompiled so often that "
        "the rest ran eager; raise it, set compile.dynamic=true, or give fixed shapes"
        for place in report.limits_hit
    ]
    if report.cudagraphs_skipped:
        reasons.append(
            f"compile={requested['compile']}: CUDA graphs were skipped, {report.cudagraphs_skipped}"
        )
    if requested["strategy"] != "single" and effective["world_size"] == 1:
        reasons.append(
            f"strategy={requested['strategy']} over 1 rank synchronises nothing; "
            "raise launch.nproc, or use strategy=single"
        )
    blocks = requested["activation_checkpointing"]
    if blocks != "off" and effective["activation_checkpointing"] == "0 blocks":
        reasons.append(
            f"activation_checkpointing={blocks}: the model's blocks() has no block, so that every "
            "activation was kept"
        )
    reasons += dtypes.unmet(requested["precision"], effective["precision"])
    asked = requested["data"].get("num_workers") or 0
    asked = 1 if asked == "auto" else asked  # at least one, by the cores of the node
    if asked and effective["data"]["workers"] < asked:
        reasons.append(f"{asked} loader workers were asked for, {effective['data']['workers']} ran")
    if requested["threads_per_rank"] != effective["threads_per_rank"]:
        reasons.append(
            f"{requested['threads_per_rank']} threads a rank were asked for, "
            f"{effective['threads_per_rank']} are set"
        )
    return reasons
