"""The benchmarks of the levers, end to end and very small. How fast anything is, no test says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, Done

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TINY = (
    *("run.steps=12", "measure.window_s=0", "model.width=16", "data.global_batch_size=8"),
    # compiles, but generates no code, which would take most of the time
    'hydra.sweeper.rungs.inductor=["compile=inductor","compile.backend=aot_eager","compile.mode=null"]',
    *("~hydra.sweeper.rungs.fused", "~hydra.sweeper.rungs.loader"),
)

pytestmark = pytest.mark.slow


def run(command: Command, name: str, *words: str) -> tuple[Done, dict[str, Any]]:
    program = [sys.executable, str(BENCHMARKS / name)]
    started = command.start("--json", "figures.json", *words, program=program)
    done = command.wait(started, timeout_s=280)
    figures = command.cwd / "figures.json"
    assert figures.is_file(), done.out + done.err
    return done, json.loads(figures.read_text())


def test_an_image_job_set_up_badly_and_well(command: Command) -> None:
    small = ("--per-class", "4", "--steps", "12", "--image-size", "16")
    once = ("--repeats", "1", "--ladder", "1", "--levers", "bf16", "fast_decode", "workers")
    rest = ("--rest", "normalize", "fused")  # inductor's code for convolutions takes minutes
    done, figures = run(command, "image_job.py", *small, *once, *rest)
    assert done.code == (1 if figures["wrong"] else 0), done.err
    assert figures["levers"] == ["bf16", "fast_decode", "workers"]
    assert figures["same_samples"]
    for name in ("whole", "steady"):
        assert figures[name]["ratio"] > 0
        assert figures[name]["ci95"] is None  # of one pair
    without, chosen = figures["sides"]["none"], figures["sides"]["levers"]
    # the same start on slightly other pixels: close, and not equal
    assert chosen["first_loss"] == pytest.approx(without["first_loss"], rel=0.05)
    assert 0 < figures["loss_off"]["final"] <= figures["loss_off"]["any_step"] < 1
    rungs = figures["ladder"]
    assert [r["lever"] for r in rungs if r["chosen"]] == [None, "bf16", "fast_decode", "workers"]
    assert [r["lever"] for r in rungs if not r["chosen"]] == ["normalize", "fused"]
    assert all(r["ratio"] > 0 for r in rungs)
    assert all(r["compile_s"] is None for r in rungs)
    assert len([line for line in done.out.splitlines() if line.startswith("| + ")]) == 5


def test_a_lever_that_there_is_not_is_refused(command: Command) -> None:
    program = [sys.executable, str(BENCHMARKS / "image_job.py")]
    done = command.wait(command.start("--levers", "turbo", program=program))
    assert done.code == 2
    assert "'turbo'" in done.err
    assert "fast_decode" in done.err


def test_the_table_of_the_levers_goes_between_its_lines(command: Command) -> None:
    guide = command.cwd / "guide.md"
    guide.write_text("above\n<!-- levers: begin -->\nold\n<!-- levers: end -->\nbelow\n")
    once = ("--repeats", "2", "--only", "gpt on Python source")
    done, figures = run(command, "levers.py", *once, "--write", "guide.md", *TINY)
    assert done.code == 0, done.err
    above, table, below = (
        guide.read_text()
        .replace("<!-- levers: end", "<!-- levers: begin")
        .split("<!-- levers: begin -->\n")
    )
    assert (above, below) == ("above\n", "below\n")
    assert done.out.startswith(table)
    assert "old" not in table
    assert [w["name"] for w in figures["workloads"]] == ["gpt on Python source"]
    for workload in figures["workloads"]:
        rungs = workload["rungs"]
        assert rungs[0]["lever"] is None
        assert "compile=inductor" in rungs[1]["lever"]
        assert [r["lever"] for r in rungs[2:]] == ["precision=bf16"]
        assert rungs[1]["row"]["compiled_cold"]
        assert workload["command"] in table
        for rung in rungs[1:]:
            assert rung["over_before"]["ratio"] > 0
            low, high = rung["over_before"]["ratio_ci95"]
            assert low < rung["over_before"]["ratio"] < high
            assert f"+ `{rung['lever']}`" in table


def test_a_file_without_the_lines_is_left_alone(command: Command) -> None:
    guide = command.cwd / "guide.md"
    guide.write_text("no place for it\n")
    program = [sys.executable, str(BENCHMARKS / "levers.py")]
    done = command.wait(command.start("--write", "guide.md", program=program))
    assert done.code == 2
    assert "guide.md" in done.err
    assert "levers: begin" in done.err
    assert guide.read_text() == "no place for it\n"
