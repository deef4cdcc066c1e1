"""The DALI example: it trains where DALI is installed, and says what is missing elsewhere."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.conftest import Command

DALI = Path(__file__).parents[1] / "examples" / "dali"
HIDE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "nvidia.dali" else find(name, *rest)
"""


def is_installed() -> bool:
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


needs_dali = pytest.mark.skipif(not is_installed(), reason="nvidia.dali is not installed")


@pytest.fixture
def dali(command: Command) -> Command:
    shutil.copytree(DALI, command.cwd, dirs_exist_ok=True, ignore=shutil.ignore_patterns("outputs"))
    return command


JOB = (
    *("--config-dir", "conf", "data=dali", "data.root=images", "data.image_size=16"),
    *("data.global_batch_size=16", "model=resnet", "model.in_channels=3", "model.classes=2"),
    *("model.blocks=[1]", "scheduler=constant", "run.steps=12", "measure=quick"),
    "measure.window_s=0",
)


@needs_dali
def test_it_trains(dali: Command) -> None:
    from benchmarks.jpegs import write_jpegs

    write_jpegs(dali.cwd / "images", classes=2, per_class=40, size=48)
    done = dali(*JOB)
    assert done.code == 0, done.err
    record = done.job()
    assert record["validity"]["verdict"] == "valid"
    assert record["throughput"]["unit"] == "images"
    assert record["throughput"]["units_used"] == 12 * 16
    assert record["numerics"]["samples_digest"] is None
    assert record["numerics"]["loss"][-1] < record["numerics"]["loss"][0]


@needs_dali
def test_a_folder_without_images_is_named(dali: Command) -> None:
    done = dali(*JOB)
    assert done.code == 1
    assert f"data.root={dali.cwd / 'images'}: there is no image" in done.out


def test_without_dali_it_says_what_to_install_and_nothing_starts(dali: Command) -> None:
    (dali.cwd / "sitecustomize.py").write_text(HIDE)
    done = dali(*JOB, "data.mean=[1.0]", env={"PYTHONPATH": str(dali.cwd)})
    assert done.code == 2
    said = " ".join(done.err.split())
    assert "needs nvidia.dali, which is not installed; pip install nvidia-dali-cuda120" in said
    assert "data.mean=[1.0]: give three" in said
    assert not (dali.cwd / "outputs").exists()
