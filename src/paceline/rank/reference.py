"""The gradient of a step once more: in float64, and eager in the job's own precision."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map

from paceline.rank.train import Parts
from paceline.types import Batch, Precision, World

SKETCH = 64
CHUNK = 1 << 20
Gradient = dict[str, Tensor]


RANDOM = "random numbers"

MOST_PARAMETERS = 50_000_000
"""measure.gradient_check=auto: what takes a few steps' time and memory that is there."""


class CannotJudge(Exception):
    """Why there is no reference for this job."""


class Draws(CannotJudge):
    """The model draws random numbers."""


@dataclass(frozen=True)
class Sums:
    """Of this rank: d(summed loss) / d(parameter), float64, and the weight of the samples."""

    exact: Gradient
    eager: Gradient
    weight: float


def spare(model: nn.Module, asked: bool | Literal["auto"]) -> nn.Module | str:
    """A copy of a model as it was made; else why the first gradient can't be held to one. Not made
    again from its seed: what makes a user's model may print, download, or draw otherwise."""
    if asked is False:
        return "measure.gradient_check=false"
    number = sum(p.numel() for p in model.parameters())
    if asked == "auto" and number > MOST_PARAMETERS:
        return (
            f"{number:,} parameters, auto checks up to {MOST_PARAMETERS:,}; "
            "measure.gradient_check=true checks them too"
        )
    if any(p.is_meta for p in model.parameters()):
        return "strategy.init=meta: only rank 0 has made the model"
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a user's class can't do, its training can go on
        return f"the model can't be copied ({type(error).__name__}: {error})"


def sums(parts: Parts, micro_batches: list[Batch]) -> Sums:
    """Both gradients over this rank's `micro_batches` as they came from the loader, on the spare
    model, which is used up, and a copy of it; the job's own is not touched.

    Raises CannotJudge where the loss isn't a function of parameters and samples alone.
    """
    with _untouched_generators(parts.world.device):
        assert isinstance(parts.spare, nn.Module)
        exact = parts.spare.to(parts.world.device)
        eager = copy.deepcopy(exact)
        parts.spare = "it was used up"
        parts.state.precision.prepare(eager)
        _load(exact, eager)
        exact.double()
        exact_sums, weight = _gradient(
            parts, exact, (tree_map(_double, b) for b in _delivered(parts, micro_batches))
        )
        del exact
        with _in_precision(parts.state.precision, eager) as forward:
            batches = _delivered(parts, micro_batches)
            eager_sums, _ = _gradient(parts, eager, batches, forward, parts.state.precision.scale)
    return Sums(exact_sums, eager_sums, weight)


def mean(sums: Gradient, weight: float, world: World) -> Gradient:
    """The gradient of the mean loss, over all ranks: a collective, in place. `weight`: of all."""
    for gradient in sums.values():
        if not world.alone:
            dist.all_reduce(gradient)
        gradient /= weight
    return sums


def sketch(gradient: Gradient) -> list[float]:
    """64 numbers that tell two gradients apart: the distance of two sketches is that of the
    gradients, give or take a tenth (count sketch: each element, with a sign of its own, is added
    to one of 64 sums; Charikar et al. 2002). Sign and place follow from the parameter's name and
    the element's flat index alone, so that no strategy changes them."""
    total = np.zeros(SKETCH)
    for name, values in gradient.items():
        flat: npt.NDArray[np.float64] = values.detach().cpu().flatten().numpy()
        seed = np.uint64(xxhash.xxh3_64_intdigest(name.encode()))
        for start in range(0, len(flat), CHUNK):
            part = flat[start : start + CHUNK]
            hashed = _mixed(np.arange(start, start + len(part), dtype=np.uint64), seed)
            sign = 1.0 - 2.0 * ((hashed >> np.uint64(6)) & np.uint64(1))
            place = (hashed & np.uint64(SKETCH - 1)).astype(np.int64)
            total += np.bincount(place, weights=part * sign, minlength=SKETCH)
    return [float(x) for x in total]


def coupling(model: nn.Module) -> list[str]:
    """Classes of layers that give a sample another output beside other samples, or on another rank
    (dropout draws there apart)."""
    return sorted(
        {
            type(m).__name__
            for m in model.modules()
            if isinstance(m, _BatchNorm) or (isinstance(m, _DropoutNd) and m.p > 0)
        }
    )


def _mixed(index: npt.NDArray[np.uint64], seed: np.uint64) -> npt.NDArray[np.uint64]:
    """splitmix64 of (seed + index) (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = seed + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _load(model: nn.Module, prepared: nn.Module) -> None:
    """The parameters' values as `prepared` rounded them."""
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), prepared.parameters(), strict=True):
            mine.copy_(theirs)


def _delivered(parts: Parts, micro_batches: list[Batch]) -> Iterator[Batch]:
    return iter(micro_batches) if parts.deliver is None else map(parts.deliver, micro_batches)


def _gradient(
    parts: Parts,
    model: nn.Module,
    batches: Iterable[Batch],
    forward: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scale: Callable[[Tensor], Tensor] = lambda loss: loss,
) -> tuple[Gradient, float]:
    """Summed over the micro-batches, and their weight. Backward starts as small as the loop's, for
    that is what underflows; it is put right at the end, in float64."""
    state, weight_sum, start = _random_state(parts.world.device), 0.0, 0.0
    loss = parts.make_loss()  # the job's own may keep count of its calls
    with torch.compiler.set_stance("force_eager"):
        for batch in batches:
            start = start or 1.0 / (parts.state.data.count(batch) * parts.run.accumulation_steps)
            with forward():
                total, weight = loss(model, batch)
            scale(total).backward(torch.full_like(total, start))
            weight_sum += float(weight)
    after = _random_state(parts.world.device)
    if not all(torch.equal(a, b) for a, b in zip(state, after, strict=True)):
        raise Draws("the model draws random numbers, as dropout does")
    undo = 1.0 / (start * float(scale(torch.ones((), device=parts.world.device))))
    found = {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).double() * undo
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    model.zero_grad(set_to_none=True)
    return found, weight_sum


@contextmanager
def _in_precision(
    precision: Precision, model: nn.Module
) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """What stands around a forward of `model`. Where the strategy's wrapper casts, parameters and
    inputs are cast here as it does."""
    if precision.cast_by_wrapper and precision.compute_dtype is not None:
        dtype = precision.compute_dtype

        def cast(value: Any) -> Any:
            floating = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(dtype) if floating else value

        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        model.register_forward_pre_hook(
            lambda module, args, kwargs: tree_map(cast, (args, kwargs)), with_kwargs=True
        )
    yield precision.forward


def _double(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if floating else value


def _random_state(device: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


@contextmanager
def _untouched_generators(device: torch.device) -> Iterator[None]:
    """The training draws afterwards what it would have drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
