"""Real images: what is in the file, how it is scaled and split."""

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.data.digits import Digits, load
from paceline.data.stream import Loader
from paceline.types import Context, Run, World

LOADER = Loader(num_workers=0, prefetch_factor=2, persistent_workers=True, pin_memory="auto")

FIRST = [  # the first image of the set, a zero
    [0, 0, 5, 13, 9, 1, 0, 0],
    [0, 0, 13, 15, 10, 15, 5, 0],
    [0, 3, 15, 2, 0, 11, 8, 0],
    [0, 4, 12, 0, 0, 8, 8, 0],
    [0, 5, 8, 0, 0, 9, 8, 0],
    [0, 4, 11, 0, 1, 12, 7, 0],
    [0, 2, 14, 5, 10, 12, 0, 0],
    [0, 0, 6, 13, 10, 0, 0, 0],
]


def test_the_first_image() -> None:
    train, _ = load(flatten=False)
    images, labels = train.__getitems__(np.array([0, 1]))
    assert images.shape == (2, 1, 8, 8)
    assert (images[0, 0] * 16).tolist() == FIRST
    assert labels.tolist() == [0, 1]
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)


def test_flat_images_are_the_same_pixels() -> None:
    train, held_out = load(flatten=True)
    rows = np.arange(20)
    assert train.__getitems__(rows)[0].shape == (20, 64)
    whole = load(flatten=False)[0].__getitems__(rows)[0]
    assert torch.equal(train.__getitems__(rows)[0], whole.flatten(1))
    assert held_out.tensors[0].shape == (179, 64)


def test_every_tenth_image_is_held_out() -> None:
    train, held_out = load(flatten=False)
    assert (len(train), len(held_out)) == (1618, 179)
    # the set begins 0 to 9, 0 to 9: both nines are held out
    assert train.tensors[1][:18].tolist() == [*range(9), *range(9)]
    assert held_out.tensors[1][:2].tolist() == [9, 9]


def test_all_pixels_and_labels_are_in_range() -> None:
    train, held_out = load(flatten=False)
    images = torch.cat([train.tensors[0], held_out.tensors[0]])
    labels = torch.cat([train.tensors[1], held_out.tensors[1]])
    assert (images.min().item(), images.max().item()) == (0, 1)
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_stream_counts_images(tmp_path: Path) -> None:
    world = World(0, 0, 0, 1, torch.device("cpu"))
    context = Context(world, Run(1, 1, 0, None, 0, "cpu"), tmp_path, build=print)
    stream = Digits(global_batch_size=32, flatten=False, loader=LOADER).open(context)
    batch = next(iter(stream.batches(0)))
    assert batch[0].shape == (32, 1, 8, 8)
    assert stream.unit == "images"
    assert stream.count(batch) == 32


def test_values_are_checked() -> None:
    with pytest.raises(ValueError, match="global_batch_size=0: give 1 or more"):
        Digits(0, flatten=False, loader=LOADER)
