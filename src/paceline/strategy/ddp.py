"""strategy=ddp: a replica a rank, gradients averaged in buckets while backward runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.types import CommHook, Compile, Context, Precision, World


@dataclass(frozen=True)
class Ddp:
    """`compile`: the model inside DDP, which keeps DDP's hooks out of the graph; or DDP with the
    model, where Dynamo cuts the graph at the bounds of the buckets, so that they still overlap."""

    bucket_cap_mb: int
    static_graph: bool
    gradient_as_bucket_view: bool
    find_unused_parameters: bool
    compile: Literal["inside", "outside"]

    def __post_init__(self) -> None:
        if self.bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb={self.bucket_cap_mb}: give mebibytes above 0")

    def open(self, context: Context) -> Replicas:
        return Replicas(self)


class Replicas:
    def __init__(self, settings: Ddp) -> None:
        self._settings = settings
        self._nothing: AbstractContextManager[Any] = nullcontext()

    def wrap(
        self,
        model: nn.Module,
        world: World,
        compile: Compile,
        precision: Precision,
        comm_hook: CommHook,
    ) -> nn.Module:
        model.to(world.device)
        if self._settings.compile == "inside":
            compile(model)
        wrapped = DistributedDataParallel(
            model,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            bucket_cap_mb=self._settings.bucket_cap_mb,
            static_graph=self._settings.static_graph,
            gradient_as_bucket_view=self._settings.gradient_as_bucket_view,
            find_unused_parameters=self._settings.find_unused_parameters,
        )
        comm_hook.register(wrapped)
        if self._settings.compile == "outside":
            compile(wrapped)
        return wrapped

    def grad_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        assert isinstance(model, DistributedDataParallel)
        return self._nothing if enabled else model.no_sync()
