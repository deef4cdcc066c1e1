"""A small residual network; its group normalisation does not couple the samples of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.types import Context, at_least


@dataclass(frozen=True)
class Resnet:
    """`blocks[i]`: residual blocks of stage i. Each stage after the first halves height and width
    and doubles the channels, from `width`."""

    in_channels: int
    width: int
    blocks: list[int]
    classes: int

    def __post_init__(self) -> None:
        at_least(1, in_channels=self.in_channels, width=self.width, classes=self.classes)
        if not self.blocks:
            raise ValueError("blocks=[]: give at least one stage, as in [1, 1, 1]")
        for i, count in enumerate(self.blocks):
            at_least(1, **{f"blocks[{i}]": count})

    def open(self, context: Context) -> ResnetModel:
        return ResnetModel(self)


class ResnetModel(nn.Module):
    """Images [B, C, H, W] f32 -> logits [B, classes], for any H and W."""

    def __init__(self, settings: Resnet) -> None:
        super().__init__()
        self.stem = nn.Conv2d(settings.in_channels, settings.width, 3, padding=1, bias=False)
        self.stem_norm = _norm(settings.width)
        self.layers = nn.ModuleList()
        channels = settings.width
        for stage, count in enumerate(settings.blocks):
            wide = settings.width * 2**stage
            for i in range(count):
                halves = stage > 0 and i == 0
                self.layers.append(Block(channels, wide, stride=2 if halves else 1))
                channels = wide
        self.head = nn.Linear(channels, settings.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(images)))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, [B, C, H, W] -> [B, wide, H / stride, W / stride]."""

    def __init__(self, channels: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wide, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norm2 = _norm(wide)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Conv2d(channels, wide, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


def _norm(channels: int) -> nn.GroupNorm:
    # groups of 8: with one channel a group, a 1x1 feature map would be normalised to zero
    return nn.GroupNorm(channels // 8 if channels % 8 == 0 else 1, channels)
