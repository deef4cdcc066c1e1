"""The perceptron: values by hand, FLOPs, and that it learns."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from paceline.model.mlp import Mlp, MlpModel


def small() -> MlpModel:
    torch.manual_seed(0)
    return Mlp(inputs=6, hidden=[5, 4], outputs=3).open(None)


def test_images_are_flattened() -> None:
    model = small()
    images = torch.randn(2, 1, 2, 3)
    assert model(images).shape == (2, 3)
    assert torch.equal(model(images), model(images.flatten(1)))


def test_layers_apply_linear_then_gelu_and_the_head_neither_bends_nor_squashes() -> None:
    model = small()
    x = torch.randn(2, 6)
    first, second = (layer.linear for layer in model.layers)
    y = F.gelu(x @ first.weight.T + first.bias)
    y = F.gelu(y @ second.weight.T + second.bias)
    torch.testing.assert_close(model(x), y @ model.head.weight.T + model.head.bias)


def test_without_hidden_layers_it_is_one_linear_layer() -> None:
    model = Mlp(inputs=6, hidden=[], outputs=3).open(None)
    assert model.blocks() == []
    assert sum(p.numel() for p in model.parameters()) == 6 * 3 + 3
    assert model.flops_per_unit() == 4 * 18


def test_flops_a_sample_by_hand_and_by_torchs_counter() -> None:
    model = small()
    assert model.flops_per_unit() == 6 * (30 + 20 + 12) - 2 * 30 == 312
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(7, 6)).sum().backward()
    assert counter.get_total_flops() == 7 * model.flops_per_unit()


def test_blocks_are_the_hidden_layers() -> None:
    model = small()
    assert model.blocks() == list(model.layers)
    assert len(model.blocks()) == 2


def test_initial_values_follow_the_seed() -> None:
    pairs = zip(small().parameters(), small().parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_samples_of_another_size_are_named() -> None:
    with pytest.raises(ValueError, match=r"8 values, model\.inputs=6"):
        small()(torch.randn(2, 2, 4))


def test_values_are_checked() -> None:
    with pytest.raises(ValueError, match="inputs=0: give 1 or more"):
        Mlp(inputs=0, hidden=[], outputs=3)
    with pytest.raises(ValueError, match=r"hidden\[1\]=0: give 1 or more"):
        Mlp(inputs=6, hidden=[5, 0], outputs=3)


def test_a_few_steps_lower_the_loss() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs = torch.randn(64, 6)
    targets = inputs[:, :3].argmax(1)
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
