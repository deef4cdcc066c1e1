"""strategy=fsdp: what is sharded, in which order, and what that must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.comm_hook.none import Plain
from paceline.compile.off import Eager
from paceline.precision.autocast import Autocast
from paceline.precision.full import FullPrecision
from paceline.precision.scaled import Scaled
from paceline.strategy.ddp import Ddp
from paceline.strategy.fsdp import Fsdp, by_size
from paceline.strategy.hsdp import Hsdp
from paceline.types import Context, Run, TrainState, World
from tests import ranks
from tests.checkpoint import training as checkpoints

KEYS = {"wrap": "blocks", "min_params": 100, "reshard_after_forward": True, "prefetch": 0}
KEYS |= {
    "gather_dtype": "compute",
    "reduce_dtype": "float32",
    "cpu_offload": False,
    "init": "whole",
}


class Net(nn.Module):
    """Two blocks, a tied embedding, a buffer that no state dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.register_buffer("shift", torch.randn(16), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = x + self.shift.to(x.dtype)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return F.linear(self.norm(x), self.words.weight)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


def opened(world: World, cls: Any = Fsdp, **changed: Any) -> Any:
    context = Context(world, Run(1, 1, 0, None, 0, "cpu"), Path(), lambda node: node)
    return cls(**{**KEYS, **changed}).open(context)


def wrapped(world: World, strategy: Any, precision: Any = None, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    with strategy.building(world):
        model = Net()
    return strategy.wrap(model, world, Eager(), precision or FullPrecision(), Plain())


def whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.detach()


def batch(rank: int, size: int) -> Tensor:
    tokens = torch.randint(0, 30, (8, 5), generator=torch.Generator().manual_seed(7))
    return tokens.chunk(size)[rank]


def gradients(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    out = model(tokens)
    F.cross_entropy(out.flatten(0, 1), tokens.flatten()).backward()
    return {n: whole(p.grad).clone() for n, p in model.named_parameters()}


def test_by_size_takes_inner_modules_first_and_leaves_what_is_shared() -> None:
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 3)), "b": Net()})
    model["c"] = nn.Linear(4, 4)
    model["d"] = nn.Linear(4, 4)
    model["d"].weight = model["c"].weight
    found = by_size(model, 100)
    # the whole first linear; both layers of Net; what is left of Net is its embedding and norm
    assert found == [model["a"][0], *model["b"].layers, model["b"]]
    assert by_size(model, 30) == [*model["a"], *model["b"].layers, model["b"].norm, model["b"]]


def test_by_size_never_takes_the_model_itself() -> None:
    assert by_size(nn.Linear(100, 100), 1) == []


@pytest.mark.distributed
@pytest.mark.parametrize("init", ["whole", "meta"])
def test_same_start_and_same_gradient_as_one_process(init: str) -> None:
    torch.manual_seed(0)
    alone = Net()
    start = {n: t.clone() for n, t in [*alone.named_parameters(), *alone.named_buffers()]}
    expected = gradients(alone, batch(0, 1))
    for values, found in ranks.run(_start_and_gradients, 2, init):
        assert values.keys() == start.keys()
        assert all(torch.equal(values[name], start[name]) for name in start)
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-5, atol=1e-7)


def _start_and_gradients(world: World, init: str) -> Any:
    model = wrapped(world, opened(world, init=init))
    named = [*model.named_parameters(), *model.named_buffers()]
    values = {n: whole(t).clone() for n, t in named}
    return values, gradients(model, batch(world.rank, world.world_size))


@pytest.mark.distributed
def test_only_rank_0_makes_the_model_under_meta() -> None:
    assert ranks.run(_devices, 2) == ["cpu", "meta"]


def _devices(world: World) -> str:
    with opened(world, init="meta").building(world):
        return str(torch.empty(1).device)


@pytest.mark.distributed
def test_gradients_travel_with_the_last_micro_batch_only() -> None:
    one, two = ranks.run(_accumulated, 2)
    alone = Net()
    for reductions, grads in (one, two):
        # blocks and the rest: three sharded modules, one reduce-scatter each
        assert reductions == [0, 3]
        torch.manual_seed(0)
        alone = Net()
        expected = gradients(alone, batch(0, 1))
        for name, grad in expected.items():
            torch.testing.assert_close(grads[name] / 2, grad, rtol=1e-5, atol=1e-7)


def _accumulated(world: World) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen += "reduce_scatter" in str(func)
            return func(*args, **(kwargs or {}))

    strategy = opened(world)
    model = wrapped(world, strategy)
    reductions = []
    for number, part in enumerate(batch(world.rank, world.world_size).chunk(2)):
        with Count() as count, strategy.grad_sync(model, number == 1):
            out = model(part)
            F.cross_entropy(out.flatten(0, 1), part.flatten()).backward()
        reductions.append(count.seen)
    return reductions, {n: whole(p.grad) for n, p in model.named_parameters()}


