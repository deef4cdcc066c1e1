"""A few steps of a small model under DDP with a hook, as rank/train.py does them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline import config
from paceline.types import Context, Run, World

RUN = Run(10, 1, 0, None, 0, "cpu")
POWERSGD = {
    "_target_": "paceline.comm_hook.powersgd.PowerSgd",
    "matrix_approximation_rank": 2,
    "start_powerSGD_iter": 2,
    "min_compression_rate": 2.0,
    "use_error_feedback": True,
    "warm_start": True,
    "orthogonalization_epsilon": 1e-8,
    "batch_tensors_with_same_shape": False,
}
HOOKS: dict[str, dict[str, Any]] = {
    "none": {"_target_": "paceline.comm_hook.none.NoHook"},
    "fp16": {"_target_": "paceline.comm_hook.fp16.Fp16"},
    "bf16": {"_target_": "paceline.comm_hook.bf16.Bf16"},
    "powersgd": POWERSGD,
    "powersgd_batched": POWERSGD | {"batch_tensors_with_same_shape": True},
}


def opened(name: str, world: World) -> Any:
    return config.build(HOOKS[name], Context(world, RUN, Path(), config.build))


def model() -> nn.Module:
    """Of 1 MiB, so that there are two buckets of half of that."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 400), nn.Tanh(), nn.Linear(400, 4)]
    return nn.Sequential(*layers)


class Trained:
    """`names` of hooks each on a model of its own; the batches of step s are the same for all."""

    def __init__(self, name: str, world: World, **options: Any) -> None:
        self.world, self.hook = world, opened(name, world)
        self.ddp = DistributedDataParallel(model(), bucket_cap_mb=0.5, **options)
        self.hook.register(self.ddp)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.05, momentum=0.9)

    def step(self, step: int, accumulation: int = 1, factor: float = 1.0) -> list[Tensor]:
        """The averaged gradients, before the optimizer uses them."""
        self.optimizer.zero_grad()
        for micro in range(accumulation):
            last = micro == accumulation - 1
            batch = inputs(step, micro, self.world.rank)
            with nullcontext() if last else self.ddp.no_sync():
                loss = self.ddp(batch).square().mean() * factor / accumulation
                loss.backward()  # type: ignore[no-untyped-call]
        found = [p.grad.clone() for p in self.ddp.parameters() if p.grad is not None]
        self.optimizer.step()
        return found


def inputs(step: int, micro: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * 10_000 + micro * 100 + rank)
    return torch.randn(16, 64, generator=generator)


def exact(trained: Trained, step: int, accumulation: int) -> list[Tensor]:
    """The mean gradient over all ranks at the parameters that `trained` has now, by one process."""
    alone = model()
    alone.load_state_dict(trained.ddp.module.state_dict())
    parts = accumulation * trained.world.world_size
    for micro in range(accumulation):
        for rank in range(trained.world.world_size):
            loss = alone(inputs(step, micro, rank)).square().mean() / parts
            loss.backward()  # type: ignore[no-untyped-call]
    return [p.grad for p in alone.parameters() if p.grad is not None]


def error(found: list[Tensor], right: list[Tensor]) -> float:
    """Relative, in the L2 norm."""
    off = sum(float((f - r).square().sum()) for f, r in zip(found, right, strict=True))
    return float((off / sum(float(r.square().sum()) for r in right)) ** 0.5)
