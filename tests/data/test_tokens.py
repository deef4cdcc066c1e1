"""A file of token ids: which windows it gives, and every way it can be the wrong file."""

from __future__ import annotations

import pickle
import re
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.stream import Loader, MapStream
from paceline.data.tokens import PIECE, PIECES, Tokens, Windows, count_tokens
from paceline.types import Context, DataError, Run, World
from tests.conftest import Command

LOADER = Loader(num_workers=0, prefetch_factor=2, persistent_workers=True, pin_memory="auto")
Dtype = Literal["uint16", "uint32"]


def opened(
    path: Path,
    dtype: Dtype = "uint16",
    sequence_length: int = 4,
    vocab_size: int | None = None,
    held_out: float = 0.1,
) -> MapStream:
    world = World(0, 0, 0, 1, torch.device("cpu"))
    settings = Tokens(4, str(path), dtype, sequence_length, vocab_size, held_out, LOADER)
    return settings.open(Context(world, Run(1, 1, 0, None, 0, "cpu"), path.parent, build=print))


def told(path: Path, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        opened(path, **settings)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "train.bin"


def write(file: Path, ids: Any, dtype: Dtype = "uint16") -> None:
    np.asarray(ids, np.dtype(dtype).newbyteorder("<")).tofile(file)


def english(count: int, vocab_size: int, dtype: Dtype) -> np.ndarray:
    """Ids that are the rarer the higher they are, as a tokenizer gives them."""
    drawn = np.random.default_rng(0).pareto(1.0, count) * 20
    return (drawn % vocab_size).astype(dtype)


class TestWindows:
    @pytest.mark.parametrize("dtype", ["uint16", "uint32"])
    def test_a_sample_is_a_window_and_its_targets_are_one_token_later(
        self, file: Path, dtype: Dtype
    ) -> None:
        write(file, np.arange(13) + 60000, dtype)
        inputs, targets = Windows(file, dtype, 4, 13, None).__getitems__(np.array([2, 0]))
        expected = torch.tensor([[8, 9, 10, 11], [0, 1, 2, 3]]) + 60000
        assert torch.equal(inputs, expected)
        assert torch.equal(targets, expected + 1)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.is_contiguous()
        assert targets.is_contiguous()

    def test_the_end_is_held_out_and_every_token_is_predicted_once(self, file: Path) -> None:
        write(file, np.arange(44))  # 10 windows of 4, and 3 tokens to spare
        stream = opened(file, held_out=0.2)
        assert (len(stream.train), len(stream.held_out_set)) == (8, 2)
        _, trained = stream.train.__getitems__(np.arange(8))
        _, held = next(stream.held_out(1))
        assert [*trained.flatten().tolist(), *held.flatten().tolist()] == list(range(1, 41))

    @pytest.mark.parametrize(
        ("held_out", "count"), [(0.0, 0), (1e-9, 1), (0.25, 2), (0.26, 3), (0.999, 9)]
    )
    def test_the_share_held_out(self, file: Path, held_out: float, count: int) -> None:
        write(file, np.arange(41))
        stream = opened(file, held_out=held_out)
        assert len(stream.held_out_set) == count
        assert len(stream.train) == 10 - count

    def test_the_stream_counts_tokens(self, file: Path) -> None:
        write(file, np.arange(41))
        stream = opened(file)
        batch = next(iter(stream.batches(0)))
        assert stream.unit == "tokens"
        assert stream.count(batch) == 16

    def test_pickled_it_holds_no_token(self, file: Path) -> None:
        write(file, english(500_000, 60000, "uint16"))
        train = opened(file).train
        before = train.__getitems__(np.array([7]))
        pickled = pickle.dumps(train)
        assert len(pickled) < 1000
        after = pickle.loads(pickled).__getitems__(np.array([7]))
        assert torch.equal(before[0], after[0])

    def test_two_windows_are_enough(self, file: Path) -> None:
        write(file, np.arange(9))
        stream = opened(file)
        assert (len(stream.train), len(stream.held_out_set)) == (1, 1)


class TestAFileThatIsNone:
    def test_missing(self, file: Path) -> None:
        said = told(file)
        assert said.startswith(f"data.path={file}: there is no such file; give one")

    def test_a_directory(self, file: Path) -> None:
        said = told(file.parent)
        assert said == (
            f"data.path={file.parent}: this is a directory; give the file of token ids in it"
        )

    def test_a_device(self) -> None:
        assert "no regular file" in told(Path("/dev/null"))

    def test_a_file_in_the_place_of_a_folder(self, file: Path) -> None:
        write(file, [1])
        assert "it can't be read (Not a directory)" in told(file / "train.bin")

    def test_empty(self, file: Path) -> None:
        file.touch()
        assert told(file) == f"data.path={file}: the file is empty; write the tokens anew"

    def test_cut_short(self, file: Path) -> None:
        file.write_bytes(bytes(101))
        assert "its 101 bytes are no multiple of the 2 of data.dtype=uint16; the" in told(file)
        assert "no multiple of the 4 of data.dtype=uint32; the" in told(file, dtype="uint32")

    def test_of_a_size_that_only_the_other_dtype_has(self, file: Path) -> None:
        file.write_bytes(bytes(102))
        assert "uint32; as uint16 it would fit; the" in told(file, dtype="uint32")

    def test_too_short(self, file: Path) -> None:
        write(file, np.arange(8))
        assert told(file) == (
            f"data.path={file}: it holds 8 tokens, two windows of data.sequence_length=4 need 9; "
            "lower data.sequence_length, or give a longer file"
        )

    @given(
        content=st.binary(max_size=80),
        dtype=st.sampled_from(["uint16", "uint32"]),
        sequence_length=st.integers(1, 10),
    )
    def test_any_bytes_are_windows_or_a_sentence(
        self, content: bytes, dtype: Dtype, sequence_length: int
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "x")
            file.write_bytes(content)
            item = np.dtype(dtype).itemsize
            windows = (len(content) // item - 1) // sequence_length
            if len(content) % item or windows < 2:
                with pytest.raises(DataError, match=f"^data.path={re.escape(str(file))}: .*; "):
                    count_tokens(file, dtype, sequence_length)
                return
            stream = opened(file, dtype, sequence_length, held_out=0.0)
            inputs, targets = stream.train.__getitems__(np.arange(windows))
            ids = np.frombuffer(content, np.dtype(dtype).newbyteorder("<"))
            length = windows * sequence_length
            assert inputs.flatten().tolist() == ids[:length].tolist()
            assert targets.flatten().tolist() == ids[1 : length + 1].tolist()


class TestTheWrongDtype:
    @pytest.mark.parametrize("vocab_size", [64, 50257, 65536, 100_277, 200_019])
    @pytest.mark.parametrize("known", [True, False])
    def test_uint32_read_as_uint16(self, file: Path, vocab_size: int, known: bool) -> None:
        ids = english(20_000, vocab_size, "uint32")
        write(file, ids, "uint32")
        opened(file, "uint32", vocab_size=vocab_size)
        said = told(file, vocab_size=vocab_size if known else None)
        top = int(ids.max()) // 65536
        values = "0" if top == 0 else f"0 to {top}"
        assert f"every second value is {values}, so this looks like uint32" in said
        assert said.endswith("use data.dtype=uint32")

    @pytest.mark.parametrize("vocab_size", [64, 256, 50257])
    def test_uint16_read_as_uint32(self, file: Path, vocab_size: int) -> None:
        write(file, english(20_000, vocab_size, "uint16"), "uint16")
        opened(file, vocab_size=vocab_size)
        said = told(file, dtype="uint32", vocab_size=vocab_size)
        assert "looks like uint16" in said
        assert said.endswith("use data.dtype=uint16")

    def test_uint16_read_as_uint32_without_a_vocabulary(self, file: Path) -> None:
        write(file, english(20_000, 50257, "uint16"), "uint16")
        assert "looks like uint16" in told(file, dtype="uint32")

    def test_an_odd_number_of_tokens_is_never_uint32(self, file: Path) -> None:
        write(file, [5, 0] * 500 + [5])
        assert len(opened(file).train) > 0

    @given(
        ids=st.lists(st.integers(0, 199_999), min_size=9, max_size=300),
        dtype=st.sampled_from(["uint16", "uint32"]),
    )
    def test_what_is_refused_does_not_depend_on_the_order_of_checks(
        self, ids: list[int], dtype: Dtype
    ) -> None:
        """Right ids below the vocabulary pass; one too high is named, unless the dtype is."""
        array = np.asarray(ids).astype(dtype)
        top = int(array.max())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "x")
            write(file, array, dtype)
            if top > 0:
                said = told(file, dtype=dtype, vocab_size=top)
                at = int(np.argmax(array >= top))
                named = f"token {top} at position {at} is not below data.vocab_size={top}"
                assert named in said or "looks like" in said
            if dtype == "uint32" or array[1::2].max() > 3:
                assert len(opened(file, dtype, vocab_size=top + 1).train) > 0


class TestAnIdOutsideTheVocabulary:
    @pytest.mark.parametrize("at", [0, 4095, 999_999])
    def test_where_it_is_looked_for_it_is_told_before_training(self, file: Path, at: int) -> None:
        ids = english(1_000_000, 256, "uint16")
        ids[at] = 256
        write(file, ids)
        said = told(file, vocab_size=256)
        named = f"data.path={file}: token 256 at position {at} is not below data.vocab_size=256"
        assert said.startswith(named)
        assert f"(looked at {PIECES * PIECE} of its 1000000 tokens)" in said
        assert len(opened(file, vocab_size=257).train) > 0

    def test_all_of_a_short_file_is_looked_at(self, file: Path) -> None:
        for at in range(40):
            write(file, [9 if i == at else 1 for i in range(40)])
            assert f"token 9 at position {at} " in told(file, vocab_size=9)

    def test_deep_in_the_file_it_is_told_when_it_is_met(self, file: Path) -> None:
        ids = english(1_000_000, 256, "uint16")
        ids[10_001] = 300
        write(file, ids)
        train = opened(file, vocab_size=256).train
        train.__getitems__(np.array([2499, 2501]))
        with pytest.raises(DataError, match="token 300 at position 10001 is not below"):
            train.__getitems__(np.array([2501, 2500]))

    def test_held_out_positions_are_those_of_the_file(self, file: Path) -> None:
        ids = np.ones(41, np.uint16)
        ids[38] = 7
        write(file, ids)
        windows = Windows(file, "uint16", 4, 41, 7).part(9, 10)
        with pytest.raises(DataError, match="token 7 at position 38 "):
            windows.__getitems__(np.array([0]))


def test_values_are_checked() -> None:
    right: dict[str, Any] = {
        "global_batch_size": 4,
        "path": "x",
        "dtype": "uint16",
        "sequence_length": 4,
        "vocab_size": None,
        "held_out": 0.1,
        "loader": LOADER,
    }
    for name, value, said in [
        ("global_batch_size", 0, "global_batch_size=0: give 1 or more"),
        ("sequence_length", 0, "sequence_length=0: give 1 or more"),
        ("vocab_size", 0, "vocab_size=0: give 1 or more"),
        ("held_out", 1.0, "held_out=1.0: give a share"),
        ("path", "", "path='': give the file"),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)):
            Tokens(**(right | {name: value}))


