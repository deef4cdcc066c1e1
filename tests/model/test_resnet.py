"""The residual network: shapes, independence of samples, and that it learns."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paceline.model.resnet import Resnet, ResnetModel


def small(blocks: list[int] | None = None) -> ResnetModel:
    torch.manual_seed(0)
    return Resnet(in_channels=1, width=8, blocks=blocks or [1, 2, 1], classes=4).open(None)


def test_each_stage_halves_the_resolution_and_doubles_the_width() -> None:
    model = small()
    shapes = []
    x = model.stem(torch.randn(2, 1, 8, 12))
    for layer in model.layers:
        x = layer(x)
        shapes.append(tuple(x.shape))
    assert shapes == [(2, 8, 8, 12), (2, 16, 4, 6), (2, 16, 4, 6), (2, 32, 2, 3)]


def test_logits_for_any_resolution() -> None:
    model = small()
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 4)
    assert model(torch.randn(2, 1, 16, 10)).shape == (2, 4)


def test_samples_do_not_see_each_other() -> None:
    model = small()
    images = torch.randn(4, 1, 8, 8)
    together = model(images)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(together, alone)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert not list(model.buffers())


def test_a_block_adds_its_input() -> None:
    block = small().layers[2]  # same width, same resolution
    nn.init.zeros_(block.norm2.weight)
    x = torch.randn(2, 16, 4, 4)
    assert torch.equal(block(x), x.relu())


def test_one_pixel_feature_maps_still_tell_images_apart() -> None:
    torch.manual_seed(0)
    for width in (1, 8, 12):
        settings = Resnet(in_channels=1, width=width, blocks=[1, 1, 1, 1], classes=4)
        logits = settings.open(None)(torch.randn(2, 1, 8, 8))
        assert not torch.allclose(logits[0], logits[1])


def test_blocks_are_the_residual_blocks() -> None:
    model = small([2, 3])
    assert model.blocks() == list(model.layers)
    assert len(model.blocks()) == 5


def test_initial_values_follow_the_seed() -> None:
    pairs = zip(small().parameters(), small().parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"blocks": []}, r"blocks=\[\]: give at least one stage"),
        ({"blocks": [1, 0]}, r"blocks\[1\]=0: give 1 or more"),
        ({"width": 0}, "width=0: give 1 or more"),
    ],
)
def test_values_are_checked(changed: dict[str, object], message: str) -> None:
    fields = {"in_channels": 1, "width": 8, "blocks": [1], "classes": 4}
    with pytest.raises(ValueError, match=message):
        Resnet(**(fields | changed))


def test_a_few_steps_lower_the_loss() -> None:
    model = small([1, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    labels = torch.arange(16) % 4
    images = 0.3 * torch.randn(16, 1, 8, 8)
    images[labels % 2 == 1, :, :4] += 1  # classes differ in which half is bright: upper, left
    images[labels >= 2, :, :, :4] += 1
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
