"""Real JPEGs and PNGs: what is found, cut out, augmented, normalised and refused."""

from __future__ import annotations

import importlib
import os
import pickle
import random
import shutil
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks.jpegs import write_jpegs
from paceline.data.image_folder import (
    ImageFolder,
    Normalize,
    by_pillow,
    by_torchvision,
    crop_box,
    scan,
)
from paceline.data.stream import Loader, MapStream
from paceline.types import Context, DataError, Run, World
from tests.conftest import TINY, Command

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def why_no_torchvision() -> str:
    try:
        importlib.import_module("torchvision.transforms.v2.functional")
    except (ImportError, RuntimeError) as error:
        return f"torchvision: {error}"
    return ""


NO_TORCHVISION = why_no_torchvision()


def needs_torchvision(test: Any) -> Any:
    deprecated = "ignore:The image decoding and encoding:DeprecationWarning"  # since 0.29
    marked = pytest.mark.filterwarnings(deprecated)(test)
    return pytest.mark.skipif(bool(NO_TORCHVISION), reason=NO_TORCHVISION)(marked)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 classes of 6 images, 48 by 36 or 36 by 48."""
    root = tmp_path_factory.mktemp("images")
    write_jpegs(root, 4, 6, 48)
    return root


def settings(root: Path | str, workers: int = 0, **changed: Any) -> ImageFolder:
    loader = Loader(workers, 2, persistent_workers=True, pin_memory=False)
    given: dict[str, Any] = dict(
        global_batch_size=8,
        root=str(root),
        image_size=16,
        augment=True,
        backend="pillow",
        fast_decode=False,
        normalize_on="host",
        held_out=0.25,
        mean=MEAN,
        std=STD,
        loader=loader,
    )
    return ImageFolder(**(given | changed))


def opened(
    root: Path, workers: int = 0, rank: int = 0, world: int = 1, seed: int = 0, **changed: Any
) -> MapStream:
    here = World(rank, rank, 0, world, torch.device("cpu"))
    context = Context(here, Run(1, 1, seed, None, 0, "cpu"), root, build=print)
    return settings(root, workers, **changed).open(context)


def take(stream: MapStream, steps: int) -> tuple[Tensor, Tensor]:
    """Images and labels of the first steps on this rank, stacked."""
    images, labels = zip(*islice(stream.batches(0), steps), strict=True)
    return torch.cat(images), torch.cat(labels)


# ---------------------------------------------------------------- what is found


def test_folders_are_labels_in_the_order_of_their_names(folder: Path) -> None:
    files = scan(folder)
    assert len(files) == 24
    assert files.labels.tolist() == [label for label in range(4) for _ in range(6)]
    assert files.path(7) == str(folder / "class_01" / "00001.jpg")


def test_only_images_count_whatever_the_case(tmp_path: Path) -> None:
    write_jpegs(tmp_path, 2, 1, 8)
    one, two = tmp_path / "class_00", tmp_path / "class_01"
    (one / "00000.jpg").rename(one / "B\udcff.JPEG")  # a name that is no UTF-8
    (one / "notes.txt").write_text("no image")
    (one / "deeper.jpg").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / "readme.jpg").write_text("no class")
    Image.new("RGB", (8, 8)).save(one / "a.png")
    files = scan(tmp_path)
    assert [os.path.basename(files.path(i)) for i in range(3)] == [
        "B\udcff.JPEG",
        "a.png",
        "00000.jpg",
    ]
    assert files.path(2) == str(two / "00000.jpg")
    assert all(os.path.exists(files.path(i)) for i in range(3))


@pytest.mark.parametrize(
    ("share", "held"),
    [(0.0, []), (0.25, [2, 6, 10, 14, 18, 22]), (0.5, list(range(1, 24, 2))), (0.001, [12])],
)
def test_held_out_files_are_spread_over_all_classes(
    folder: Path, share: float, held: list[int]
) -> None:
    files = scan(folder)
    train, held_out = files.split(share)
    assert held_out.names.tolist() == files.names[held].tolist()
    assert sorted([*train.names, *held_out.names]) == sorted(files.names)
    assert held_out.labels.tolist() == files.labels[held].tolist()


def test_one_image_stays_to_train_on(tmp_path: Path) -> None:
    write_jpegs(tmp_path, 2, 1, 8)
    train, held_out = scan(tmp_path).split(0.99)
    assert (len(train), len(held_out)) == (1, 1)


# ---------------------------------------------------------------- batches


def test_a_batch_is_normalised_images_and_labels(folder: Path) -> None:
    stream = opened(folder)
    images, labels = next(stream.batches(0))
    assert images.shape == (8, 3, 16, 16)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert (stream.unit, stream.count([images, labels]), stream.samples) == ("images", 8, 18)


@pytest.mark.parametrize("augment", [True, False])
def test_neither_workers_nor_world_change_a_pixel(folder: Path, augment: bool) -> None:
    alone = opened(folder, augment=augment)
    images, labels = take(alone, 5)
    many = opened(folder, workers=2, augment=augment)
    again, labels_again = take(many, 5)
    assert torch.equal(images, again)
    assert torch.equal(labels, labels_again)
    assert many.digest(5) == alone.digest(5)
    ranks = [opened(folder, workers=r, rank=r, world=2, augment=augment) for r in range(2)]
    parts = [take(rank, 5)[0].view(5, 4, 3, 16, 16) for rank in ranks]
    assert torch.equal(torch.cat(parts, 1).flatten(0, 1), images)
    assert sum(rank.digest(5) or 0 for rank in ranks) % 2**64 == alone.digest(5)


def test_augmentation_differs_by_epoch_and_seed(folder: Path) -> None:
    def by_epoch(**given: Any) -> list[Tensor]:
        stream = opened(folder, global_batch_size=18, held_out=0.25, **given)
        return [
            images[stream.order.take(18 * epoch, 18 * epoch + 18).argsort()]
            for epoch, (images, _) in enumerate(islice(stream.batches(0), 2))
        ]

    still, moving, other = by_epoch(augment=False), by_epoch(augment=True), by_epoch(seed=1)
    assert torch.equal(still[0], still[1])
    for a, b in (moving, (moving[0], other[0]), (moving[0], still[0])):
        assert all(not torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_held_out_images_are_never_augmented(folder: Path) -> None:
    augmented = list(opened(folder, augment=True).held_out(2))
    plain = list(opened(folder, augment=False).held_out(2))
    assert sum(len(images) for images, _ in augmented) == 6
    assert all(torch.equal(a[0], b[0]) for a, b in zip(augmented, plain, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_normalising_on_the_device_gives_the_same_bits(folder: Path, workers: int) -> None:
    host, device = opened(folder), opened(folder, workers, normalize_on="device")
    assert host.prepare is None
    prepare = device.prepare
    assert prepare is not None
    wanted, raw = next(host.batches(0)), next(device.batches(0))
    assert raw[0].dtype == torch.uint8
    assert raw[0].nbytes * 4 == wanted[0].nbytes
    images, labels = prepare(raw)
    assert torch.equal(images, wanted[0])
    assert torch.equal(labels, wanted[1])
    held, held_raw = next(host.held_out(1)), next(device.held_out(1))
    assert torch.equal(prepare(held_raw)[0], held[0])


def test_normalising_is_what_the_formula_says() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    wanted = (pixels.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(
        3, 1, 1
    )
    found = Normalize(MEAN, STD, torch.device("cpu"))(pixels)
    assert torch.allclose(found.double(), wanted, rtol=0, atol=1e-6)


def test_items_can_be_sent_to_a_spawned_worker(folder: Path) -> None:
    train = opened(folder, augment=False).train
    assert torch.equal(pickle.loads(pickle.dumps(train))[3][0], train[3][0])


# ---------------------------------------------------------------- pixels


def gradient(path: Path, width: int, height: int) -> Path:
    """An image whose red is x and whose green is y, a PNG or JPEG by its name."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(width), np.arange(height)[:, None]
    Image.fromarray(pixels).save(path, **({"quality": 95} if path.suffix == ".jpg" else {}))
    return path


