"""In which dtypes a step computes: seen by watching the operators of one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from paceline.rank.train import Parts
from paceline.rank.watch import Watch, a_step

FIRST_TF32_DEVICE = (8, 0)
"""The compute capability of Ampere."""

PROMISED = {
    "fp32": {"compute": "float32", "float32_matmul": "ieee"},
    "tf32": {"compute": "float32", "float32_matmul": "tf32"},
    "bf16": {"compute": "bfloat16"},
    "fp16": {"compute": "float16"},
    "bf16_pure": dict.fromkeys(["parameters", "compute", "optimizer_state"], "bfloat16"),
}
"""What each option must show, where there is anything to see."""

SAID = {
    "parameters": "the parameters are",
    "compute": "the model computed in",
    "optimizer_state": "the optimizer's state is",
    "float32_matmul": "float32 was multiplied as",
}

PRODUCTS = {
    *("mv", "addmv", "addbmm", "_grouped_mm", "_scaled_grouped_mm"),
    *("_cudnn_rnn", "_cudnn_rnn_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
}
"""Operators beside attention and those of which torch itself counts the FLOPs."""


def look(parts: Parts) -> dict[str, str | None]:
    """The `precision` section: names of dtypes, "bfloat16, float32" where there are several, None
    where there is nothing to see. A collective, called by all ranks; leaves no trace in the model.

    compute, backward: what matrix products, convolutions and attention give. reduction: what goes
    over the wire when gradients are averaged. float32_matmul: `float32_matmul()`.
    """
    parameters = list(parts.state.model.parameters())
    grads = [p.grad for p in parameters if p.grad is not None]
    watch = Dtypes()
    a_step(parts, watch)
    seen = watch.seen
    return {
        "parameters": _names(p.dtype for p in parameters),
        "compute": _names(seen["compute"]),
        "backward": _names(seen["backward"]),
        "gradients": _names(g.dtype for g in grads),
        "reduction": _names(seen["reduction"]),
        "optimizer_state": _names(
            t.dtype
            for state in parts.state.optimizer.state.values()
            for t in tree_leaves(state)
            if isinstance(t, Tensor) and t.dim() > 0
        ),
        "float32_matmul": float32_matmul(parts.world.device),
    }


def unmet(option: str | None, seen: dict[str, str | None]) -> list[str]:
    """What `precision=option` promises and a step didn't show, one sentence each. Among several
    dtypes the promised one is enough: autocast leaves a last layer in float32."""
    return [
        f"precision={option}: {SAID[what]} {seen[what]}, not {promised}"
        for what, promised in PROMISED.get(option or "", {}).items()
        if promised not in (seen[what] or promised).split(", ")
    ]


def float32_matmul(device: torch.device) -> str | None:
    """How the device multiplies float32: "ieee" in full, "tf32", or both by their use; None on a
    CPU. Read back from torch, and from what overrules it."""
    if device.type != "cuda":
        return None
    capable = torch.cuda.get_device_capability(device) >= FIRST_TF32_DEVICE
    if not capable or os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return "ieee"
    # none: not set at any level, so in full
    products = torch.backends.cuda.matmul.fp32_precision.replace("none", "ieee")
    convolutions = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    convolutions = convolutions.replace("none", "ieee")
    return products if products == convolutions else f"{products}, convolutions {convolutions}"


def peak_dtype(precision: dict[str, str | None]) -> str:
    """The dtype whose peak FLOP/s a model is held to: the fastest in which it computed."""
    computed = (precision["compute"] or "float32").split(", ")
    for low in ("bfloat16", "float16"):
        if low in computed:
            return low
    tf32 = computed == ["float32"] and precision["float32_matmul"] == "tf32"
    return "tf32" if tf32 else computed[0]


class Dtypes(Watch):
    """Collects the dtypes that operators give: of products and their gradients, and of what ranks
    add up."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[torch.dtype]] = {"compute": set(), "backward": set()}
        self.seen["reduction"] = set()

    def see(self, func: Any, args: Any, result: Any) -> None:
        packet = getattr(func, "_overloadpacket", func)
        name = getattr(packet, "__name__", "")
        if packet in flop_registry or name in PRODUCTS or "scaled_dot_product" in name:
            # the first: attention also gives statistics, in float32 always
            stage = "backward" if self.backward else "compute"
            self.seen[stage].update(_floating(result)[:1])
        elif self.backward and "reduce" in name and "c10d" in str(func):
            self.seen["reduction"].update(_floating(args))


def _floating(tree: Any) -> list[torch.dtype]:
    leaves = tree_leaves(tree)
    return [t.dtype for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


def _names(dtypes: Iterable[torch.dtype]) -> str | None:
    return ", ".join(sorted({str(d).removeprefix("torch.") for d in dtypes})) or None
