"""Images in a folder for each class, ROOT/CLASS/NAME.jpg (.jpeg, .png), decoded on the way."""

from __future__ import annotations

import importlib
import math
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.data.order import held_out_count
from paceline.data.stream import Loader, MapStream
from paceline.types import Batch, Context, DataError, at_least

SUFFIXES = (".jpg", ".jpeg", ".png")
DECODER_SCALES = (8, 4, 2)
AREAS, RATIOS, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
"""Of a random crop: share of the image, width over height, and draws before the middle is taken.
C. Szegedy et al., "Going deeper with convolutions", 2015, section 6; as torchvision has it."""

Box = tuple[int, int, int, int]
"""left, top, width, height: pixels of the image in the file."""


@dataclass(frozen=True)
class ImageFolder:
    """Square images [B, 3, S, S] f32, (pixel from 0 to 1 - mean) / std, and labels [B] int64.

    Classes count in the order of their names. `augment`: a random crop, resized, and a flip, drawn
    from (seed, epoch, item); held-out images, and all without it, are the largest square in the
    middle. `fast_decode` changes the pixels a little: the decoder averages where `resize` would.
    `normalize_on=device`: items are uint8 and become f32 in `prepare`. EXIF rotation is ignored.
    """

    requires: ClassVar[dict[str, str]] = {"PIL": "vision"}

    global_batch_size: int
    root: str
    image_size: int
    augment: bool
    backend: Literal["pillow", "torchvision"]
    fast_decode: bool
    normalize_on: Literal["host", "device"]
    held_out: float
    mean: list[float]
    std: list[float]
    loader: Loader

    def __post_init__(self) -> None:
        at_least(1, global_batch_size=self.global_batch_size, image_size=self.image_size)
        if not self.root:
            raise ValueError("root='': give the folder that holds a folder for each class")
        if self.fast_decode and self.backend != "pillow":
            raise ValueError(
                f"fast_decode=true: backend={self.backend} can't decode at a smaller scale; "
                "use backend=pillow, or fast_decode=false"
            )
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out={self.held_out}: give a share of the images, 0 to below 1")
        if len(self.mean) != 3 or not all(0 <= m <= 1 for m in self.mean):
            raise ValueError(f"mean={self.mean}: give three numbers from 0 to 1, as pixels are")
        if len(self.std) != 3 or not all(0 < s < math.inf for s in self.std):
            raise ValueError(f"std={self.std}: give three numbers above 0, for pixels from 0 to 1")

    def open(self, context: Context) -> MapStream:
        if self.backend == "torchvision":
            _need_torchvision()
        files = scan(Path(self.root).expanduser())
        train, held_out = files.split(self.held_out)
        on_device = self.normalize_on == "device"
        normalize = Normalize(
            self.mean, self.std, context.world.device if on_device else torch.device("cpu")
        )
        on_host = None if on_device else normalize
        return MapStream(
            Images(train, self, self.augment, on_host),
            Images(held_out, self, False, on_host),
            self.global_batch_size,
            self.loader,
            context,
            unit="images",
            random_items=self.augment,
            prepare=normalize.batch if on_device else None,
        )


@dataclass(frozen=True)
class Files:
    """Images below `root`. `names` [N] (class/name as the file system's bytes), `labels` [N]:
    arrays, for a list of strings is copied into each loader worker, page by page, as it is read."""

    root: Path
    names: npt.NDArray[np.bytes_]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> str:
        return os.path.join(self.root, os.fsdecode(self.names[index]))

    def split(self, held_out: float) -> tuple[Files, Files]:
        """Train and held-out images, these evenly over the sorted files; above 0 at least one, and
        one stays to train on."""
        length = len(self)
        count = held_out_count(length, held_out)
        held = np.zeros(length, np.bool_)
        held[(2 * np.arange(count) + 1) * length // (2 * max(count, 1))] = True
        return self._those(~held), self._those(held)

    def _those(self, mask: npt.NDArray[np.bool_]) -> Files:
        return Files(self.root, self.names[mask], self.labels[mask])


class Images:
    """Item i: an image [3, S, S], f32 if it is normalised here, else uint8, and its label."""

    def __init__(
        self, files: Files, settings: ImageFolder, augment: bool, normalize: Normalize | None
    ) -> None:
        self.files, self.augment, self.normalize = files, augment, normalize
        self.size, self.fast = settings.image_size, settings.fast_decode
        self.backend = settings.backend

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.files.path(index)
        try:
            if self.backend == "pillow":
                image = by_pillow(path, self.size, self.augment, self.fast)
            else:
                image = by_torchvision(path, self.size, self.augment)
        except Exception as error:  # which one depends on the format and on where it is broken
            said = str(error).partition("\n")[0]
            raise DataError(
                f"data.root: {path} can't be read as an image ({type(error).__name__}: {said}); "
                "repair or remove this file"
            ) from error
        label = int(self.files.labels[index])
        return (image if self.normalize is None else self.normalize(image)), label


class Normalize:
    """[..., 3, H, W] uint8 -> f32: (x / 255 - mean) / std, as one product and one sum."""

    def __init__(self, mean: list[float], std: list[float], device: torch.device) -> None:
        m, s = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
        self.scale, self.shift = (v.float().to(device) for v in (1 / (255 * s), -m / s))

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)

    def batch(self, batch: Batch) -> Batch:
        images, labels = batch
        return [self(images), labels]


