"""A hundred ways to damage the newest checkpoint: each is named, none is loaded, the older one is.

Through the real `load` of a choice, one process; every mutation is drawn by a seed of its own.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from paceline.checkpoint.reading import newest_good
from paceline.checkpoint.shelf import Shelf
from paceline.types import CheckpointError
from tests import saved
from tests.checkpoint.training import ALONE

OLD, NEW = 3, 6
KINDS = {
    "sync": ("state.pt", "manifest.json"),
    "dcp": ("__0_0.distcp", ".metadata", "manifest.json"),
}
RESIZED = ("truncated", "lengthened", "deleted")
MOST_BITS = 8 * 4096


@dataclass(frozen=True)
class Mutation:
    """`file` of the checkpoint of step NEW of that choice, and how it is damaged. `other`: the file
    that it is swapped with."""

    choice: str
    file: str
    how: str
    number: int = 0
    other: str = ""

    def __str__(self) -> str:
        return "-".join((self.choice, self.file, self.how, self.other, str(self.number)))

    def damage(self, directory: Path) -> None:
        """`directory`: a job's."""
        dice = random.Random(str(self))
        old, new = (directory / "checkpoint" / f"step_{step:08d}" for step in (OLD, NEW))
        path = new / self.file
        raw = path.read_bytes()
        if self.how == "truncated":  # the first of them by one byte
            path.write_bytes(raw[: dice.randrange(len(raw)) if self.number else -1])
        elif self.how == "lengthened":
            path.write_bytes(raw + bytes(dice.randint(1, 4096)))
        elif self.how == "deleted":
            path.unlink()
        elif self.how == "flipped":
            path.write_bytes(flipped(raw, 1 if self.number < 3 else MOST_BITS, dice))
        elif self.how == "swapped":
            path.rename(new / "between")
            (new / self.other).rename(path)
            (new / "between").rename(new / self.other)
        elif self.how == "of another step":
            shutil.copyfile(old / self.file, path)
        else:
            assert self.how == "all of another step"
            shutil.copytree(old, new, dirs_exist_ok=True)


def flipped(raw: bytes, most: int, dice: random.Random) -> bytes:
    """A random number of bits, `most` or less, upside down, in one stretch."""
    bits = dice.randint(1, min(most, 8 * len(raw)))
    first = dice.randint(0, 8 * len(raw) - bits)
    mask = (dice.getrandbits(bits) | 1 << (bits - 1)) << first
    return (int.from_bytes(raw, "little") ^ mask).to_bytes(len(raw), "little")


def mutations() -> Iterator[Mutation]:
    for choice, files in KINDS.items():
        for file in files:
            for number in range(6):
                yield Mutation(choice, file, "truncated", number)
            for number in range(8):
                yield Mutation(choice, file, "flipped", number)
            for number in range(2):
                yield Mutation(choice, file, "lengthened", number)
            yield Mutation(choice, file, "deleted")
            yield Mutation(choice, file, "of another step")
            for other in files[files.index(file) + 1 :]:
                yield Mutation(choice, file, "swapped", other=other)
        yield Mutation(choice, "manifest.json", "all of another step")
    for number in range(8, 12):
        yield Mutation("dcp", ".metadata", "flipped", number)


ALL = list(mutations())


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A job of each choice with two good checkpoints."""
    made = {}
    for choice in KINDS:
        made[choice] = tmp_path_factory.mktemp(choice)
        saved.save(choice, made[choice], OLD, NEW)
    return made


@pytest.fixture(scope="module")
def models(jobs: dict[str, Path]) -> dict[str, dict[str, torch.Tensor]]:
    """What each choice loads from its older one, when that is alone."""
    found = {}
    for choice, job in jobs.items():
        alone = job / "alone"
        name = f"checkpoint/step_{OLD:08d}"
        shutil.copytree(job / name, alone / name)
        state = saved.state(1)
        assert saved.opened(choice, alone).load(state) == OLD
        found[choice] = state.model.state_dict()
    return found


def test_there_are_a_hundred_and_all_differ() -> None:
    assert len(ALL) == len(set(map(str, ALL))) == 100


@pytest.mark.parametrize("mutation", ALL, ids=str)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(
    mutation: Mutation,
    jobs: dict[str, Path],
    models: dict[str, dict[str, torch.Tensor]],
    tmp_path: Path,
) -> None:
    shutil.copytree(jobs[mutation.choice] / "checkpoint", tmp_path / "checkpoint")
    mutation.damage(tmp_path)
    shelf = Shelf(tmp_path / "checkpoint")
    found = newest_good(shelf.committed(), ALONE, contents=True)
    assert found is not None
    (reason,) = found.bad.values()
    names = [mutation.file, mutation.other or mutation.file]
    if mutation.file == "manifest.json" and mutation.how == "of another step":
        names = list(KINDS[mutation.choice])  # a manifest that is whole: of other files
    assert any(f"step_{NEW:08d}/{name}" in reason for name in names), reason

    state, saver = saved.state(1), saved.opened(mutation.choice, tmp_path)
    assert saver.load(state) == state.step == OLD
    for name, value in models[mutation.choice].items():
        assert torch.equal(value, state.model.state_dict()[name]), name
    assert [path.name for path in shelf.committed()] == [f"step_{OLD:08d}"]
    (apart,) = shelf.set_apart()
    assert apart.parent.name == "quarantine"
    assert (apart / "reason.txt").read_text() == reason + "\n"
    assert saver.report()["restored"]["bad"] == [reason]


@pytest.mark.parametrize("mutation", [m for m in ALL if m.how in RESIZED], ids=str)
def test_without_verification_sizes_are_held_to_the_manifest(
    mutation: Mutation, jobs: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(jobs[mutation.choice] / "checkpoint", tmp_path / "checkpoint")
    mutation.damage(tmp_path)
    assert saved.opened(mutation.choice, tmp_path, verify=False).load(saved.state(1)) == OLD


@pytest.mark.parametrize("choice", KINDS)
def test_where_all_are_bad_each_is_named_and_nothing_is_moved(
    choice: str, jobs: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(jobs[choice] / "checkpoint", tmp_path / "checkpoint")
    Mutation(choice, KINDS[choice][0], "flipped").damage(tmp_path)
    (tmp_path / f"checkpoint/step_{OLD:08d}/manifest.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError) as raised:
        saved.opened(choice, tmp_path).load(saved.state(1))
    said = str(raised.value)
    assert f"step_{NEW:08d}/{KINDS[choice][0]} is damaged" in said
    assert f"step_{OLD:08d}/manifest.json is missing" in said
    assert "checkpoint.resume=off" in said
    assert sorted(tmp_path.rglob("*")) == before