def test_without_augmentation_it_is_the_square_in_the_middle(tmp_path: Path) -> None:
    wide = by_pillow(str(gradient(tmp_path / "a.png", 200, 100)), 100, False, False)
    assert torch.equal(wide[0], torch.arange(50, 150, dtype=torch.uint8).expand(100, 100))
    tall = by_pillow(str(gradient(tmp_path / "b.png", 100, 200)), 100, False, False)
    assert torch.equal(tall[1].T, torch.arange(50, 150, dtype=torch.uint8).expand(100, 100))
    small = by_pillow(str(gradient(tmp_path / "c.png", 10, 30)), 20, False, False)
    assert small.shape == (3, 20, 20)  # larger than the image


def test_a_random_crop_is_what_its_box_says(tmp_path: Path) -> None:
    path = str(gradient(tmp_path / "a.png", 240, 160))
    flipped = 0
    for seed in range(20):
        random.seed(seed)
        left, top, width, height = crop_box(240, 160, True)
        flip = random.random() < 0.5
        random.seed(seed)
        image = by_pillow(path, 64, True, False).float()
        reds, greens = image[0].mean(0), image[1].mean(1)
        wanted = left + (torch.arange(64) + 0.5) * width / 64 - 0.5
        assert torch.allclose(reds, wanted.flip(0) if flip else wanted, atol=1.5)
        wanted = top + (torch.arange(64) + 0.5) * height / 64 - 0.5
        assert torch.allclose(greens, wanted, atol=1.5)
        flipped += flip
    assert 0 < flipped < 20


