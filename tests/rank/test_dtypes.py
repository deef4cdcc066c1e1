"""In which dtypes a step computes: seen, forward and backward, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.precision.autocast import AutocastPrecision
from paceline.precision.full import FullPrecision
from paceline.rank import dtypes
from paceline.types import World

WORLD = World(0, 0, 0, 1, torch.device("cpu"))


class Convolutions(nn.Module):
    """Running statistics, dropout, and a last layer that autocast doesn't reach."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.norm(self.first(x)).mean((2, 3)), 0.5)
        with torch.autocast("cpu", enabled=False):
            out: torch.Tensor = self.last(x.float())
        return out


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Scale(nn.Module):
    """No matrix product at all."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def parts(model: nn.Module, precision: Any, batch: torch.Tensor | None) -> Any:
    """What is looked at of a job: a model in training, its optimizer, held-out batches."""

    def loss(module: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return module(inputs).float().sum(), torch.ones(())

    data = SimpleNamespace(held_out=lambda n: iter([] if batch is None else [batch]))
    optimizer = torch.optim.AdamW([*model.parameters()] or [nn.Parameter(torch.ones(()))])
    return SimpleNamespace(
        world=WORLD,
        state=SimpleNamespace(model=model, optimizer=optimizer, precision=precision, data=data),
        model=model,
        loss=loss,
        deliver=None,
        strategy=SimpleNamespace(grad_sync=lambda model, enabled: nullcontext()),
    )


def test_several_dtypes_forward_and_backward() -> None:
    bf16 = AutocastPrecision("cpu", torch.bfloat16)
    seen = dtypes.look(parts(Convolutions(), bf16, torch.rand(8, 1, 6, 6)))
    assert seen["compute"] == seen["backward"] == "bfloat16, float32"
    assert seen["parameters"] == "float32"
    assert seen["gradients"] is None, "no step was done"
    assert dtypes.unmet("bf16", seen) == []
    seen = dtypes.look(parts(Convolutions(), FullPrecision(), torch.rand(8, 1, 6, 6)))
    assert seen["compute"] == seen["backward"] == "float32"
    (problem,) = dtypes.unmet("bf16", seen)
    assert problem == "precision=bf16: the model computed in float32, not bfloat16"


def test_attention_counts_and_its_statistics_do_not() -> None:
    inputs = torch.rand(2, 1, 4, 8, dtype=torch.bfloat16, requires_grad=True)
    seen = dtypes.look(parts(Attention(), FullPrecision(), inputs))
    assert seen["compute"] == seen["backward"] == "bfloat16"


@pytest.mark.parametrize("batch", [torch.rand(3, 4), None])
def test_nothing_to_see_is_no_complaint(batch: torch.Tensor | None) -> None:
    seen = dtypes.look(parts(Scale(), FullPrecision(), batch))
    assert (seen["compute"], seen["backward"], seen["reduction"]) == (None, None, None)
    assert dtypes.unmet("bf16", seen) == dtypes.unmet("fp16", seen) == []


def test_it_leaves_nothing_behind() -> None:
    model = Convolutions()
    model(torch.rand(8, 1, 6, 6)).sum().backward()
    model.last.weight.grad = None
    grads = {n: p.grad for n, p in model.named_parameters()}
    values = {n: None if g is None else g.clone() for n, g in grads.items()}
    state = {n: t.clone() for n, t in model.state_dict().items()}
    batch = torch.rand(8, 1, 6, 6)
    rng = torch.get_rng_state()
    seen = dtypes.look(parts(model, FullPrecision(), batch))
    assert seen["gradients"] == "float32" and model.training
    for name, parameter in model.named_parameters():
        assert parameter.grad is grads[name], name
        assert values[name] is None or torch.equal(parameter.grad, values[name]), name
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)  # it has dropout


def test_a_model_in_bfloat16_throughout() -> None:
    model = Attention()
    model.register_parameter("extra", nn.Parameter(torch.ones(2)))
    seen = dtypes.look(parts(model, FullPrecision(), torch.rand(2, 1, 4, 8)))
    assert dtypes.unmet("bf16_pure", seen) == [
        "precision=bf16_pure: the parameters are float32, not bfloat16",
        "precision=bf16_pure: the model computed in float32, not bfloat16",
    ]
    assert dtypes.unmet("fp32", seen) == dtypes.unmet(None, seen) == dtypes.unmet("own", seen) == []


@pytest.mark.parametrize(
    ("compute", "float32_matmul", "dtype"),
    [
        ("float32", None, "float32"),
        ("float32", "ieee", "float32"),
        ("float32", "tf32", "tf32"),
        ("bfloat16", "tf32", "bfloat16"),
        ("bfloat16, float32", "ieee", "bfloat16"),
        ("float16, float32", "ieee", "float16"),
        (None, None, "float32"),
        ("float64", "tf32", "float64"),
    ],
)
def test_the_peak_is_that_of_the_fastest(compute: Any, float32_matmul: Any, dtype: str) -> None:
    facts = {"compute": compute, "float32_matmul": float32_matmul}
    assert dtypes.peak_dtype(facts) == dtype


def test_tf32_that_did_not_happen() -> None:
    seen = dict.fromkeys(["parameters", "compute", "optimizer_state"], "float32")
    said = "precision=tf32: float32 was multiplied as ieee, not tf32"
    assert dtypes.unmet("tf32", seen | {"float32_matmul": "ieee"}) == [said]
    (problem,) = dtypes.unmet("fp32", seen | {"float32_matmul": "tf32"})
    assert problem.endswith("float32 was multiplied as tf32, not ieee")


@pytest.fixture
def group() -> Iterator[Any]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    kept = dist.group.WORLD  # as rank/world.py says: its destructor must not run under the GIL
    yield kept
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("half", [False, True])
def test_through_ddp_what_is_reduced_is_seen_and_its_buckets_are_put_back(half: bool) -> None:
    model = Convolutions()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if half:
        wrapped.register_comm_hook(None, fp16_compress_hook)
    for _ in range(2):  # buckets are made anew after the first backward
        model.zero_grad()
        wrapped(torch.rand(8, 1, 6, 6)).sum().backward()
    before = [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    job = parts(model, FullPrecision(), torch.rand(8, 1, 6, 6))
    job.model = wrapped
    assert dtypes.look(job)["reduction"] == ("float16" if half else "float32")
    for parameter, (grad, values) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is grad and torch.equal(grad, values)
