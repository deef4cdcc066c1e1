"""What fp16 and bf16 share: gradients cast to a narrower dtype, averaged in it, cast back."""

# no `from __future__ import annotations` here: DDP compares a hook's annotations with the types

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from paceline.comm_hook.finite import all_finite

Hook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


class Compressed:
    """`hook` is torch's own. `overflow`: what to say of a gradient that its dtype can't hold; None
    where it can hold all, and nothing is looked for."""

    reductions = 1
    waited_s = 0.0

    def __init__(self, hook: Hook, lossy_rtol: float, overflow: str | None) -> None:
        self._hook, self.lossy_rtol, self.overflow = hook, lossy_rtol, overflow
        self._broken: list[Tensor] = []

    def register(self, model: torch.nn.Module) -> None:
        assert isinstance(model, DistributedDataParallel)
        model.register_comm_hook(None, self._plain if self.overflow is None else self._watched)

    # methods, for DDP refuses a hook named bf16_compress_hook without NCCL, though gloo can sum it
    def _plain(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return self._hook(None, bucket)

    def _watched(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        before = all_finite(bucket.buffer())

        def look(done: torch.futures.Future[Tensor]) -> Tensor:
            averaged = done.value()
            # a list: buckets end in threads of their own, which mustn't write one tensor
            self._broken.append(before & ~all_finite(averaged))
            return averaged

        return self._hook(None, bucket).then(look)

    def take_nonfinite(self) -> Tensor | None:
        broken, self._broken = self._broken, []
        return torch.stack(broken).any() if broken else None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None
