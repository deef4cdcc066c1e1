"""benchmarks/matrix.py: strategy, world, accumulation, precision and compiler train the same."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, Done

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

MATRIX = Path(__file__).resolve().parents[2] / "benchmarks" / "matrix.py"
SETTINGS = {
    "strategy": ("single", "ddp", "fsdp", "hsdp"),
    "launch.nproc": ("1", "2", "4"),
    "run.accumulation_steps": ("1", "4"),
    "precision": ("fp32", "bf16"),
    "compile": ("off", "inductor"),
}
ALONE = {("single", "2"), ("single", "4"), ("hsdp", "1")}


def matrix(command: Command, *words: str) -> tuple[Done, list[dict[str, Any]]]:
    words = ("--dir", "sweep", "--json", "found.json", *words)
    started = command.start(*words, program=[sys.executable, str(MATRIX)])
    done = command.wait(started, timeout_s=290)
    found = command.cwd / "found.json"
    assert found.is_file(), done.out + done.err
    cells: list[dict[str, Any]] = json.loads(found.read_text())["cells"]
    return done, cells


@pytest.fixture(scope="module")
def cover(module_command: Command) -> tuple[Done, list[dict[str, Any]]]:
    return matrix(module_command, "--pairwise")


def test_it_is_the_same_training(cover: tuple[Done, list[dict[str, Any]]]) -> None:
    done, cells = cover
    assert done.code == 0, done.out
    assert not [cell for cell in cells if cell["wrong"] or cell["skipped"]]
    assert all(0 <= cell["loss_deviation"] < 0.01 for cell in cells)
    assert f"{len(cells)} cells: {len(cells)} ok, 0 skipped, 0 wrong" in done.out
    assert len([line for line in done.out.splitlines() if " | ok, " in line]) == len(cells)


def test_every_pair_that_can_run_is_in_a_cell(cover: tuple[Done, list[dict[str, Any]]]) -> None:
    done, cells = cover
    for one, other in combinations(SETTINGS, 2):
        held = {(cell["settings"][one], cell["settings"][other]) for cell in cells}
        assert set(product(SETTINGS[one], SETTINGS[other])) - held <= ALONE
    assert 9 <= len(cells) <= 14
    assert done.out.count("can't run together: ") == len(ALONE)
    first = cells[0]["settings"]
    assert first == {key: values[0] for key, values in SETTINGS.items()}


def test_gradients_are_compared_where_two_ranks_hold_the_same(
    cover: tuple[Done, list[dict[str, Any]]],
) -> None:
    for cell in cover[1]:
        strategy, world = cell["settings"]["strategy"], cell["settings"]["launch.nproc"]
        several = strategy in ("ddp", "hsdp") and world != "1"
        assert cell["grads_equal"] is (True if several else None)


def other_losses(record: dict[str, Any]) -> None:
    record["numerics"]["loss"] = [1.05 * loss for loss in record["numerics"]["loss"]]


def other_gradients(record: dict[str, Any]) -> None:
    record["numerics"]["grads_equal"] = False


def other_samples(record: dict[str, Any]) -> None:
    record["numerics"]["samples_digest"] = "0" * 16


def other_start(record: dict[str, Any]) -> None:
    record["numerics"]["init_digest"] = "0" * 16


FAULTS: dict[tuple[str, str], tuple[Callable[[dict[str, Any]], None], str]] = {
    ("ddp", "2"): (other_losses, "diverged (nudged): "),
    ("ddp", "4"): (other_gradients, "gradients equal over ranks: False"),
    ("fsdp", "2"): (other_samples, "diverged (samples): "),
    ("fsdp", "4"): (other_start, "diverged (start): "),
}


def test_what_is_wrong_with_a_cell_is_named(
    cover: tuple[Done, list[dict[str, Any]]], command: Command
) -> None:
    """The sweep's files with a fault in four of them: no job runs again, and the table tells."""
    shutil.copytree(cover[0].cwd / "sweep", command.cwd / "sweep")
    expected = {}
    for cell in cover[1]:
        where = (cell["settings"]["strategy"], cell["settings"]["launch.nproc"])
        if where in FAULTS:
            fault, expected[cell["name"]] = FAULTS[where]
            path = command.cwd / "sweep" / f"{cell['name']}-r0" / "result.json"
            record = json.loads(path.read_text())
            fault(record)
            path.write_text(json.dumps(record))
    done, cells = matrix(command, "--pairwise")
    assert done.code == 1
    assert {cell["name"] for cell in cells if cell["wrong"]} == set(expected)
    for said in expected.values():
        assert f"| WRONG: {said}" in done.out


def test_what_can_not_run_is_a_row_with_its_reason(command: Command) -> None:
    few = ("strategy=single,ddp", "launch.nproc=1,2", "run.accumulation_steps=1")
    done, cells = matrix(command, *few, "precision=fp32", "compile=off")
    assert done.code == 0, done.out
    assert [bool(cell["skipped"]) for cell in cells] == [False, True, False, False]
    assert "| single | 2 | 1 | fp32 | off | skipped: strategy=single: it runs one" in done.out
    assert "- 4 cells: 3 ok, 1 skipped, 0 wrong" in done.out


def test_the_baseline_must_be_one_process(command: Command) -> None:
    few = ("strategy=ddp", "launch.nproc=2", "run.accumulation_steps=1")
    done, (cell,) = matrix(command, *few, "precision=fp32", "compile=off")
    assert done.code == 1
    assert cell["wrong"][0].startswith("the baseline is no single process")
