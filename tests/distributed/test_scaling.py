"""P68: one and two ranks, with the batch of the job fixed and with that of a rank."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.conftest import TINY, Command, Done

pytestmark = pytest.mark.distributed

SWEEP = [
    "-m",
    *TINY,
    "scaling.mode=strong,weak",
    "strategy=single,ddp",
    "scaling.learning_rate=linear",
    "data.global_batch_size=32",
    "launch.threads_per_rank=1",
    "run.device=cpu",
]


@pytest.fixture(scope="module")
def swept(module_command: Command) -> Done:
    done = module_command(*SWEEP)
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def rows(swept: Done) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["scaling_mode"], row["world_size"]): row for row in swept.table()["rows"]}


@pytest.fixture(scope="module")
def records(swept: Done) -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for record in swept.jobs("outputs/sweeps/*"):
        requested = record["requested"]
        found[requested["scaling"]["mode"], requested["world_size"]] = record
    return found


def test_batches_and_samples(records: dict[tuple[str, int], dict[str, Any]], rows: Any) -> None:
    assert len(records) == 4
    for (mode, ranks), record in records.items():
        batch = 32 * ranks if mode == "weak" else 32
        assert record["throughput"]["global_batch_size"] == batch
        assert record["throughput"]["samples_used"] == 30 * batch
        row = rows[mode, ranks]
        assert (row["global_batch_size"], row["per_rank_batch_size"]) == (batch, batch // ranks)


def test_the_learning_rate(swept: Done, records: dict[tuple[str, int], dict[str, Any]]) -> None:
    for (mode, ranks), record in records.items():
        scaling = record["requested"]["scaling"]
        factor = ranks if mode == "weak" else 1
        assert (scaling["factor"], scaling["lr"]) == (factor, pytest.approx(0.1 * factor))
        (path,) = swept.cwd.glob(f"outputs/sweeps/*/{record['job']['name']}/job.yaml")
        frozen = yaml.safe_load(path.read_text())["config"]
        assert frozen["optimizer"]["lr"] == scaling["lr"]
        assert frozen["data"]["global_batch_size"] == scaling["global_batch_size"]


def test_which_work_it_is(records: dict[tuple[str, int], dict[str, Any]], rows: Any) -> None:
    work = {key: record["job"]["work_hash"] for key, record in records.items()}
    other = work.pop(("weak", 2))
    assert len(set(work.values())) == 1 and other not in work.values()
    assert rows["weak", 2]["verdict"] == "other_work"
    verdicts = {key: row["verdict"] for key, row in rows.items() if key != ("weak", 2)}
    assert verdicts == {
        ("strong", 1): "baseline",
        ("strong", 2): "cant_tell",
        ("weak", 1): "cant_tell",
    }


def test_efficiency_is_the_rate_a_rank_over_that_of_the_baseline(rows: Any) -> None:
    base = rows["strong", 1]
    assert base["scaling_efficiency"] == 1.0
    for (_, ranks), row in rows.items():
        a_rank = row["sustained_units_per_s"] / ranks
        expected = a_rank / base["sustained_units_per_s"]
        assert row["scaling_efficiency"] == pytest.approx(expected)
        assert row["validity"] == "valid"


def test_the_table_shows_both_batches_and_the_efficiency(swept: Done) -> None:
    (path,) = swept.cwd.glob("outputs/sweeps/*/table.md")
    for text in (path.read_text(), swept.out):
        (header,) = [line for line in text.splitlines() if "efficiency" in line]
        words = " ".join(header.replace("|", " ").split())
        assert "ranks batch per rank" in words and "efficiency verdict" in words
    weak = [line for line in swept.out.splitlines() if line.startswith("weak") and "ddp" in line]
    assert weak[0].split()[2:5] == ["2", "64", "32"]
