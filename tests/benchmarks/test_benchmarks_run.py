"""Each benchmark is one command that prints its table. How fast anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = pytest.mark.slow


def run(name: str, tmp_path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *arguments, "--json", str(out)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(out.read_text())


def table(printed: str, first_column: str) -> list[list[str]]:
    """The rows of the markdown tables whose first column has this title."""
    rows, inside = [], False
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(f"| {first_column}"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|-"):
            rows.append(cells)
    return rows


def test_the_loop_overhead_of_every_side_that_is_installed(tmp_path: Path) -> None:
    printed, figures = run("loop_overhead.py", tmp_path, "--rounds", "2")
    assert "memory kept by the allocator" in printed
    short, long = figures["sections"]
    assert [row["side"] for row in long["rows"]] == ["raw", "paceline"]
    rows = {row["side"]: row for row in short["rows"]}
    assert {"raw", "raw, index_select", "paceline", "Lightning", "HF Trainer"} <= set(rows)
    assert len(table(printed, "side")) == len(short["rows"]) + len(long["rows"])
    for row in (*short["rows"], *long["rows"]):
        if row["ratio"] is None:
            assert f"| {row['side']:17} | not installed" in printed
            continue
        assert row["ratio"] > 0
        assert row["step_us"] > 0
        first, last = row["loss"]
        assert last < first
    assert rows["raw"]["ratio"] == 1.0
    assert rows["paceline"]["target"] == 1.10


@pytest.mark.distributed
def test_the_overhead_of_a_job_beside_torchrun(tmp_path: Path) -> None:
    few = ("--rounds", "1", "--repeats", "2", "--steps", "5")
    printed, figures = run("job_overhead.py", tmp_path, *few)
    assert [cells[0] for cells in table(printed, "ranks")] == ["1", "2"]
    for row in figures["rows"]:
        assert row["torchrun_s"] > 0
        assert row["paceline_s"] > 0
        assert row["ratio"] > 0
        assert row["target"] == 0.25
    assert figures["first_job_s"] > 0
    assert set(figures["phases_s"]) == {"1", "2"}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("loop_overhead.py", ("--rounds", "3")), ("job_overhead.py", ("--repeats", "1"))],
)
def test_a_number_that_cannot_be_is_refused(name: str, wrong: tuple[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *wrong], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert f"{wrong[0]} {wrong[1]}" in done.stderr


def test_what_saving_and_loading_cost(tmp_path: Path) -> None:
    printed, figures = run("checkpoint.py", tmp_path, "--rounds", "1", "--mb", "60", "--rest", "0")
    assert figures["bytes"] >= 60e6
    (only,) = figures["rounds"]
    assert only.keys() == figures["first"].keys()
    assert {"copy", "write", "sync durable", "dcp durable", "async blocked", "load dcp"} <= set(
        only
    )
    assert all(seconds > 0 for name, seconds in only.items() if "slowed" not in name)
    for ratio in figures["ratios"]:
        assert ratio["ratio"] == only[ratio["of"]] / only[ratio["to"]]
        assert f"{ratio['of']} / {ratio['to']}" in printed
    assert not list(tmp_path.glob("checkpoint_*")), "what was written is gone"