class TestAJob:
    SMALL = (
        *("data=tokens", "data.path=train.bin", "data.sequence_length=32", "scheduler=constant"),
        *("model.layers=1", "model.width=32", "measure=quick", "measure.window_s=0"),
        *("run.steps=12", "run.eval_batches=1", "launch.threads_per_rank=1"),
    )

    def test_trains_the_same_with_forked_workers(self, command: Command) -> None:
        write(command.cwd / "train.bin", english(60_000, 256, "uint16"))
        done = command("-m", *self.SMALL, "data.loader.num_workers=0,2")
        assert done.code == 0, done.err
        records = done.jobs("outputs/sweeps/*")
        here, there = sorted(records, key=lambda record: record["effective"]["data"]["workers"])
        assert [r["effective"]["data"]["workers"] for r in (here, there)] == [0, 2]
        assert here["throughput"]["unit"] == "tokens"
        assert here["throughput"]["units_used"] == 12 * 16 * 32
        assert here["numerics"]["samples_digest"] == there["numerics"]["samples_digest"]
        assert here["numerics"]["loss"] == there["numerics"]["loss"]
        assert here["numerics"]["loss"][-1] < here["numerics"]["loss"][0]
        assert here["numerics"]["eval_loss"] < here["numerics"]["loss"][0]

    def test_an_id_too_high_is_a_data_error_of_the_models_vocabulary(
        self, command: Command
    ) -> None:
        # every batch meets one, and the sample that is looked at before does not
        ids = english(600_000, 256, "uint16")
        looked = np.zeros(len(ids), bool)
        step = (len(ids) - PIECE) / (PIECES - 1)
        for i in range(PIECES):
            looked[max(0, int(i * step) - 2) : int(i * step) + PIECE + 2] = True
        ids[~looked] = 256
        write(command.cwd / "train.bin", ids)
        done = command(*self.SMALL, "data.loader.num_workers=1")
        assert done.code == 1
        assert "token 256 at position" in done.out
        assert "is not below data.vocab_size=256" in done.out
        assert done.job()["status"]["kind"] == "data_error"
