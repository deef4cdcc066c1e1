"""Where checkpoints live on disk, from staging to committed and on. No torch: commands read it too.

checkpoint/step_00000030/              committed: it appeared by one rename, with manifest.json
checkpoint/.staging/step_00000030/     being written; what a crash left there is never read
checkpoint/quarantine/step_00000030/   was found damaged by a load; reason.txt says how
checkpoint/superseded/step_00000030/   of a training that went on from an earlier step
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from paceline.types import CheckpointError

SCHEMA = 1
MANIFEST, REASON = "manifest.json", "reason.txt"
STAGING, QUARANTINE, SUPERSEDED, DELETING = ".staging", "quarantine", "superseded", ".deleting"
STEP = re.compile(r"step_(\d{8,})")
BLOCK = 1 << 20
"""Bytes at once: still in the processor's cache when they are looked at a second time."""


@dataclass(frozen=True)
class Written:
    """A file as it was written: bytes, and their 64-bit xxh3 in hex."""

    size: int
    xxh3: str


@dataclass(frozen=True)
class Manifest:
    """What a committed checkpoint says of itself. `format`: torch, one file of whole tensors;
    dcp, a file a rank, of torch.distributed.checkpoint. `world`: who saved it. `identity`: the
    job's hashes and `work`, dotted key -> value of what decides the training."""

    step: int
    format: str
    saved_at: str
    world: dict[str, Any]
    identity: dict[str, Any]
    files: dict[str, Written]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


class Shelf:
    """The checkpoints of one job. What changes it is called by one process at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def committed(self) -> list[Path]:
        """By step, the oldest first."""
        return self._steps(self.directory)

    def set_apart(self) -> list[Path]:
        """What was quarantined or superseded."""
        return [p for name in (QUARANTINE, SUPERSEDED) for p in self._steps(self.directory / name)]

    def staged(self) -> list[Path]:
        return self._steps(self.directory / STAGING)

    def place(self, step: int) -> Path:
        """Where the checkpoint of a step is written before it is committed."""
        return self.directory / STAGING / f"step_{step:08d}"

    def stage(self, step: int) -> Path:
        """An empty place; leftovers of crashes go."""
        for left in (STAGING, DELETING):
            shutil.rmtree(self.directory / left, ignore_errors=True)
        place = self.place(step)
        place.mkdir(parents=True)
        return place

    def commit(self, manifest: Manifest) -> Path:
        """The staged files, all on the disk already, become the checkpoint of their step."""
        place = self.place(manifest.step)
        final = self.directory / place.name
        _write_manifest(place / MANIFEST, manifest)
        sync_directory(place)
        if final.exists():
            self._move(final, SUPERSEDED)
        place.rename(final)
        sync_directory(self.directory)
        return final

    def retain(self, keep_last: int, keep_every: int | None) -> None:
        """Delete committed ones but the last `keep_last` and every step that `keep_every` divides.
        Each is renamed first: a half-deleted one is no checkpoint."""
        for path in self.committed()[:-keep_last]:
            if keep_every is None or step_of(path) % keep_every:
                gone = self.directory / DELETING / path.name
                gone.parent.mkdir(exist_ok=True)
                shutil.rmtree(gone, ignore_errors=True)
                path.rename(gone)
                shutil.rmtree(gone)

    def quarantine(self, path: Path, reason: str) -> Path:
        """Out of the way of every load, with the reason beside it."""
        (path / REASON).write_text(reason + "\n")
        return self._move(path, QUARANTINE)

    def supersede(self, after: int) -> list[Path]:
        """Set those of later steps aside: training goes on from `after`, and a crash before its
        next save must not bring the other history back."""
        later = [path for path in self.committed() if step_of(path) > after]
        return [self._move(path, SUPERSEDED) for path in later]

    def _move(self, path: Path, name: str) -> Path:
        where = self.directory / name
        where.mkdir(exist_ok=True)
        target = where / path.name
        number = 1
        while target.exists():
            number += 1
            target = where / f"{path.name}.{number}"
        path.rename(target)
        sync_directory(self.directory)
        return target

    def _steps(self, where: Path) -> list[Path]:
        try:
            found = [p for p in where.iterdir() if STEP.match(p.name) and p.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda path: (step_of(path), path.name))


def step_of(path: Path) -> int:
    found = STEP.match(path.name)
    assert found is not None, path
    return int(found[1])


def find(path: Path) -> list[Path]:
    """The committed checkpoints that a path means, the oldest first: a checkpoint itself, a job's
    directory, or its `checkpoint` folder. Raises CheckpointError when there is none."""
    if (path / MANIFEST).exists() or (STEP.fullmatch(path.name) and path.is_dir()):
        return [path]
    for folder in (path / "checkpoint", path):
        found = Shelf(folder).committed()
        if found:
            return found
    what = "holds no committed checkpoint" if path.exists() else "does not exist"
    raise CheckpointError(
        f"{path} {what}; give a job's directory, its checkpoint folder, or one step_... in it"
    )


def read_manifest(path: Path) -> Manifest:
    """Raises CheckpointError, naming the file, when it is missing or not what was written; OSError
    when it can't be read now, which says nothing of what is in it."""
    file = path / MANIFEST
    try:
        text = file.read_text()
        raw = json.loads(text)
        raw.pop("digest")
        if text != _sealed(raw):
            raise ValueError("it is not what was written")
        files = {name: Written(**written) for name, written in raw.pop("files").items()}
        schema = raw.pop("schema")
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema}, this paceline reads {SCHEMA}")
        if STEP.match(path.name) and step_of(path) != raw["step"]:
            raise ValueError(f"it is of step {raw['step']}")
        return Manifest(files=files, **raw)
    except FileNotFoundError as error:
        raise CheckpointError(f"{file} is missing") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} can't be read ({error})") from error


