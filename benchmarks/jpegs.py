"""A folder of real JPEGs that can be learned, the same at every call: for tests and benchmarks."""

from __future__ import annotations

import colorsys
import math
from pathlib import Path

import numpy as np
from PIL import Image


def write_jpegs(root: Path, classes: int, per_class: int, size: int) -> None:
    """ROOT/class_00/00000.jpg and so on: the long side has `size` pixels, the other three quarters
    of it, upright for every other image; quality 90. A class is a colour and a direction of
    stripes; position, strength and noise are drawn from (class, number)."""
    for label in range(classes):
        folder = Path(root, f"class_{label:02d}")
        folder.mkdir(parents=True)
        for number in range(per_class):
            pixels = picture(label, classes, number, size)
            Image.fromarray(pixels).save(folder / f"{number:05d}.jpg", quality=90)


def picture(label: int, classes: int, number: int, size: int) -> np.ndarray:
    """[H, W, 3] uint8."""
    draw = np.random.default_rng((label, number))
    short = max(1, size * 3 // 4)
    height, width = (size, short) if number % 2 else (short, size)
    rows, columns = np.mgrid[:height, :width] / size
    angle = math.pi * label / classes
    phase, waves = draw.uniform(0, 2 * math.pi), draw.uniform(6, 9)
    along = rows * math.sin(angle) + columns * math.cos(angle)
    stripes = 0.5 + 0.35 * np.sin(2 * math.pi * waves * along + phase)
    colour = np.array(colorsys.hsv_to_rgb(label / classes, 0.7, draw.uniform(0.7, 1)))
    noise = draw.normal(0, 0.02, (height, width, 3))
    return ((stripes[..., None] * colour + noise).clip(0, 1) * 255).astype(np.uint8)
