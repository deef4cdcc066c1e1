"""The benchmark prints its tables; how fast anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.diagnose.trace.synthetic import kernel, launch, step, write

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.slow


def test_the_benchmark_of_traces(tmp_path: Path) -> None:
    events = [step(1, 0, 20000)]
    for i in range(1000):
        events += [launch(20 * i, 3, i + 1), kernel("gemm", 20 * i + 5, 10, i + 1)]
    write(tmp_path / "made.json.gz", events)
    program = [sys.executable, str(ROOT / "benchmarks" / "traces.py"), "--traces", str(tmp_path)]
    asked = ["--rounds", "2", "--json", str(tmp_path / "out.json")]
    done = subprocess.run([*program, *asked], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "| made.json.gz |" in done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    (row,) = found["rows"]
    assert row["paceline_wall_s"] > 0
    assert (row["wall_ratio"], row["why"]) == (None, "not asked for")
    assert [line["times"] for line in found["linear"]] == [1, 4, 16]
    assert found["linear"][2]["text_mb"] == pytest.approx(
        16 * found["linear"][0]["text_mb"], rel=0.05
    )
