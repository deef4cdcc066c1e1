"""A file of token ids, memory-mapped: uint16 or uint32, little-endian, no header (nanoGPT's .bin).

`numpy.asarray(ids, "uint16").tofile(path)` writes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.data.order import held_out_count
from paceline.data.stream import Loader, MapStream
from paceline.types import Context, DataError, at_least

Ids = npt.NDArray[np.unsignedinteger[Any]]  # uint16 or uint32
ITEM_BYTES = {"uint16": 2, "uint32": 4}
PIECES, PIECE = 64, 4096
"""What is looked at before training: so many evenly spread pieces of so many tokens."""
FEWEST_PAIRS = 64
"""Fewer values than these say nothing of a wrong dtype."""


@dataclass(frozen=True)
class Tokens:
    """Next-token prediction. The last `held_out` (a share) of the windows is kept from training.

    `vocab_size`: an id that is not below it is refused wherever it stands; null: not known.
    """

    global_batch_size: int
    path: str
    dtype: Literal["uint16", "uint32"]
    sequence_length: int
    vocab_size: int | None
    held_out: float
    loader: Loader

    def __post_init__(self) -> None:
        at_least(1, global_batch_size=self.global_batch_size, sequence_length=self.sequence_length)
        if not self.path:
            raise ValueError("path='': give the file of token ids")
        if self.vocab_size is not None:
            at_least(1, vocab_size=self.vocab_size)
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out={self.held_out}: give a share of the text, 0 to below 1")

    def open(self, context: Context) -> MapStream:
        """Raises DataError, naming the path, for a file that does not hold such ids."""
        file = Path(self.path).absolute()
        count = count_tokens(file, self.dtype, self.sequence_length)
        whole = Windows(file, self.dtype, self.sequence_length, count, self.vocab_size)
        check_ids(file, whole.ids, self.dtype, self.vocab_size)
        held_out = held_out_count(len(whole), self.held_out)
        return MapStream(
            whole.part(0, len(whole) - held_out),
            whole.part(len(whole) - held_out, len(whole)),
            self.global_batch_size,
            self.loader,
            context,
            unit="tokens",
            units_per_sample=self.sequence_length,
        )


class Windows:
    """Sample i is window `first` + i: T + 1 tokens, of which neighbours share one.

    The file is mapped when it is first read: forked workers share the mapping, pickled ones (where
    there is no fork) make their own.
    """

    def __init__(
        self,
        file: Path,
        dtype: Literal["uint16", "uint32"],
        sequence_length: int,
        tokens: int,
        vocab_size: int | None,
    ) -> None:
        self.file, self.dtype, self.vocab_size = file, dtype, vocab_size
        self.sequence_length, self.tokens = sequence_length, tokens
        self.first, self.stop = 0, (tokens - 1) // sequence_length

    def part(self, first: int, stop: int) -> Windows:
        """Windows [first, stop) of the file."""
        part = Windows(self.file, self.dtype, self.sequence_length, self.tokens, self.vocab_size)
        part.first, part.stop = first, stop
        return part

    def __len__(self) -> int:
        return self.stop - self.first

    @cached_property
    def ids(self) -> Ids:
        """All ids, [N], not in memory."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        mapped: Ids = np.memmap(self.file, dtype, mode="r", shape=(self.tokens,))
        return np.asarray(mapped)  # np.memmap's own indexing costs microseconds a batch

    @cached_property
    def windows(self) -> Ids:
        """[windows, T + 1], a view."""
        every = np.lib.stride_tricks.sliding_window_view(self.ids, self.sequence_length + 1)
        return every[:: self.sequence_length]

    def __getitems__(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each [B, T] int64. DataError: an id is not in the vocabulary.

        On a GPU such an id would kill the process in the embedding, and name nothing.
        """
        rows = self.windows[indices + self.first]
        if self.vocab_size is not None and int(rows.max()) >= self.vocab_size:
            row, column = np.argwhere(rows >= self.vocab_size)[0]
            at = int(indices[row] + self.first) * self.sequence_length + int(column)
            raise DataError(_outside(self.file, int(rows[row, column]), at, self.vocab_size))
        inputs, targets = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def __getstate__(self) -> dict[str, Any]:
        # pickled, a mapping would be a copy of the whole file
        return {k: v for k, v in self.__dict__.items() if k not in ("ids", "windows")}


def count_tokens(file: Path, dtype: Literal["uint16", "uint32"], sequence_length: int) -> int:
    """How many ids the file holds; DataError if it can't be read or is of the wrong size."""
    try:
        size = file.stat().st_size
        if not file.is_file():
            what = (
                "a directory; give the file of token ids in it"
                if file.is_dir()
                else ("no regular file; a memory map needs one")
            )
            raise DataError(f"data.path={file}: this is {what}")
        with file.open("rb"):
            pass
    except FileNotFoundError:
        raise DataError(
            f"data.path={file}: there is no such file; give one that holds token ids, as "
            f'numpy.asarray(ids, "{dtype}").tofile(path) writes it'
        ) from None
    except OSError as error:
        raise DataError(
            f"data.path={file}: it can't be read ({error.strerror}); give a file that can"
        ) from None
    if size == 0:
        raise DataError(f"data.path={file}: the file is empty; write the tokens anew")
    tokens, rest = divmod(size, ITEM_BYTES[dtype])
    if rest:
        other = "; as uint16 it would fit" if size % 2 == 0 else ""
        raise DataError(
            f"data.path={file}: its {size} bytes are no multiple of the {ITEM_BYTES[dtype]} of "
            f"data.dtype={dtype}{other}; the file was cut short, has a header, or has another "
            "data.dtype"
        )
    needed = 2 * sequence_length + 1
    if tokens < needed:
        raise DataError(
            f"data.path={file}: it holds {tokens} tokens, two windows of data.sequence_length="
            f"{sequence_length} need {needed}; lower data.sequence_length, or give a longer file"
        )
    return tokens


def check_ids(
    file: Path, ids: Ids, dtype: Literal["uint16", "uint32"], vocab_size: int | None
) -> None:
    """Look at a bounded sample of the ids [N]; DataError if they look like another dtype, or if
    one is not below `vocab_size`."""
    starts = _starts(len(ids))
    sample = [ids[start : start + PIECE] for start in starts]
    seen = sum(map(len, sample))
    looked = f"looked at {seen} of its {len(ids)} tokens"
    halves = [piece.view("<u2") for piece in sample]  # of uint16, at even and odd positions
    low, high = (np.concatenate([p[i::2] for p in halves]) for i in (0, 1))
    if dtype == "uint16" and len(ids) % 2 == 0 and _are_halves(low, high):
        raise DataError(
            f"data.path={file}: as uint16 every second value is {_range(high)}, so this looks like "
            f"uint32 ({looked}); use data.dtype=uint32"
        )
    if dtype == "uint32" and _are_pairs(low, high, vocab_size):
        raise DataError(
            f"data.path={file}: as uint32 the ids go up to {max(int(p.max()) for p in sample)}, "
            f"but each half of one is a sensible id, so this looks like uint16 ({looked}); use "
            "data.dtype=uint16"
        )
    for start, piece in zip(starts, sample, strict=True):
        if vocab_size is not None and int(piece.max()) >= vocab_size:
            at = int(np.argmax(piece >= vocab_size))
            raise DataError(_outside(file, int(piece[at]), start + at, vocab_size, f" ({looked})"))


def _starts(tokens: int) -> list[int]:
    """Where the pieces begin, each at an even position: the first, the last, and evenly between."""
    last = max(0, tokens - PIECE + 1) // 2 * 2
    return sorted({round(last * i / (PIECES - 1)) // 2 * 2 for i in range(PIECES)})


def _are_halves(low: npt.NDArray[np.uint16], high: npt.NDArray[np.uint16]) -> bool:
    """Are these the low and high halves of uint32 ids? Vocabularies end below 4 * 65536; and where
    a high half is used at all, the low ones take all values."""
    if len(high) < FEWEST_PAIRS:
        return False
    return int(high.max()) < 4 and int(low.max()) > (255 if high.any() else 0)


def _are_pairs(
    low: npt.NDArray[np.uint16], high: npt.NDArray[np.uint16], vocab_size: int | None
) -> bool:
    """Are these neighbouring uint16 ids? So it is if most of their wholes are not in the
    vocabulary, though all halves are; where it isn't known, if most are above a million."""
    if len(high) < FEWEST_PAIRS:
        return False
    if vocab_size is None or vocab_size > 2**16:
        return float(np.median(high)) >= 16
    return max(int(low.max()), int(high.max())) < vocab_size and float(np.median(high)) >= 1


def _range(high: npt.NDArray[np.uint16]) -> str:
    return "0" if not high.any() else f"0 to {int(high.max())}"


def _outside(file: Path, token: int, at: int, vocab_size: int, looked: str = "") -> str:
    return (
        f"data.path={file}: token {token} at position {at} is not below data.vocab_size="
        f"{vocab_size}{looked}; raise the vocabulary of the model (data.vocab_size follows it), "
        "check data.dtype, or give a file of the right tokenizer"
    )
