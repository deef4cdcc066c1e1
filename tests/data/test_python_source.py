"""Real text: which files, which bytes, and how they are cut into samples."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.data.python_source import PythonSource, Windows, read_text, source_files
from paceline.data.stream import Loader, MapStream
from paceline.types import Context, DataError, Run, World

LOADER = Loader(num_workers=0, prefetch_factor=2, persistent_workers=True, pin_memory="auto")
STDLIB = Path(sysconfig.get_path("stdlib"))


def opened(settings: PythonSource, directory: Path) -> MapStream:
    world = World(0, 0, 0, 1, torch.device("cpu"))
    return settings.open(Context(world, Run(1, 1, 0, None, 0, "cpu"), directory, build=print))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "b.py": "bb",
        "a.py": "aaa",
        "notes.txt": "no",
        "pkg/z.py": "z",
        "pkg/test/skipped.py": "no",
        "site-packages/skipped.py": "no",
        "abc/y.py": "yy",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere")
    return tmp_path


def test_files_come_in_sorted_order_without_tests_and_installed_packages(tree: Path) -> None:
    names = [str(file.relative_to(tree)) for file in source_files(tree)]
    assert names == ["a.py", "b.py", "abc/y.py", "pkg/z.py"]


def test_text_is_cut_at_max_bytes(tree: Path) -> None:
    assert bytes(read_text(tree, 100).tolist()) == b"aaabbyyz"
    assert bytes(read_text(tree, 4).tolist()) == b"aaab"


def test_a_sample_is_a_window_and_its_targets_are_one_byte_later() -> None:
    text = torch.arange(13, dtype=torch.uint8)
    inputs, targets = Windows(text.unfold(0, 5, 4)).__getitems__(np.array([2, 0]))
    assert inputs.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert targets.tolist() == [[9, 10, 11, 12], [1, 2, 3, 4]]
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()


def test_the_stream_holds_the_standard_library(tmp_path: Path) -> None:
    settings = PythonSource(4, sequence_length=10, max_bytes=2005, loader=LOADER)
    stream = opened(settings, tmp_path)
    text = read_text(STDLIB, 2005)
    assert text.tolist() == list(next(source_files(STDLIB)).read_bytes()[:2005])
    # 200 whole windows with a byte to spare; the last 10 are held out
    assert (len(stream.train), len(stream.held_out_set)) == (190, 10)
    inputs, targets = stream.train.__getitems__(np.array([0, 189]))
    assert inputs.tolist() == [text[:10].tolist(), text[1890:1900].tolist()]
    assert targets.tolist() == [text[1:11].tolist(), text[1891:1901].tolist()]
    held, _ = next(stream.held_out(1))
    assert held[0].tolist() == text[1900:1910].tolist()


def test_the_stream_counts_tokens(tmp_path: Path) -> None:
    stream = opened(PythonSource(4, sequence_length=10, max_bytes=2000, loader=LOADER), tmp_path)
    batch = next(iter(stream.batches(0)))
    assert batch[0].shape == batch[1].shape == (4, 10)
    assert stream.unit == "tokens"
    assert stream.count(batch) == 40


def test_two_samples_are_enough_and_one_is_held_out(tmp_path: Path) -> None:
    stream = opened(PythonSource(1, sequence_length=10, max_bytes=21, loader=LOADER), tmp_path)
    assert (len(stream.train), len(stream.held_out_set)) == (1, 1)


def test_a_python_without_sources_is_a_data_error(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tree))
    settings = PythonSource(1, sequence_length=4, max_bytes=100, loader=LOADER)
    with pytest.raises(DataError, match="holds 8 bytes of Python source"):
        opened(settings, tree)


def test_values_are_checked() -> None:
    with pytest.raises(ValueError, match="max_bytes=20: two sequences of 10 need 21"):
        PythonSource(1, sequence_length=10, max_bytes=20, loader=LOADER)
    with pytest.raises(ValueError, match="global_batch_size=0: give 1 or more"):
        PythonSource(0, sequence_length=10, max_bytes=100, loader=LOADER)
