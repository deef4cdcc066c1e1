"""One optimizer step watched operator by operator, after the training; it leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from paceline.rank.train import Parts, held_out
from paceline.rank.world import gather

ROWS = 2
"""Of a micro-batch: an eager step may need more memory than the compiled one that just fitted, and
normalisation over a batch needs two."""


class Watch(TorchDispatchMode):
    """Sees every operator of a step, forward and backward, in the thread that runs it. `backward`:
    which of the two it is now; `micro`: of which micro-batch."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.backward = False
        self.micro = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(func, args, result)
        return result

    def see(self, func: Any, args: Any, result: Any) -> None:
        raise NotImplementedError


def a_step(parts: Parts, watch: Watch, micro_batches: int = 1) -> bool:
    """Forward and backward of a few held-out samples through the wrapped model, always eager,
    `micro_batches` times as the loop does it. False: nothing was held out. A collective."""
    world, precision = parts.world, parts.state.precision
    batch = next(held_out(parts, 1), None)
    if not all(gather(batch is not None, world)):  # all ranks or none: gradients are averaged
        return False
    batch = tree_map(_first_rows, batch)
    devices = [world.device] if world.device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        _left_alone(parts.state.model),
        torch.compiler.set_stance("force_eager"),
        watch,
    ):
        for watch.micro in range(micro_batches):
            with parts.strategy.grad_sync(parts.model, watch.micro == micro_batches - 1):
                watch.backward = False
                with precision.forward():
                    total, _ = parts.loss(parts.model, batch)
                if total.requires_grad:
                    watch.backward = True
                    precision.scale(total).backward()
    return True


@contextmanager
def _left_alone(model: nn.Module) -> Iterator[None]:
    """Gradients and buffers are in the end what they were."""
    kept = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    buffers = [(b, b.clone()) for b in model.buffers()]
    for parameter, _, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, grad, values in kept:
                if grad is not None and values is not None:
                    grad.copy_(values)  # it may be a view of a bucket that was just reduced
                parameter.grad = grad
            for buffer, values in buffers:
                buffer.copy_(values)


def _first_rows(value: Any) -> Any:
    return value[:ROWS] if isinstance(value, Tensor) and value.dim() else value