def test_random_boxes_lie_inside_and_cover_the_areas_of_the_paper() -> None:
    random.seed(0)
    boxes = [crop_box(400, 300, True) for _ in range(2000)]
    for left, top, width, height in boxes:
        assert left >= 0 and top >= 0 and left + width <= 400 and top + height <= 300
        assert 0.74 < width / height < 1.35
    shares = np.array([w * h / (400 * 300) for _, _, w, h in boxes])
    assert 0.079 < shares.min() < 0.1
    assert shares.max() > 0.9
    assert 0.35 < np.median(shares) < 0.5  # many large ones do not fit and are drawn again


@pytest.mark.parametrize(
    ("size", "box"),
    [((1000, 10), (493, 0, 13, 10)), ((10, 1000), (0, 493, 10, 13)), ((1, 1), (0, 0, 1, 1))],
)
def test_an_image_too_narrow_for_a_random_crop(size: tuple[int, int], box: Any) -> None:
    random.seed(0)
    found = {crop_box(*size, True) for _ in range(30)}
    assert box in found


@pytest.mark.parametrize(("side", "scale"), [(400, 8), (399, 4), (200, 4), (100, 2), (99, 1)])
def test_fast_decode_takes_the_smallest_scale_that_is_enough(
    tmp_path: Path, side: int, scale: int
) -> None:
    from paceline.data.image_folder import _decode_smaller

    path = tmp_path / "a.jpg"
    Image.new("RGB", (side + 100, side)).save(path)
    with Image.open(path) as file:
        assert _decode_smaller(file, side // 50) == scale
        assert file.size == (-(-(side + 100) // scale), -(-side // scale))


def test_fast_decode_shows_the_same_picture(tmp_path: Path) -> None:
    path = str(gradient(tmp_path / "a.jpg", 250, 190))
    for seed in range(10):
        images = []
        for fast in (False, True):
            random.seed(seed)
            images.append(by_pillow(path, 20, True, fast).float())
        assert (images[0] - images[1]).abs().mean() < 1.5  # of 255
        assert (images[0] - images[1]).abs().max() < 12
    png = str(gradient(tmp_path / "a.png", 250, 190))  # no smaller scale: decoded whole
    assert torch.equal(by_pillow(png, 20, False, True), by_pillow(png, 20, False, False))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "LA"])
def test_every_kind_of_pixel_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("RGB", (12, 12), (255, 255, 255)).convert(mode).save(path)
    image = by_pillow(str(path), 8, False, False)
    assert (image.dtype, image.shape) == (torch.uint8, (3, 8, 8))
    assert image.min() >= 250


@needs_torchvision
@pytest.mark.parametrize("augment", [True, False])
def test_both_backends_give_nearly_the_same_pixels(folder: Path, augment: bool) -> None:
    path = str(folder / "class_01" / "00001.jpg")
    for seed in range(5):
        images = []
        for read in (
            lambda: by_pillow(path, 16, augment, False),
            lambda: by_torchvision(path, 16, augment),
        ):
            random.seed(seed)
            images.append(read().float())
        assert images[0].shape == images[1].shape
        assert (images[0] - images[1]).abs().mean() < 3  # of 255: the resize sees other edges


@needs_torchvision
def test_torchvisions_items_do_not_depend_on_workers(folder: Path) -> None:
    alone = take(opened(folder, backend="torchvision"), 3)[0]
    assert torch.equal(take(opened(folder, 2, backend="torchvision"), 3)[0], alone)


@needs_torchvision
def test_torchvision_names_the_broken_file_too(tmp_path: Path) -> None:
    write_jpegs(tmp_path, 2, 2, 16)
    (tmp_path / "class_00" / "00000.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"class_00/00000\.jpg can't be read as an image"):
        opened(tmp_path, held_out=0.0, backend="torchvision").train[0]


# ---------------------------------------------------------------- what is refused


def test_what_holds_no_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing: there is no such folder"):
        scan(tmp_path / "missing")
    with pytest.raises(DataError, match="there is no folder in it"):
        scan(tmp_path)
    write_jpegs(tmp_path, 3, 1, 8)
    (tmp_path / "class_01" / "00000.jpg").unlink()
    for n in range(7):
        (tmp_path / f"empty_{n}").mkdir()
    listed = "class_01, empty_0, empty_1, empty_2, empty_3 and 3 more"
    with pytest.raises(DataError, match=f"directly in {listed}; add images"):
        scan(tmp_path)
    for path in [*tmp_path.glob("empty_*"), tmp_path / "class_01", tmp_path / "class_02"]:
        shutil.rmtree(path)
    with pytest.raises(DataError, match="one image is not enough"):
        scan(tmp_path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def no_image(path: Path) -> None:
    path.write_text("no image at all")


def sixteen_bits(path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(path, format="PNG")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (truncated, "OSError: .*[Tt]runcated"),
        (no_image, "UnidentifiedImageError"),
        (sixteen_bits, "more than 8 bits"),
        (Path.unlink, "FileNotFoundError"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_named(tmp_path: Path, spoil: Any, said: str, workers: int) -> None:
    write_jpegs(tmp_path, 2, 1, 64)
    stream = opened(tmp_path, workers, held_out=0.0, global_batch_size=2)
    spoil(tmp_path / "class_01" / "00000.jpg")
    wanted = rf"^data\.root: .*class_01/00000\.jpg can't be read as an image \(.*{said}"
    with pytest.raises(DataError, match=wanted):
        next(stream.batches(0))


@pytest.mark.skipif(not NO_TORCHVISION, reason="torchvision works here")
def test_a_missing_torchvision_is_said_with_the_way_out(folder: Path) -> None:
    with pytest.raises(DataError, match=r"install .* 'paceline\[vision\]'; or set .*=pillow"):
        opened(folder, backend="torchvision")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size=0: give 1 or more"),
        ({"image_size": 0}, "image_size=0: give 1 or more"),
        ({"root": ""}, "root='': give the folder"),
        ({"held_out": 1.0}, r"held_out=1\.0: give a share"),
        ({"mean": [0.5]}, r"mean=\[0\.5\]: give three numbers from 0 to 1"),
        ({"mean": [123.7, 116.3, 103.5]}, "mean=.*: give three numbers from 0 to 1"),
        ({"std": [0.2, 0.0, 0.2]}, "std=.*: give three numbers above 0"),
        ({"fast_decode": True, "backend": "torchvision"}, "fast_decode=true: backend=torchvision"),
    ],
)
def test_values_are_checked(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**({"root": "somewhere"} | changed))


def test_what_must_be_installed_is_no_setting() -> None:
    assert ImageFolder.requires == {"PIL": "vision"}
    assert "requires" not in {f.name for f in fields(ImageFolder)}


# ---------------------------------------------------------------- the real command


@pytest.fixture
def job(folder: Path) -> list[str]:
    words = [w for w in TINY if not w.startswith(("data", "model"))]
    return [
        *words,
        "data=image_folder",
        f"data.root={folder}",
        "data.image_size=12",
        "launch.threads_per_rank=1",
        "model=resnet",
        "model.in_channels=3",
        "model.width=8",
        "model.classes=4",
        "data.global_batch_size=16",
        "optimizer=adamw",
    ]


def test_a_network_learns_the_classes(command: Command, job: list[str]) -> None:
    # normalised by the loop, in training and in evaluation: uint8 would fail in the first layer
    done = command(*job, "data.augment=false", "data.normalize_on=device")
    assert done.code == 0, done.out + done.err
    record = done.job()
    assert record["validity"]["verdict"] == "valid", record["validity"]
    assert record["throughput"]["unit"] == "images"
    assert record["numerics"]["final_loss"] < 0.5 * record["numerics"]["loss"][0]
    assert record["numerics"]["eval_loss"] < 1.0  # chance: 1.39


def test_the_command_names_a_broken_image(command: Command, job: list[str], folder: Path) -> None:
    spoilt = command.cwd / "images"
    shutil.copytree(folder, spoilt)
    truncated(spoilt / "class_02" / "00003.jpg")
    done = command(*job, f"data.root={spoilt}", "data.loader.num_workers=1")
    assert done.code == 1
    status = done.job()["status"]
    assert status["kind"] == "data_error"
    assert status["message"].startswith(f"data.root: {spoilt}/class_02/00003.jpg can't be read")
    assert "class_02/00003.jpg" in done.out + done.err
