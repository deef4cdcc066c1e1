"""What ranks send each other in a step: counted by watching a whole one after the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from paceline.rank.train import Parts
from paceline.rank.watch import Watch, a_step

NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "broadcast_": "broadcast",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
}
"""torch's operators by what they do; others keep their names."""

INPUT_SECOND = ("_reduce_scatter_base_", "reduce_scatter_", "_allgather_base_", "allgather_")
"""Operators whose first argument is what they fill."""

REDUCTIONS = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class Sent:
    """One collective: `micro`, the micro-batch in which it was called; `gradient`: it added up
    floating numbers in backward."""

    name: str
    bytes: int
    micro: int
    gradient: bool


class Collectives(Watch):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Sent] = []

    def see(self, func: Any, args: Any, result: Any) -> None:
        namespace, _, name = str(getattr(func, "_overloadpacket", func)).partition(".")
        if "c10d" not in namespace or name in ("wait_tensor", "barrier"):
            return
        mine = args[1] if name in INPUT_SECOND and len(args) > 1 else args[0]
        tensors = [t for t in tree_leaves(mine) if isinstance(t, Tensor)]
        known = NAMES.get(name, name)
        floating = any(t.is_floating_point() for t in tensors)
        gradient = self.backward and known in REDUCTIONS and floating
        self.sent.append(Sent(known, sum(map(_bytes, tensors)), self.micro, gradient))


def look(parts: Parts) -> tuple[dict[str, Any], list[str]]:
    """What is counted of the `comm` section, on this rank, and what is wrong with it. A collective,
    called by all ranks."""
    if parts.world.alone:
        return {}, []
    watch, micro_batches = Collectives(), parts.run.accumulation_steps
    seen = a_step(parts, watch, micro_batches)
    sent = _by_hook(watch.sent, parts.state.comm_hook, micro_batches - 1)
    counts = {name: sum(s.name == name for s in sent) for name in sorted({s.name for s in sent})}
    gradients = [s for s in sent if s.gradient]
    expected = expected_reductions(parts)
    section = {
        "backend": dist.get_backend(),
        "collectives": counts if seen else None,
        "bytes_per_step": sum(s.bytes for s in sent) if seen else None,
        "gradient_bytes_per_step": sum(s.bytes for s in gradients) if seen else None,
        "gradient_bytes_uncompressed": _uncompressed(parts),
        "reductions": len(gradients) if seen else None,
        "expected": expected,
        "unused_in_some_step": unused_in_some_step(parts),
    }
    return section, mismatch(gradients, expected, micro_batches) if seen else []


def _by_hook(sent: list[Sent], hook: Any, last: int) -> list[Sent]:
    """A hook that goes on in threads of its own says what it sends: no watch sees all of it."""
    known: list[int] | None = getattr(hook, "sent", None)
    mine = [s for s in sent if s.gradient and s.micro == last]
    if known is None or not mine:
        return sent
    return [s for s in sent if s not in mine] + [Sent("all_reduce", n, last, True) for n in known]


def expected_reductions(parts: Parts) -> int | None:
    """Reductions of gradients that a step needs; None where that isn't known."""
    model, per_bucket = parts.model, getattr(parts.state.comm_hook, "reductions", 1)
    if isinstance(model, DistributedDataParallel):
        return per_bucket * len(buckets(model))
    known = getattr(parts.strategy, "reductions", None)
    return sharded_groups(model) if known is None else known(model)


def sharded_groups(model: nn.Module) -> int | None:
    """Reductions of FSDP: one for each module that was sharded by itself and holds trainable
    parameters, in each dimension of its mesh (HSDP has two); None of another model."""
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    taken: set[int] = set()
    count = 0
    for unit in reversed(units):  # inner ones first
        assert isinstance(unit, nn.Module)
        mine = [p for p in unit.parameters() if id(p) not in taken and isinstance(p, DTensor)]
        taken |= {id(p) for p in mine}
        trained = [p for p in mine if p.requires_grad]
        if trained:
            mesh = trained[0].device_mesh  # FSDP sends nothing in a dimension of one rank
            count += sum(mesh.size(dim) > 1 for dim in range(mesh.ndim))
    return count if units else None


def unused_in_some_step(parts: Parts) -> list[str] | None:
    asked = getattr(parts.strategy, "unused_in_some_step", None)
    return None if asked is None else asked(parts.model)


def buckets(model: DistributedDataParallel) -> list[int]:
    """Bytes of each."""
    found = model._get_ddp_logging_data()
    sizes = found["rebuilt_bucket_sizes" if found.get("has_rebuilt_buckets") else "bucket_sizes"]
    return [int(size) for size in sizes.split(", ")]


def mismatch(gradients: list[Sent], expected: int | None, micro_batches: int) -> list[str]:
    """Reductions where there should be none, or too few of them, in a sentence."""
    early = sum(s.micro < micro_batches - 1 for s in gradients)
    last = len(gradients) - early
    said = f"{last} reductions of gradients in the last micro-batch"
    if early:
        return [
            f"communication: {early} reductions of gradients before the last of {micro_batches} "
            f"micro-batches, where {expected or last} in the last one are enough: does the "
            "strategy's grad_sync(model, False) hold around forward and backward?"
        ]
    if expected is not None and last != expected:
        return [f"communication: {said} of a step, {expected} are right"]
    return []


def with_comm(phases_s: dict[str, Any], exposed_s: float | None) -> dict[str, Any]:
    """`phases_s` with `comm` taken out of `backward`, never below 0; as they are under None."""
    if exposed_s is None:
        return phases_s
    comm = min(exposed_s, phases_s["backward"])
    found = {}
    for name, value in phases_s.items():
        found[name] = value
        if name == "backward":
            found |= {"backward": value - comm, "comm": comm}
    return found


def _uncompressed(parts: Parts) -> int | None:
    """Bytes of all gradients in the dtype that they have, where each rank holds all of them."""
    if any(isinstance(m, FSDPModule) for m in parts.model.modules()):
        return None
    return sum(_bytes(p) for p in parts.state.model.parameters() if p.requires_grad)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
