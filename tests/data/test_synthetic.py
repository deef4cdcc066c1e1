"""Made-up data: shapes, the teacher behind the labels, and that the seed decides."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.data.stream import Loader
from paceline.data.synthetic import Synthetic, make
from paceline.types import Context, Run, World

LOADER = Loader(num_workers=0, prefetch_factor=2, persistent_workers=True, pin_memory="auto")


def settings(**changed: Any) -> Synthetic:
    fields = {"samples": 200, "kind": "vectors", "shape": [6], "classes": 4}
    return Synthetic(**({"global_batch_size": 8, "loader": LOADER} | fields | changed))


def test_vectors_are_standard_normal_and_every_class_occurs() -> None:
    train, held_out = make(settings(samples=4000), seed=0)
    inputs, labels = train.tensors
    assert inputs.shape == (4000, 6)
    assert (len(train), len(held_out)) == (4000, 400)
    assert inputs.mean().item() == pytest.approx(0, abs=0.03)
    assert inputs.std().item() == pytest.approx(1, abs=0.03)
    assert labels.dtype == torch.int64
    assert labels.unique().tolist() == [0, 1, 2, 3]


def test_labels_come_from_the_teacher_drawn_first() -> None:
    train, held_out = make(settings(), seed=3)
    generator = torch.Generator().manual_seed(3)
    teacher = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    for part in (train, held_out):
        inputs, labels = part.tensors
        assert torch.equal((inputs.double() @ teacher).argmax(1), labels)
    assert torch.equal(torch.randn(200, 6, generator=generator), train.tensors[0])


def test_labels_of_more_samples_than_are_handled_at_once() -> None:
    inputs, labels = make(settings(samples=2500), seed=3)[0].tensors
    teacher = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert torch.equal((inputs.double() @ teacher).argmax(1), labels)


def test_images() -> None:
    train, _ = make(settings(kind="images", shape=[3, 4, 5]), seed=0)
    assert train.tensors[0].shape == (200, 3, 4, 5)
    assert train.tensors[1].shape == (200,)


def test_a_target_token_is_a_function_of_its_input_token() -> None:
    train, held_out = make(settings(kind="tokens", shape=[12], classes=7), seed=0)
    inputs = torch.cat([train.tensors[0], held_out.tensors[0]]).flatten().tolist()
    targets = torch.cat([train.tensors[1], held_out.tensors[1]]).flatten().tolist()
    pairs = set(zip(inputs, targets, strict=True))
    assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == list(range(7))
    assert train.tensors[0].shape == train.tensors[1].shape == (200, 12)


def test_the_seed_decides_and_held_out_samples_are_others() -> None:
    first, again, other = (make(settings(), seed=s)[0].tensors for s in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    train, held_out = make(settings(), seed=0)
    assert not torch.equal(train.tensors[0][: len(held_out)], held_out.tensors[0])


def test_the_batch_size_changes_how_many_are_held_out_and_nothing_in_training() -> None:
    small, large = (
        make(settings(samples=20), 0),
        make(settings(samples=20, global_batch_size=16), 0),
    )
    assert (len(small[1]), len(large[1])) == (8, 16)
    assert torch.equal(small[0].tensors[0], large[0].tensors[0])


@pytest.mark.parametrize(
    ("kind", "shape", "unit", "units"),
    [
        ("vectors", [6], "samples", 8),
        ("images", [1, 2, 3], "images", 8),
        ("tokens", [12], "tokens", 96),
    ],
)
def test_units(kind: str, shape: list[int], unit: str, units: int, tmp_path: Path) -> None:
    world = World(0, 0, 0, 1, torch.device("cpu"))
    context = Context(world, Run(1, 1, 0, None, 0, "cpu"), tmp_path, build=print)
    stream = settings(kind=kind, shape=shape).open(context)
    batch = next(iter(stream.batches(0)))
    assert batch[0].shape == (8, *shape)
    assert stream.unit == unit
    assert stream.count(batch) == units


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shape": [2, 3]}, r"shape=\[2, 3\]: kind=vectors needs \[features\]"),
        ({"kind": "images"}, r"shape=\[6\]: kind=images needs \[channels, height, width\]"),
        ({"shape": []}, r"shape=\[\]: kind=vectors"),
        ({"shape": [0]}, r"shape=\[0\]: kind=vectors"),
        ({"samples": 0}, "samples=0: give 1 or more"),
        ({"classes": 1}, "classes=1: give 2 or more"),
    ],
)
def test_values_are_checked(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**changed)
