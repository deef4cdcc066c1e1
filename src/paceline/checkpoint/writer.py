"""Files whose bytes are hashed on their way to the disk, for torch.save and for DCP alike.

What is read back is then held to what was meant to be written, not to itself.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

import torch
import xxhash
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter

from paceline.checkpoint.shelf import BLOCK, Written

NOTES = ".written"
"""Beside the files: what was written to each. A file each, for they come from several processes."""


class HashedFile(io.RawIOBase):
    """A new file that knows the hash of what went into it, and its first error: torch's zip writer
    hides errors of what it writes to behind its own."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._seen = xxhash.xxh3_64()
        self._size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), BLOCK):
                block = view[start : start + BLOCK]
                self._seen.update(block)
                while block:
                    block = block[self._file.write(block) or 0 :]
        except OSError as error:
            error.filename = self._file.name  # it says which file
            self.error = self.error or error
            raise
        self._size += len(view)
        return len(view)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()

    def written(self) -> Written:
        return Written(self._size, self._seen.hexdigest())


def save_hashed(tree: Any, path: Path) -> Written:
    """torch.save, hashed and on the disk when it returns."""
    with HashedFile(path) as file:
        try:
            torch.save(tree, cast("IO[bytes]", file))
            os.fsync(file.fileno())
        except Exception as error:
            raise file.error or error from error
        return file.written()


def save_whole(tree: dict[str, Any], path: Path) -> None:
    """The same for a file of a checkpoint: noted beside it."""
    with _no_crc():
        _note(path, save_hashed(tree, path))


def take_notes(place: Path, rank: int) -> dict[str, Written]:
    """What was written by this rank: files `__{rank}_*`; by rank 0 those of no rank, too."""
    found = {}
    for note in sorted((place / NOTES).glob("*")):
        owner = note.name[2:].split("_")[0] if note.name.startswith("__") else "0"
        if owner == str(rank):
            found[note.name] = Written(**json.loads(note.read_text()))
    return found


class HashedWriter(FileSystemWriter):
    """DCP's own writer, over hashed files. Travels to the process of a stager."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, overwrite=False)
        self.fs = self._files = HashedFiles()

    def write_data(self, plan: Any, planner: Any) -> torch.futures.Future[list[Any]]:
        try:
            with _no_crc():
                return super().write_data(plan, planner)
        except Exception as error:
            raise self._files.error or error from error


class HashedFiles(FileSystem):
    def __init__(self) -> None:
        self.error: OSError | None = None

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[Any, None, None]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        path = Path(path)
        file = HashedFile(path)
        try:
            yield file
            _note(path, file.written())
        except OSError as error:
            self.error = self.error or error
            raise
        finally:
            self.error = self.error or file.error
            file.close()

    def rename(self, path: Any, new_path: Any) -> None:
        super().rename(path, new_path)
        old, new = _note_of(Path(path)), _note_of(Path(new_path))
        old.rename(new)


@contextmanager
def _no_crc() -> Iterator[None]:
    """torch's own checksum of each tensor costs as much as writing it (504 MB: 0.37 s against
    0.27 s), and nothing reads it: torch.load takes the file without. Every byte is hashed here."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _note(path: Path, written: Written) -> None:
    note = _note_of(path)
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps(asdict(written)))


def _note_of(path: Path) -> Path:
    return path.parent / NOTES / path.name