@pytest.mark.distributed
def test_an_overflow_in_one_shard_skips_the_step_on_every_rank() -> None:
    assert ranks.run(_overflowed, 2) == [(True, 512.0, False), (True, 512.0, False)]


def _overflowed(world: World) -> Any:
    context = Context(world, Run(1, 1, 0, None, 0, "cpu"), Path(), lambda node: node)
    precision = Scaled("float16", 1024.0, 2.0, 0.5, 100).open(context)
    model = wrapped(world, opened(world), precision)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = whole(model.norm.weight).clone()
    precision.scale(model(batch(world.rank, 2)).float().sum()).backward()
    if world.rank == 1:
        model.norm.weight.grad.to_local().fill_(float("inf"))
    precision.step(optimizer, None)
    changed = not torch.equal(before, whole(model.norm.weight))
    return bool(precision.skipped), precision.report()["loss_scale"], changed


@pytest.mark.distributed
@pytest.mark.parametrize("reader", ["fsdp", "hsdp", "ddp"])
def test_a_checkpoint_of_shards_is_read_by_every_strategy(tmp_path: Path, reader: str) -> None:
    saved = ranks.run(_trained, 2, tmp_path, "fsdp", None)[0]
    for read in ranks.run(_trained, 2, tmp_path, reader, 3):
        assert read.keys() == saved.keys()
        assert all(torch.equal(read[key], saved[key]) for key in saved)


def _trained(world: World, directory: Path, name: str, expect: int | None) -> Any:
    """Train three steps and save, or load what was saved; parameters and moments, whole."""
    context = Context(world, Run(1, 1, 0, None, 0, "cpu"), directory, lambda node: node)
    made: Any = {
        "fsdp": lambda: opened(world),
        "hsdp": lambda: opened(world, Hsdp, shard_ranks=1),
        "ddp": lambda: Ddp(25, False, True, False, "inside").open(context),
    }[name]()
    torch.manual_seed(0 if expect is None else 1)
    model = Net()
    wrapper = made.wrap(model, world, Eager(), FullPrecision(), Plain())
    optimizer = torch.optim.AdamW(wrapper.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = TrainState(model, optimizer, scheduler, FullPrecision(), _Nowhere(), Plain())
    checkpoint = checkpoints.opened("sync", directory, world)
    assert checkpoint.load(state) == (expect or 0)
    if expect is None:
        for _ in range(3):
            optimizer.zero_grad()
            gradients(wrapper, batch(world.rank, 2))
            optimizer.step()
            state.step += 1
        checkpoint.save(state, 3, now=False)
    moments = {f"moment {i}": whole(s["exp_avg"]) for i, s in enumerate(optimizer.state.values())}
    return {n: whole(p) for n, p in model.named_parameters()} | moments


class _Nowhere:
    sampling = "seeded"

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


@pytest.mark.distributed
def test_hsdp_shards_inside_groups_and_copies_over_them() -> None:
    for rank, (shape, coordinates, first, grads) in enumerate(ranks.run(_grouped, 4)):
        assert shape == (2, 2)
        assert list(coordinates) == [rank // 2, rank % 2]
        assert first == 8  # of a block's 16 rows, over 2 ranks
        torch.manual_seed(0)
        for name, grad in gradients(Net(), batch(0, 1)).items():
            torch.testing.assert_close(grads[name], grad, rtol=1e-5, atol=1e-7)


def _grouped(world: World) -> Any:
    model = wrapped(world, opened(world, Hsdp, shard_ranks="auto"))
    weight = model.layers[0].weight
    mesh = weight.device_mesh
    grads = gradients(model, batch(world.rank, 4))
    return tuple(mesh.shape), mesh.get_coordinate(), len(weight.to_local()), grads


class Careless(Net):
    """Adds a float32 buffer to whatever it is given."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.shift
        return F.linear(self.norm(x), self.words.weight)

    def blocks(self) -> list[nn.Module]:
        return []


@pytest.mark.distributed
def test_a_model_that_mixes_dtypes_itself_is_told_the_way_out_and_runs_by_it() -> None:
    for said, dtype in ranks.run(_mixed, 2):
        assert "strategy.gather_dtype=float32" in said
        assert dtype == "torch.bfloat16"


def _mixed(world: World) -> Any:
    context = Context(world, Run(1, 1, 0, None, 0, "cpu"), Path(), lambda node: node)

    def forward(**changed: Any) -> tuple[Any, Tensor | None, BaseException | None]:
        strategy, precision = opened(world, **changed), Autocast("bfloat16").open(context)
        model = strategy.wrap(Careless(), world, Eager(), precision, Plain())
        try:
            with precision.forward():
                return strategy, model(batch(world.rank, 2)), None
        except RuntimeError as error:
            return strategy, None, error

    strategy, _, error = forward()
    assert error is not None
    _, out, _ = forward(gather_dtype="float32")
    assert out is not None
    return strategy.explain(error, Careless()), str(out.dtype)
