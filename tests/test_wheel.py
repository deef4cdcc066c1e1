"""The wheel is whole: its own conf, its launcher, its data; no checkout needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY, Command

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(where), str(ROOT)]
    subprocess.run(build, check=True, timeout=300, capture_output=True)
    (wheel,) = where.glob("paceline-*.whl")
    target = where / "site"
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)],
        check=True,
        timeout=300,
        capture_output=True,
    )
    return target


def test_a_sweep_runs_from_the_wheel_alone(installed: Path, command: Command) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    said = subprocess.run(
        [sys.executable, "-c", "from paceline.__main__ import config_dir; print(config_dir())"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.stdout.strip() == str(installed / "paceline" / "conf"), said.stderr
    done = command("-m", *TINY, "tag=a,b", env={"PYTHONPATH": str(installed)})
    assert done.code == 0, done.err
    assert [row["state"] for row in done.table()["rows"]] == ["completed", "completed"]