def problems(path: Path, manifest: Manifest, names: Iterable[str], contents: bool) -> list[str]:
    """What is wrong with those files of a checkpoint, a sentence each. `contents`: read them and
    hold their bytes to the manifest; else only their sizes. Raises OSError as read_manifest does.
    """
    return [
        said for name in names if (said := _problem(path / name, manifest.files[name], contents))
    ]


def differing(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Dotted keys in which the work of two identities differs."""
    one, other = mine.get("work") or {}, theirs.get("work") or {}
    return [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]


def digest_of(path: Path) -> Written:
    """Read it once, whole."""
    seen, size, block = xxhash.xxh3_64(), 0, bytearray(BLOCK)
    view = memoryview(block)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            seen.update(view[:count])
            size += count
    return Written(size, seen.hexdigest())


def sync_directory(directory: Path) -> None:
    """A rename is durable only once the directory that holds the name is."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _problem(file: Path, written: Written, contents: bool) -> str | None:
    try:
        size = file.stat().st_size
        if size != written.size:
            return f"{file} has {size} bytes, {written.size} were written"
        if contents and digest_of(file) != written:
            return f"{file} is damaged: its bytes are not those that were written"
    except FileNotFoundError:
        return f"{file} is missing"
    except OSError as error:
        if error.errno != errno.EIO:  # the disk itself has lost it
            raise
        return f"{file} can't be read ({error.strerror})"
    return None


def _write_manifest(file: Path, manifest: Manifest) -> None:
    raw = {"schema": SCHEMA, **asdict(manifest)}
    with file.open("w") as opened:
        opened.write(_sealed(raw))
        opened.flush()
        os.fsync(opened.fileno())


def _sealed(raw: dict[str, Any]) -> str:
    """The text of a manifest, with a hash of all the rest in it."""
    digest = xxhash.xxh3_64(json.dumps(raw, sort_keys=True).encode()).hexdigest()
    return json.dumps(raw | {"digest": digest}, indent=1) + "\n"
