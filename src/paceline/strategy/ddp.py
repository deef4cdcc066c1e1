"""strategy=ddp: a replica a rank, gradients averaged in buckets while backward runs."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.types import CommHook, Compile, Context, Precision, World

UNUSED = re.compile(r"did not receive grad for rank (\d+): ([\d ]+)")
"""In DDP's error, at the end of a long text: places among the trainable parameters."""

NAMED = 5
"""Parameters that a message names."""


@dataclass(frozen=True)
class Ddp:
    """`compile`: the model inside DDP, which keeps DDP's hooks out of the graph; or DDP with the
    model, where Dynamo cuts the graph at the bounds of the buckets, so that they still overlap.
    `find_unused_parameters`: search the graph of every step for them. `static_graph`: find them in
    the first step, once and for all."""

    bucket_cap_mb: int
    static_graph: bool
    gradient_as_bucket_view: bool
    find_unused_parameters: bool
    compile: Literal["inside", "outside"]

    def __post_init__(self) -> None:
        if self.bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb={self.bucket_cap_mb}: give mebibytes above 0")
        if self.static_graph and self.find_unused_parameters:
            raise ValueError(
                "find_unused_parameters=true: static_graph=true finds them itself, in the first "
                "step; use one of the two"
            )

    def open(self, context: Context) -> Replicas:
        return Replicas(self)


class Replicas:
    def __init__(self, settings: Ddp) -> None:
        self._settings = settings
        self._used: Tensor | None = None

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
        return _Synced(self, model) if enabled else model.no_sync()

    def all_averaged(self, model: DistributedDataParallel) -> None:
        """After a backward that averages. Raises DDP's own error for a parameter without a
        gradient now: by itself DDP raises at the next forward, and until then this rank's other
        collectives meet the one in which the other ranks still wait for it: gloo aborts."""
        model.reducer._check_reducer_finalized()
        if model.find_unused_parameters:
            used = model.reducer._get_local_used_map()  # [parameters] by how many ranks
            self._used = used.clone() if self._used is None else torch.minimum(self._used, used)

    def unused_in_some_step(self, model: nn.Module) -> list[str] | None:
        """Parameters that some rank didn't use in some step so far; None where nobody looked."""
        if self._used is None:
            return None
        least = self._used.tolist()
        ranks = torch.distributed.get_world_size()
        return [name for name, n in zip(_trainable(model), least, strict=True) if n < ranks]

    def explain(self, error: BaseException, model: nn.Module) -> str | None:
        found = UNUSED.search(str(error)) if isinstance(error, RuntimeError) else None
        if found is None:
            return None
        names = _trainable(model)
        unused = [names[int(place)] for place in found[2].split()]
        more = f" and {len(unused) - NAMED} more" if len(unused) > NAMED else ""
        return (
            f"rank {found[1]} got no gradient for {', '.join(unused[:NAMED])}{more}: its loss "
            "doesn't depend on them in this step, and DDP waits for every parameter; use them in "
            "every step, freeze them (requires_grad=False), or set "
            "strategy.find_unused_parameters=true, which searches for them in each step"
        )


class _Synced:
    """Around the forward and backward after which gradients are averaged."""

    def __init__(self, replicas: Replicas, model: DistributedDataParallel) -> None:
        self._replicas, self._model = replicas, model

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if kind is None:
            self._replicas.all_averaged(self._model)


def _trainable(model: nn.Module) -> list[str]:
    """Names of the trainable parameters in DDP's own order."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return [name for name, p in inner.named_parameters() if p.requires_grad]
