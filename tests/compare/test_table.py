"""Rows by hand: pooled repeats, failures, withheld verdicts; and the three files."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.compare import columns, table
from paceline.compare.pairs import not_run
from paceline.record.schema import empty_record
from paceline.types import ConfigError

DESIGNED = (  # docs/design.md, section 7
    "name dir overrides state kind validity steady_units_per_s sustained_units_per_s ci95 "
    "ratio_to_baseline ratio_ci95 verdict compile_s peak_memory_gib final_loss"
)


def made(
    cell: str, rate: float = 100.0, repeat: int = 0, rerun: int = 0, host: str = "here"
) -> dict[str, Any]:
    """A valid record of the cell compile=CELL."""
    record = empty_record()
    record["job"] |= {
        "name": f"{cell}-r{repeat}",
        "dir": f"sweep/{cell}-r{repeat}",
        "overrides": [f"repeat={repeat}", f"compile={cell}", "run.steps=40"],
        "config_hash": cell,
        "work_hash": "w",
        "repeat": repeat,
        "rerun": rerun,
    }
    record["status"]["state"] = "completed"
    record["validity"]["verdict"] = "valid"
    record["throughput"] |= {
        "unit": "tokens",
        "steady_units_per_s": rate + 1,
        "sustained_units_per_s": rate,
        "ci95": [rate - 3, rate + 3],
        "ci_scope": "within_process",
        "global_batch_size": 32,
        "micro_batch_size": 16,
    }
    record["ledger"] |= {"steady_wall_s": 10.0, "steady_phases_s": {"data_wait": 2.0}}
    record["memory"]["peak_host_gib"] = 1.0 + repeat
    record["numerics"] |= {"loss": [5.0, 3.0], "final_loss": 3.0 + repeat, "eval_loss": 3.5}
    record["requested"] = {"world_size": 9, "threads_per_rank": 2}
    record["effective"] = {"world_size": 2}
    record["environment"] = {"host": host}
    return record


def failed(record: dict[str, Any], kind: str = "oom") -> dict[str, Any]:
    record["status"] |= {"state": "failed", "kind": kind, "message": "no\nmemory"}
    record["validity"]["verdict"] = None
    record["throughput"] = empty_record()["throughput"]
    return record


def only(made_table: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = [row for row in made_table["rows"] if row["name"] == name]
    return row


def test_repeats_are_pooled() -> None:
    records = [made("off", r, i) for i, r in enumerate((100, 110, 90))]
    records += [made("inductor", r, i) for i, r in enumerate((120, 132, 108))]
    made_table = table.make(records)
    assert (made_table["swept"], made_table["baseline"]) == (["compile"], "off")
    assert (made_table["unit"], made_table["notes"]) == ("tokens", [])
    base, row = made_table["rows"]
    assert " ".join(row).startswith(DESIGNED + " ")
    assert row == {
        "name": "inductor",
        "dir": "sweep/inductor-r0",
        "overrides": {"compile": "inductor"},
        "state": "completed",
        "kind": None,
        "validity": "valid",
        "steady_units_per_s": pytest.approx(121),
        "sustained_units_per_s": pytest.approx(120),
        "ci95": pytest.approx([120 - 29.811, 120 + 29.811], abs=1e-2),  # 4.303 * 12 / sqrt(3)
        "ratio_to_baseline": pytest.approx(1.2),
        "ratio_ci95": pytest.approx([1.2, 1.2]),
        "verdict": "faster",
        "compile_s": None,
        "peak_memory_gib": 3.0,
        "final_loss": 4.0,
        "source_changed": [],
        "note": None,
        "unit": "tokens",
        "repeats": 3,
        "ci_scope": "restarts",
        "eval_loss": 3.5,
        "loss_deviation": 0.0,
        "numerics": {"verdict": "equal", "gate": "tolerance", "reason": None},
        "data_wait_share": pytest.approx(0.2),
        "world_size": 2,
        "threads_per_rank": 2,
        "global_batch_size": 32,
        "per_rank_batch_size": 16,
        "micro_batch_size": 16,
        "scaling_mode": None,
        "scaling_efficiency": None,
        "save_blocked_s": None,
        "save_slowed_s": None,
        "compile_warm_s": None,
        "compiled_cold": False,
        "recompiles": 0,
        "recompile_s": 0.0,
        "break_even_steps": None,
        "break_even_why": None,
    }
    assert (base["verdict"], base["ratio_to_baseline"], base["ratio_ci95"]) == (
        "baseline",
        1.0,
        None,
    )


def compiled(
    record: dict[str, Any], seconds: float, hits: int, pays: int | None, recompiled: int = 0
) -> dict[str, Any]:
    record["compile"] |= {
        "compile_s": seconds,
        "cache": {"setting": "warm", "hits": hits, "misses": 2 - hits},
        "recompiles": [{"step": 9, "reason": "size", "where": "f", "compile_s": 0.5}] * recompiled,
        "break_even_steps": pays,
        "break_even_why": None if pays else "never: eager is faster",
    }
    return record


def test_the_order_of_a_sweep_does_not_decide_what_compiling_costs() -> None:
    # the first repeat fills the cache: a mean over all would be neither cost
    records = [made("off", 100, i) for i in range(3)]
    seconds = zip((15.0, 1.0, 2.0), (0, 2, 2), strict=True)
    records += [compiled(made("on", 110, i), s, h, 100 + i) for i, (s, h) in enumerate(seconds)]
    made_table = table.make(records)
    row = only(made_table, "on")
    assert (row["compile_s"], row["compile_warm_s"], row["break_even_steps"]) == (15.0, 1.5, 101)
    shown = columns.columns(made_table)
    assert shown["compile s"] == ["-", "15.0, 1.5 warm"]
    assert shown["pays after"] == ["-", "101 steps"]
    assert "recompiles" not in shown


def test_a_cell_that_only_met_a_warm_cache_says_so() -> None:
    records = [made("off"), compiled(made("on"), 1.25, 2, None, recompiled=3)]
    made_table = table.make(records)
    row = only(made_table, "on")
    assert (row["compile_s"], row["compile_warm_s"]) == (1.25, 1.25)
    shown = columns.columns(made_table)
    assert shown["compile s"] == ["-", "1.2 warm"]
    assert shown["pays after"] == ["-", "never"]
    assert shown["recompiles"] == ["-", "3 in 1.5 s"]


def test_a_single_record_keeps_its_own_interval() -> None:
    row = only(table.make([made("off"), made("inductor", 120)]), "inductor")
    assert (row["ci95"], row["ci_scope"], row["repeats"]) == ([117, 123], "within_process", 1)
    assert (row["ratio_to_baseline"], row["ratio_ci95"]) == (pytest.approx(1.2), None)
    assert row["verdict"] == "cant_tell"
    assert row["note"] == "one repeat ranks nothing; add repeat=range(3)"


def test_a_device_peak_counts_before_the_hosts() -> None:
    record = made("off")
    record["memory"]["peak_device_gib"] = 0.25
    assert table.make([record])["rows"][0]["peak_memory_gib"] == 0.25


def test_a_repeat_that_failed() -> None:
    records = [made("off", 100, 0), failed(made("off", 100, 1)), made("off", 102, 2)]
    (row,) = table.make(records)["rows"]
    assert (row["state"], row["kind"], row["validity"]) == ("failed", "oom", "valid")
    assert row["sustained_units_per_s"] == pytest.approx(101)
    assert row["note"] == "2 of 3 repeats count; failed: oom: no"


def test_a_later_start_of_the_sweep_makes_a_failure_good() -> None:
    records = [failed(made("off", repeat=1)), made("off", 100, 0), made("off", 102, 1, rerun=1)]
    (row,) = table.make(records)["rows"]
    assert (row["state"], row["note"]) == ("completed", None)
    records = [made("off", 100, 0), failed(made("off", repeat=0, rerun=1))]
    assert table.make(records)["rows"][0]["state"] == "failed"


def test_a_cell_without_any_rate() -> None:
    records = [made("off"), failed(made("inductor")), failed(made("inductor", repeat=1), "timeout")]
    row = only(table.make(records), "inductor")
    assert row["verdict"] == "invalid"
    assert row["note"] == "failed: oom: no; 0 of 2 repeats count"
    empty = "steady_units_per_s sustained_units_per_s ci95 ratio_to_baseline ratio_ci95 final_loss"
    assert [row[key] for key in empty.split()] == [None] * 6
    assert (row["world_size"], row["repeats"], row["validity"]) == (2, 0, None)


def test_skipped_and_missing_cells_are_rows() -> None:
    skipped = made("inductor")
    skipped["status"] |= {"state": "skipped", "message": "compile=inductor needs a compiler"}
    skipped["validity"]["verdict"] = None
    records = [made("off"), skipped]
    sweep = {"baseline": "off", "cells": [made(n)["job"] for n in ("off", "inductor", "later")]}
    made_table = table.make(records + not_run(sweep, records), sweep=sweep)
    row = only(made_table, "inductor")
    assert (row["state"], row["verdict"]) == ("skipped", "invalid")
    assert row["note"] == "compile=inductor needs a compiler"
    row = only(made_table, "later")
    assert (row["state"], row["verdict"], row["note"]) == ("pending", "invalid", "not run")
    assert [columns.verdict(r) for r in made_table["rows"]] == ["baseline", "skipped", "not run"]


def test_a_training_that_diverged() -> None:
    records = [made(name, 100 + i, i) for name in ("off", "inductor") for i in range(3)]
    records[-1]["numerics"]["loss"] = [5.0, "nan"]
    row = only(table.make(records), "inductor")
    assert (row["state"], row["validity"], row["verdict"]) == ("completed", "diverged", "invalid")
    assert row["loss_deviation"] == "inf"
    assert row["sustained_units_per_s"] is not None and row["ratio_to_baseline"] is None
    json.dumps(row, allow_nan=False)


def test_a_gate_in_the_ranks_that_fell() -> None:
    bad = made("inductor")
    bad["status"]["state"] = "invalid"
    bad["validity"] = {"verdict": "not_training", "reasons": ["no parameter changed in 40 steps"]}
    row = only(table.make([made("off"), bad]), "inductor")
    assert (row["state"], row["validity"], row["verdict"]) == ("invalid", "not_training", "invalid")
    assert row["note"] == "not_training: no parameter changed in 40 steps"


def test_verdicts_are_withheld_over_machines_unless_forced() -> None:
    records = [made(n, r, i) for n, r in (("off", 100), ("same_host", 120)) for i in range(3)]
    records += [made("elsewhere", 120, i, host="there") for i in range(3)]
    made_table = table.make(records)
    assert [row["verdict"] for row in made_table["rows"]] == ["baseline", "faster", "cant_tell"]
    row = made_table["rows"][2]
    assert (
        row["note"] == "host differs: there (elsewhere-r0 and 2 more) and here (off-r0 and 2 more)"
    )
    assert row["ratio_to_baseline"] == pytest.approx(1.2)
    assert made_table["notes"][0].startswith("host differs: ")
    assert "--force" in made_table["notes"][-1]
    forced = table.make(records, force=True)
    assert [row["verdict"] for row in forced["rows"]] == ["baseline", "faster", "faster"]
    assert len(forced["notes"]) == 1


def test_different_threads_are_noted_and_still_ranked() -> None:
    records = [made(n, r, i) for n, r in (("off", 100), ("ddp", 120)) for i in range(3)]
    for record in records[3:]:
        record["effective"]["threads_per_rank"] = 1
    made_table = table.make(records)
    (note,) = made_table["notes"]
    assert note.startswith("threads_per_rank differs: 2 (off-r0 and 2 more) and 1 (ddp-r0")
    assert made_table["rows"][1]["verdict"] == "faster"


def test_the_baseline_can_be_chosen() -> None:
    records = [made("off"), made("inductor")]
    assert table.make(records, baseline="inductor")["baseline"] == "inductor"
    assert table.make(records, sweep={"baseline": "inductor"})["baseline"] == "inductor"
    with pytest.raises(ConfigError, match=r"off .*inductor"):
        table.make(records, baseline="gone")


def test_a_key_that_a_cell_lacks_is_its_default() -> None:
    other = made("b")
    other["job"]["overrides"] = ["strategy=ddp"]
    made_table = table.make([made("a"), other])
    assert made_table["swept"] == ["compile", "run.steps", "strategy"]
    assert [row["overrides"] for row in made_table["rows"]] == [
        {"compile": "a", "run.steps": "40", "strategy": "default"},
        {"compile": "default", "run.steps": "default", "strategy": "ddp"},
    ]


def test_no_records_and_several_units() -> None:
    assert table.make([])["rows"] == []
    other = made("images")
    other["throughput"]["unit"] = "images"
    made_table = table.make([made("off"), other])
    assert made_table["unit"] is None
    assert columns.columns(made_table)["rate"][1].startswith("100 images/s ± 3.0 %")


def test_the_files(tmp_path: Path) -> None:
    records = [made(n, r, i) for n, r in (("off", 100), ("in|ductor\\", 120)) for i in range(3)]
    made_table = table.make([*records, failed(made('a,"b"'))])
    table.write(made_table, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["table.csv", "table.json", "table.md"]
    assert json.loads((tmp_path / "table.json").read_text()) == made_table

    with (tmp_path / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0])[:3] == ["compile", "name", "dir"]
    assert [line["compile"] for line in lines] == ["off", "in|ductor\\", 'a,"b"']
    assert float(lines[1]["ratio_ci95_low"]) == pytest.approx(1.2)
    assert (lines[2]["sustained_units_per_s"], lines[2]["ci95_high"]) == ("", "")
    assert "overrides" not in lines[0] and "ci95" not in lines[0]

    text = (tmp_path / "table.md").read_text().splitlines()
    assert text[0].startswith(
        "| compile | cell | ranks | batch | per rank | tokens/s | steady | ratio | verdict |"
    )
    assert set(text[1]) == set("| -")
    assert text[3].startswith(
        "| in\\|ductor\\\\ | in\\|ductor\\\\ | 2 | 32 | 16 | 120 ± 0.0 % | 121 | 1.200 [1.2"
    )
    bars = [line.replace("\\\\", "").replace("\\|", "").count("|") for line in text[:5]]
    assert len(set(bars)) == 1


def test_an_empty_table_can_be_written(tmp_path: Path) -> None:
    table.write(table.make([]), tmp_path)
    assert json.loads((tmp_path / "table.json").read_text())["rows"] == []


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (None, ".4g", "-"),
        (12345.6, ".4g", "12,346"),
        (999.96, ".4g", "1000"),
        (1.23456, ".4g", "1.235"),
        (2.0, ".1f", "2.0"),
        (0.0, ".2f", "0.00"),
    ],
)
def test_figures(value: float | None, form: str, text: str) -> None:
    assert columns.figure(value, form) == text


def test_code_that_changed_in_the_queue_is_flagged(tmp_path: Path) -> None:
    said = "code changed since it was submitted: commit a1b2c3d -> d4e5f6a"
    records = [made("off", repeat=i) for i in range(2)]
    records += [made("inductor", repeat=i) for i in range(2)]
    for record in records[2:]:
        record["environment"]["source"] = {"submitted": {}, "started": {"dirty": None}} | {
            "changed": [said]
        }
    made_table = table.make(records)
    base, row = made_table["rows"]
    assert (base["source_changed"], row["source_changed"]) == ([], [said])
    assert base["note"] is None and row["note"] == said
    table.write(made_table, tmp_path)
    assert said in (tmp_path / "table.md").read_text()
    lines = csv.DictReader((tmp_path / "table.csv").read_text().splitlines())
    assert [line["source_changed"] for line in lines] == ["", said]
