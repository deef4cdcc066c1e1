"""Which layer takes how long: marks around forwards, backward by its sequence numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from paceline.profiler.layers import OUTSIDE, Layers, Row, by_layer

HEAVY, LIGHT = 2048, 8


class Block(nn.Module):
    """x [B, 8] -> [B, 8], through [B, inner]."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(LIGHT, inner), nn.Linear(inner, LIGHT)
        self.middle = nn.ModuleList([nn.Linear(inner, inner)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.middle[0](self.up(x)).relu())
        return out


class Net(nn.Module):
    """Blocks deep inside of a part that isn't one, as in many models."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.ModuleDict({"layers": nn.ModuleList([Block(LIGHT), Block(HEAVY)])})
        self.head = nn.Linear(LIGHT, 2)

    def blocks(self) -> list[nn.Module]:
        return list(self.trunk["layers"])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks():
            x = block(x)
        out: Tensor = self.head(x)
        return out


def profiled(model: nn.Module, layers: Layers, **options: Any) -> dict[str, Row]:
    """Two steps of it."""
    x = torch.randn(512, LIGHT)
    layers.mark()
    with profile(activities=[ProfilerActivity.CPU], **options) as found:
        for _ in range(2):
            model(x).square().mean().backward()
    layers.unmark()
    return by_layer(found.events() or [])


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_blocks_and_their_children_are_the_rows() -> None:
    model = Net()
    inside = [f"trunk.layers.{i}" + part for i in range(2) for part in ("", ".up", ".down")]
    middle = [f"trunk.layers.{i}.middle.0" for i in range(2)]
    assert set(Layers(model, model).modules) == {*inside, *middle, "head"}


def test_a_model_without_blocks_has_its_children_as_rows() -> None:
    model = nn.Sequential(nn.Linear(LIGHT, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    assert set(Layers(model, model).modules) == {"0", "1", "1.0", "1.1"}


@pytest.mark.parametrize("options", [{}, {"with_stack": True}], ids=["plain", "stacks"])
def test_time_is_where_the_work_is(options: dict[str, Any]) -> None:
    model = Net()
    rows = profiled(model, Layers(model, model), **options)
    heavy, light = rows.pop("trunk.layers.1.middle.0"), rows.pop("trunk.layers.0.middle.0")
    rows.pop(OUTSIDE)
    assert heavy.calls == light.calls == 2
    # 65536 times the multiplications; no other layer has a hundredth of them
    assert heavy.forward_self_s > max(
        light.forward_self_s, *(r.forward_self_s for r in rows.values())
    )
    assert heavy.backward_self_s > max(
        light.backward_self_s, *(r.backward_self_s for r in rows.values())
    )
    assert all(row.backward_self_s > 0 for row in rows.values())


def test_what_is_computed_again_is_backward() -> None:
    model = Net()
    for block in model.blocks():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    layers = Layers(model, model)
    layers.mark()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        model(torch.randn(4, LIGHT)).sum().backward()
    layers.unmark()
    events = found.events() or []
    again = "trunk.layers.1.up"
    assert [e.name for e in events].count(f"layer: {again}") == 2
    row = by_layer(events)[again]
    assert row.calls == 1, "a forward within backward is no call"
    # the second range lies in backward as a whole, on top of what its own nodes took
    ranges = [e for e in events if e.name == f"layer: {again}"]
    first, second = sorted(ranges, key=lambda e: e.time_range.start)
    assert row.forward_self_s == pytest.approx(first.cpu_time_total / 1e6)
    assert row.backward_self_s > second.cpu_time_total / 1e6


def test_nothing_is_marked_inside_of_what_is_compiled() -> None:
    model = Net()
    block = model.blocks()[1]
    block.forward = torch.compile(block.forward, backend="eager")  # type: ignore[method-assign]
    layers = Layers(model, model)
    assert layers.left_out == 3
    assert "compile=off" in str(layers.why)
    assert "trunk.layers.1" in layers.modules
    assert "trunk.layers.0.up" in layers.modules

    outer = Net()
    outer.forward = torch.compile(outer.forward, backend="eager")  # type: ignore[method-assign]
    assert not Layers(outer, outer).modules
    assert Layers(outer, outer).left_out == 9


def test_the_marks_are_gone_afterwards_and_after_an_error() -> None:
    model = Net()
    before = hooks(model)
    layers = Layers(model, model)
    layers.mark()
    assert hooks(model) == before + 2 * len(layers.modules)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        with pytest.raises(RuntimeError):
            model(torch.randn(3, LIGHT + 1))
        model(torch.randn(3, LIGHT))
    layers.unmark()
    assert hooks(model) == before
    names = [e.name for e in found.events() or []]
    # a range left open would have no end, or hold the next forward
    open_ranges = [e for e in found.events() or [] if e.name == "layer: head" and e.cpu_parent]
    assert names.count("layer: head") == 1
    assert not open_ranges