def scan(root: Path) -> Files:
    """The images below `root`, by class and name. DataError when there is nothing to train on."""
    if not root.is_dir():
        raise DataError(
            f"data.root={root}: there is no such folder; give one that holds a folder of images "
            "for each class"
        )
    with os.scandir(root) as entries:
        classes = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    if not classes:
        raise DataError(
            f"data.root={root}: there is no folder in it; put the images of each class in a "
            "folder of its own, as ROOT/CLASS/NAME.jpg"
        )
    each = [_images_in(root / name) for name in classes]
    empty = [name for name, found in zip(classes, each, strict=True) if not found]
    if empty:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise DataError(
            f"data.root={root}: no {', '.join(SUFFIXES)} directly in {', '.join(empty[:5])}{more}; "
            "add images there, or remove what is no class"
        )
    names = [
        os.fsencode(os.path.join(name, file))
        for name, found in zip(classes, each, strict=True)
        for file in found
    ]
    if len(names) < 2:
        raise DataError(f"data.root={root}: one image is not enough to train on; add more")
    labels = np.repeat(np.arange(len(classes)), [len(found) for found in each])
    return Files(root, np.array(names), labels)


def crop_box(width: int, height: int, augment: bool) -> Box:
    """What of an image is used: at random (Python's generator), or the square in the middle."""
    if not augment:
        side = min(width, height)
        return (width - side) // 2, (height - side) // 2, side, side
    for _ in range(TRIES):
        area = width * height * random.uniform(*AREAS)
        ratio = math.exp(random.uniform(*map(math.log, RATIOS)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w = min(width, max(1, round(height * RATIOS[1])))
    h = min(height, max(1, round(width / RATIOS[0])))
    return (width - w) // 2, (height - h) // 2, w, h


def by_pillow(path: str, size: int, augment: bool, fast: bool) -> Tensor:
    """The image [3, size, size] uint8, cut out and resized in one pass."""
    from PIL import Image

    with Image.open(path) as file:
        if file.mode[0] in "IF":
            raise ValueError(f"its pixels ({file.mode}) have more than 8 bits a channel")
        left, top, width, height = crop_box(*file.size, augment)
        flip = augment and random.random() < 0.5
        scale = _decode_smaller(file, min(width, height) // size) if fast else 1
        image = file if file.mode == "RGB" else file.convert("RGB")
        box = (left / scale, top / scale, (left + width) / scale, (top + height) / scale)
        small = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(small)  # [size, size, 3]
    if flip:
        pixels = pixels[:, ::-1]
    return torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order="C"))


def by_torchvision(path: str, size: int, augment: bool) -> Tensor:
    """The same by torchvision's own decoder and its antialiased resize."""
    io: Any = importlib.import_module("torchvision.io")
    functional: Any = importlib.import_module("torchvision.transforms.v2.functional")
    image: Tensor = io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)
    if image.dtype != torch.uint8:
        raise ValueError(f"its pixels ({image.dtype}) have more than 8 bits a channel")
    left, top, width, height = crop_box(image.shape[2], image.shape[1], augment)
    flip = augment and random.random() < 0.5
    small: Tensor = functional.resized_crop(image, top, left, height, width, [size, size])
    return small.flip(2) if flip else small


def _decode_smaller(file: Any, most: int) -> int:
    """Have a JPEG decoded at 1 / scale, `most` or less, which is what this returns; else 1."""
    for scale in DECODER_SCALES:
        if scale <= most:
            asked = (file.width // scale, file.height // scale)
            return scale if file.draft(None, asked) else 1
    return 1


def _images_in(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.name.lower().endswith(SUFFIXES) and e.is_file())


def _need_torchvision() -> None:
    try:
        importlib.import_module("torchvision.transforms.v2.functional")
        _ = importlib.import_module("torchvision.io").decode_image  # deprecated since 0.29
    except (ImportError, AttributeError, RuntimeError) as error:  # the last: for another torch
        raise DataError(
            f"data.backend=torchvision: it can't be used ({type(error).__name__}: {error}); "
            "install the one built for this torch: pip install 'paceline[vision]'; or set "
            "data.backend=pillow"
        ) from error
