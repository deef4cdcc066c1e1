"""strategy=fsdp: parameters, gradients and optimizer state sharded over all ranks (FSDP2).

Each sharded module gathers its parameters before it computes and gives them back after it; its
gradients are averaged straight into shards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from paceline.types import CommHook, Compile, Context, Precision, World, at_least

NOT_ALONE = (nn.ModuleList, nn.ModuleDict, nn.Embedding)
"""Never sharded by size: containers have no forward to gather before, and models tie the weight of
an embedding to their output, outside of its forward."""

MIXED = ("mixed dtype", "expected scalar type", "same dtype", "dtype mismatch", "must match dtype")
"""Words of torch's errors about operands of several dtypes."""


@dataclass(frozen=True)
class Fsdp:
    """`wrap`: what is sharded as one, beside the rest of the model: each of its blocks(), or each
    innermost module of at least `min_params` parameters. `reshard_after_forward`: free a block's
    whole parameters between forward and backward; false keeps them, which saves a gather.
    `prefetch`: blocks gathered ahead of the one that computes; 0 leaves it to FSDP, which gathers
    one ahead in backward. `gather_dtype`: of parameters on the wire and in the model; `compute` is
    the precision's, by FSDP's MixedPrecisionPolicy, float32 leaves casting to autocast.
    `reduce_dtype`: of gradients on the wire.
    `init`: whole, every rank makes the whole model; meta, only rank 0 does, in its host's memory,
    and the shards get its values: the same start, for a model that doesn't fit otherwise."""

    wrap: Literal["blocks", "size"]
    min_params: int
    reshard_after_forward: bool
    prefetch: int
    gather_dtype: Literal["compute", "float32"]
    reduce_dtype: Literal["float32", "compute"]
    cpu_offload: bool
    init: Literal["whole", "meta"]

    def __post_init__(self) -> None:
        at_least(1, min_params=self.min_params)
        at_least(0, prefetch=self.prefetch)

    def open(self, context: Context) -> Sharded:
        return Sharded(self, one_mesh)


def one_mesh(world: World) -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh(world.device.type, (world.world_size,), mesh_dim_names=("shard",))


class Sharded:
    collective_forward = True

    def __init__(self, settings: Fsdp, mesh: Callable[[World], DeviceMesh]) -> None:
        self._settings, self._mesh = settings, mesh
        self._units: list[nn.Module] = []
        self._names: list[str] = []  # their classes: fully_shard puts one of its own in front
        self._synced = True
        self._nothing: AbstractContextManager[Any] = nullcontext()

    def building(self, world: World) -> AbstractContextManager[Any]:
        elsewhere = self._settings.init == "meta" and world.rank > 0
        return torch.device("meta") if elsewhere else self._nothing

    def wrap(
        self,
        model: nn.Module,
        world: World,
        compile: Compile,
        precision: Precision,
        comm_hook: CommHook,
    ) -> nn.Module:
        inner = self._inner(model)
        compile(model, inner)  # a gather between two of them would cut the graph
        mesh = self._mesh(world)
        whole = model.state_dict() if self._settings.init == "meta" and world.rank == 0 else {}
        buffers = [buffer for _, buffer in model.named_buffers()] if whole else []
        self._units = [*inner, model]
        self._names = [type(unit).__name__ for unit in self._units]
        policy = self._precision(precision)
        offload = CPUOffloadPolicy() if self._settings.cpu_offload else OffloadPolicy()
        for unit in self._units:
            # the rest of the model is needed first in backward: FSDP's own choice keeps it gathered
            after = None if unit is model else self._settings.reshard_after_forward
            fully_shard(
                unit,
                mesh=mesh,
                reshard_after_forward=after,
                mp_policy=policy,
                offload_policy=offload,
            )
        self._prefetch()
        if self._settings.init == "meta":
            _receive(model, whole, buffers, world)
        return model

    def grad_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        if enabled != self._synced:  # it walks all modules
            assert isinstance(model, FSDPModule)
            model.set_requires_gradient_sync(enabled)
            self._synced = enabled
        return self._nothing

    def settle(self, model: nn.Module) -> None:
        for unit in self._units:
            assert isinstance(unit, FSDPModule)
            unit.reshard()

    def explain(self, error: BaseException, model: nn.Module) -> str | None:
        """Models that autocast carries may mix dtypes on their own, as with a float32 buffer."""
        said = str(error)
        mixes = isinstance(error, RuntimeError) and any(word in said for word in MIXED)
        if not mixes or self._settings.gather_dtype == "float32":
            return None
        return (
            f"{said}\nstrategy.gather_dtype=compute casts parameters and inputs, not what the "
            "model makes itself, as from a float32 buffer; use strategy.gather_dtype=float32, "
            "which leaves casting to autocast"
        )

    def describe(self, is_compiled: Callable[[nn.Module], bool]) -> str:
        """As `fully_shard(2 x Block, compiled GptModel)`."""
        each = zip(self._names, self._units, strict=True)
        names = [f"compiled {name}" if is_compiled(unit) else name for name, unit in each]
        runs = [(name, len(list(same))) for name, same in groupby(names)]
        words = [f"{count} x {name}" if count > 1 else name for name, count in runs]
        return f"fully_shard({', '.join(words)})"

    def _inner(self, model: nn.Module) -> list[nn.Module]:
        if self._settings.wrap == "size":
            return by_size(model, self._settings.min_params)
        blocks = getattr(model, "blocks", None)
        if blocks is None:
            raise TypeError(
                f"strategy.wrap=blocks: {type(model).__name__} doesn't define blocks() -> list of "
                "modules; define it, or use strategy.wrap=size"
            )
        return list(blocks())

    def _precision(self, precision: Precision) -> MixedPrecisionPolicy:
        """Parameters cast before they are gathered are half as much to gather; autocast would cast
        them after."""
        dtype = precision.compute_dtype
        reduced = torch.float32 if self._settings.reduce_dtype == "float32" else dtype
        if dtype is None or self._settings.gather_dtype == "float32":
            return MixedPrecisionPolicy(reduce_dtype=reduced)
        precision.cast_by_wrapper = True
        return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced)

    def _prefetch(self) -> None:
        blocks: list[Any] = self._units[:-1]
        ahead = self._settings.prefetch
        if not ahead:
            return
        for i, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + ahead])
            block.set_modules_to_backward_prefetch(blocks[max(0, i - ahead) : i][::-1])


def by_size(model: nn.Module, least: int) -> list[nn.Module]:
    """The modules inside `model` to shard each as one, inner ones first: those that hold at least
    `least` parameters which no module in the list holds yet and no module outside shares."""
    holders: dict[nn.Parameter, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[parameter] = holders.get(parameter, 0) + 1
    found: list[nn.Module] = []
    taken: set[nn.Parameter] = set()

    def visit(module: nn.Module) -> None:
        for child in module.children():
            visit(child)
        mine = set(module.parameters()) - taken
        shared = any(holders[p] > 1 for p in mine)
        alone = module is not model and not isinstance(module, NOT_ALONE) and not shared
        if alone and sum(p.numel() for p in mine) >= least:
            found.append(module)
            taken.update(mine)

    visit(model)
    return found


def _receive(
    model: nn.Module, whole: dict[str, Any], buffers: list[torch.Tensor], world: World
) -> None:
    """Rank 0's values into the shards of all, tensor by tensor."""
    if world.rank:
        model.to_empty(device=world.device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole, options=options)
    for n, (_, buffer) in enumerate(model.named_buffers()):  # also those no state dict holds
        if world.rank == 0:
            buffer.copy_(buffers[n])
        dist.broadcast(buffer, src=0)
