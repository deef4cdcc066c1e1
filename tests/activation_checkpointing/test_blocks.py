"""activation_checkpointing: the same training bit by bit, out of less memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from paceline import config
from paceline.__main__ import config_dir
from paceline.comm_hook.none import Plain
from paceline.compile.off import Eager
from paceline.model.gpt import Gpt
from paceline.model.resnet import Resnet
from paceline.precision.full import FullPrecision
from paceline.rank.memory import Live
from paceline.types import ConfigError, Context, Run, World
from tests import ranks

OPTIONS = ("off", "blocks", "selective")
GPT = Gpt(vocab_size=64, context_length=32, layers=4, heads=2, width=32)
RESNET = Resnet(in_channels=1, width=8, blocks=[1, 1], classes=10)


class Dropping(nn.Module):
    """Two blocks that draw random numbers and are called with a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Half(16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return x

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


class Half(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(width, width), nn.Dropout(0.5)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        out: Tensor = x + scale * self.dropout(F.gelu(self.linear(x)))
        return out


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "gpt": (lambda: GPT.open(context()), lambda: torch.randint(64, (8, 32))),
    "resnet": (lambda: RESNET.open(context()), lambda: torch.rand(4, 1, 8, 8)),
    "dropout": (Dropping, lambda: torch.rand(8, 16)),
}


def context() -> Context:
    world = World(0, 0, 0, 1, torch.device("cpu"))
    return Context(world, Run(1, 1, 0, None, 0, "cpu"), Path(), config.build)


def opened(option: str, **changed: Any) -> Any:
    path = config_dir() / "activation_checkpointing" / f"{option}.yaml"
    return config.build(yaml.safe_load(path.read_text()) | changed, context())


def made(name: str, option: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, batch = (make() for make in MODELS[name])
    opened(option)(model)
    return model, batch


def trained(name: str, option: str, low: bool = False) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The loss, the gradients, and the next random number."""
    model, batch = made(name, option)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        loss = model(batch).float().square().sum()
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), grads, torch.rand(1)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_gradients_and_random_numbers_are_the_same_bits(name: str, low: bool) -> None:
    loss, grads, drawn = trained(name, "off", low)
    assert grads and loss > 0
    for option in OPTIONS[1:]:
        again = trained(name, option, low)
        assert torch.equal(loss, again[0]) and torch.equal(drawn, again[2])
        assert grads.keys() == again[1].keys()
        assert all(torch.equal(grads[key], again[1][key]) for key in grads)


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_less_is_kept_for_backward(name: str) -> None:
    kept = {}
    for option in OPTIONS:
        model, batch = made(name, option)
        with Live([*model.parameters(), batch]) as live:
            out = model(batch)
            kept[option] = live.bytes()
        assert out.requires_grad
    assert kept["blocks"] < kept["selective"] < kept["off"]


def test_what_autograd_keeps_is_seen_by_its_hooks() -> None:
    # torch's own count; selective keeps results beside them, where hooks don't see them
    kept = {}
    for option in ("off", "blocks"):
        model, batch = made("gpt", option)
        known = {p.untyped_storage().data_ptr() for p in model.parameters()}
        found: dict[int, int] = {}

        def note(t: Tensor, known: Any = known, found: Any = found) -> Tensor:
            storage = t.untyped_storage()
            if storage.data_ptr() not in known:
                found[storage.data_ptr()] = storage.nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            loss = model(batch).sum()
        kept[option] = sum(found.values())
        loss.backward()
    assert 0 < 3 * kept["blocks"] < kept["off"]


def test_every_second_block() -> None:
    model, _ = made("gpt", "off")
    some = opened("blocks", every=2)
    some(model)
    assert some.report() == "2 of 4 blocks"
    wrapped = [i for i, block in enumerate(model.blocks()) if "forward" in vars(block)]  # type: ignore[operator]
    assert wrapped == [0, 2]


@pytest.mark.parametrize("option", OPTIONS)
def test_state_dict_keys_stay(option: str) -> None:
    plain, _ = made("gpt", "off")
    model, _ = made("gpt", option)
    assert list(model.state_dict()) == list(plain.state_dict())


def test_what_it_says() -> None:
    for option, said in zip(OPTIONS, ("off", "4 blocks", "4 blocks, selective"), strict=True):
        one = opened(option)
        one(GPT.open(context()))
        assert one.report() == said


class TestRefused:
    def test_a_model_without_blocks(self) -> None:
        listed = nn.Module()
        listed.blocks = nn.ModuleList([nn.Linear(2, 2)])  # a list of modules is no method
        for model, name in ((nn.Linear(2, 2), "Linear"), (listed, "Module")):
            with pytest.raises(ConfigError, match=f"blocks: {name} doesn't define blocks") as found:
                opened("blocks")(model)
            assert "use activation_checkpointing=off" in str(found.value)

    def test_running_statistics(self) -> None:
        class Normed(nn.Sequential):
            def blocks(self) -> list[nn.Module]:
                return list(self)

        opened("blocks")(Normed(nn.BatchNorm1d(4, track_running_stats=False)))
        with pytest.raises(ConfigError, match="BatchNorm1d would count each batch twice"):
            opened("selective")(Normed(nn.BatchNorm1d(4)))

    @pytest.mark.parametrize(
        ("keep", "said"),
        [([], "nothing is kept; name operators"), (["aten.nope"], "keep=aten.nope: torch.ops has")],
    )
    def test_operators(self, keep: list[str], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            opened("selective", keep=keep)

    def test_no_block_at_all(self) -> None:
        class Empty(nn.Module):
            def blocks(self) -> list[nn.Module]:
                return []

        none = opened("selective")
        none(Empty())
        assert none.report() == "0 blocks"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("scope", ["model", "blocks"])
@pytest.mark.parametrize("option", OPTIONS[1:])
def test_a_compiler_takes_it_as_one_graph(option: str, scope: str) -> None:
    # Dynamo and AOT autograd, which inductor stands on; it itself is in test_runs.py
    loss, grads, _ = trained("gpt", "off")
    model, batch = made("gpt", option)
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(graph)
        return aot_eager(graph, inputs)  # type: ignore[no-untyped-call]

    torch._dynamo.reset()
    for module in [model] if scope == "model" else model.blocks():  # type: ignore[operator]
        module.forward = torch.compile(module.forward, backend=backend, fullgraph=True)
    again = model(batch).square().sum()
    again.backward()
    assert len(graphs) == 1  # equal blocks share it
    assert torch.allclose(again, loss, rtol=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, grads[name], rtol=1e-3, atol=1e-4), name
    torch._dynamo.reset()


def wrapped(world: World, strategy: str, option: str) -> tuple[float, list[Tensor]]:
    """The mean loss of two steps over all ranks, and the parameters after them."""
    chosen = yaml.safe_load((config_dir() / "strategy" / f"{strategy}.yaml").read_text())
    model, batch = made("gpt", option)
    outer = config.build(chosen, context()).wrap(model, world, Eager(), FullPrecision(), Plain())
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        share = batch.chunk(world.world_size)[world.rank]
        loss = F.cross_entropy(outer(share).flatten(0, 1), share.flatten())
        loss.backward()
        optimizer.step()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in outer.parameters()]
    return float(loss.detach()), [p.detach().clone() for p in whole]


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_inside_a_wrapper(strategy: str) -> None:
    for runs in ranks.run(all_options, 2, strategy):
        (loss, off), *others = runs
        for again, parameters in others:
            assert again == loss
            assert all(torch.equal(a, b) for a, b in zip(parameters, off, strict=True))


def all_options(world: World, strategy: str) -> list[tuple[float, list[Tensor]]]:
    return [wrapped(world, strategy, option) for option in OPTIONS]
