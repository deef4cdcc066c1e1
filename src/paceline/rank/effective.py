"""What really ran, by looking: wrappers, dtypes, threads, compiled frames, workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from paceline.rank.train import Parts, place

_COMPUTES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def look(parts: Parts) -> dict[str, Any]:
    """The `effective` section, in the same words as the requested one."""
    model, world = parts.state.model, parts.world
    parameters = list(model.parameters())
    report = parts.compile.report()
    return {
        "device": (parameters[0] if parameters else world).device.type,
        "world_size": world.world_size,
        "threads_per_rank": torch.get_num_threads(),
        "compile": f"{report.frames_compiled} frames" if report.frames_compiled else "eager",
        "precision": {
            "parameters": _names(p.dtype for p in parameters),
            "compute": _compute_dtype(parts),
            "optimizer_state": _names(
                t.dtype
                for state in parts.state.optimizer.state.values()
                for t in tree_leaves(state)
                if isinstance(t, Tensor) and t.dim() > 0
            ),
        },
        "strategy": wrappers(parts.model, model),
        "data": {
            "sampling": parts.state.data.sampling,
            "workers": getattr(parts.state.data, "workers_alive", 0),
        },
        "checkpoint": f"{len(parts.checkpoint.report()['saves'])} saves",
    }


def wrappers(outer: nn.Module, inner: nn.Module) -> str:
    """The classes from the outermost wrapper to the model, as `DistributedDataParallel(Gpt)`."""
    names = []
    while outer is not inner:
        names.append(type(outer).__name__)
        outer = outer.module  # type: ignore[assignment]
    names.append(type(inner).__name__)
    return "(".join(names) + ")" * (len(names) - 1)


def ineffective(requested: dict[str, Any], effective: dict[str, Any]) -> list[str]:
    """What was asked for and did nothing, one sentence each."""
    reasons = []
    if requested["compile"] != "off" and effective["compile"] == "eager":
        reasons.append(
            f"compile={requested['compile']}: no frame was compiled, the model ran eager"
        )
    if requested["strategy"] != "single" and effective["world_size"] == 1:
        reasons.append(
            f"strategy={requested['strategy']} over 1 rank synchronises nothing; "
            "raise launch.nproc, or use strategy=single"
        )
    computed = effective["precision"]["compute"]
    if requested["precision"] == "bf16" and computed not in (None, "bfloat16"):
        reasons.append(f"precision=bf16: the model computed in {computed}")
    asked = requested["data"].get("num_workers") or 0
    if asked and effective["data"]["workers"] < asked:
        reasons.append(f"{asked} loader workers were asked for, {effective['data']['workers']} ran")
    if requested["threads_per_rank"] != effective["threads_per_rank"]:
        reasons.append(
            f"{requested['threads_per_rank']} threads a rank were asked for, "
            f"{effective['threads_per_rank']} are set"
        )
    return reasons


def _compute_dtype(parts: Parts) -> str | None:
    """The dtype that the first matrix product or convolution gives, seen in one forward."""
    model = parts.state.model
    layer = next((m for m in model.modules() if isinstance(m, _COMPUTES)), None)
    batch = next(iter(parts.state.data.held_out(1)), None)
    if layer is None or batch is None:
        return None
    seen: list[torch.dtype] = []
    hook = layer.register_forward_hook(lambda m, i, output: seen.append(output.dtype))
    try:
        eager = torch.compiler.set_stance("force_eager")
        with torch.no_grad(), eager, parts.state.precision.forward():
            parts.loss(model, place(batch, parts.world.device))
    finally:
        hook.remove()
    return _names(seen)


def _names(dtypes: Any) -> str | None:
    names = sorted({str(d).removeprefix("torch.") for d in dtypes})
    return ", ".join(names) or None
