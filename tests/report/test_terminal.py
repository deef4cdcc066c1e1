"""What a person sees, at the widths of real terminals."""

import io
from typing import Any

import pytest
from rich.console import Console

from paceline.compare import table as tables
from paceline.record.schema import empty_record
from paceline.report import terminal

MARKUP = "[red]not a colour[/nor] :smile: [/]"


def made(overrides: list[str], rate: float = 12345.0, repeat: int = 0) -> dict[str, Any]:
    record = empty_record()
    cell = "-".join(o.partition("=")[2] for o in overrides)
    record["job"] |= {
        "name": f"{cell}-r{repeat}",
        "dir": f"sweeps/s/{cell}-r{repeat}",
        "overrides": overrides,
        "config_hash": cell,
        "work_hash": "w",
        "repeat": repeat,
        "rerun": 0,
    }
    record["status"]["state"] = "completed"
    record["validity"] = {"verdict": "valid", "reasons": ["mfu: the peak isn't known"]}
    record["requested"] = {
        "device": "auto",
        "world_size": 2,
        "threads_per_rank": 1,
        "compile": "inductor",
        "precision": "bf16",
        "strategy": "ddp",
        "data": {"option": "python_source"},
    }
    record["effective"] = {
        "device": "cpu",
        "world_size": 2,
        "threads_per_rank": 1,
        "compile": "3 frames",
        "precision": {"compute": "bfloat16"},
        "strategy": "DistributedDataParallel(Gpt)",
        "data": {"workers": 0},
    }
    record["throughput"] |= {
        "unit": "tokens",
        "steady_units_per_s": rate,
        "sustained_units_per_s": rate * 0.9,
        "end_to_end_units_per_s": rate * 0.5,
        "ci95": [rate * 0.98, rate * 1.02],
        "ci_scope": "within_process",
        "step_s_median": 0.0312,
        "step_s_p95": 0.04,
        "steps_measured": 120,
        "steps_excluded": {"warmup": 5, "compile": 1},
        "global_batch_size": 64,
        "micro_batch_size": 8,
    }
    record["ledger"] |= {
        "steady_wall_s": 10.0,
        "steady_phases_s": {"data_wait": 1.0, "forward": 3.0, "backward": 5.98, "other": 0.02},
    }
    record["compile"] |= {
        "compile_s": 12.34,
        "first_step_s": 13.5,
        "frames_compiled": 3,
        "frames_fallen_back": 0,
        "cache": {"setting": "warm", "hits": 0, "misses": 6},
    }
    record["memory"]["peak_host_gib"] = 0.61
    record["numerics"] |= {"loss": [5.5, 3.1], "final_loss": 3.1, "eval_loss": 3.2}
    return record


def failed(record: dict[str, Any]) -> dict[str, Any]:
    record["status"] |= {
        "state": "failed",
        "kind": "oom",
        "message": f"no memory {MARKUP}",
        "phase": "forward",
        "step": 3,
        "rank": 1,
        "traceback": f"Traceback:\n  File x {MARKUP}\nMemoryError: no memory",
    }
    return record


def shown(what: Any, argument: dict[str, Any], width: int = 100) -> list[str]:
    out = io.StringIO()
    what(argument, Console(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def sweep(repeats: int = 1) -> list[dict[str, Any]]:
    return [
        made([f"compile={c}", f"launch.nproc={n}"], 10000 + 1000 * n, repeat)
        for repeat in range(repeats)
        for c in ("off", "inductor")
        for n in (1, 2)
    ]


# ---------------------------------------------------------------- the table


def test_a_sweep_at_100_columns() -> None:
    lines = shown(terminal.table, tables.make(sweep(3)))
    assert lines[0].split()[:3] == ["compile", "nproc", "tokens/s"]
    assert "cell" not in lines[0] and "verdict" in lines[0] and "final loss" in lines[0]
    assert "baseline" in lines[1]
    assert "9,900 ± 0.0 %" in lines[1] and "1.091 [1.091, 1.091]" in lines[2]
    assert "faster" in lines[2] and "12.3" in lines[2] and "3.1000" in lines[2]
    assert len(lines) == 5
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(("width", "gone"), [(200, []), (80, ["steady"]), (60, ["final loss"])])
def test_a_narrow_terminal_loses_the_least_important_columns(width: int, gone: list[str]) -> None:
    made_table = tables.make(sweep(3))
    for row in made_table["rows"]:
        row["note"] = "other work"
    lines = shown(terminal.table, made_table, width)
    for name in gone:
        assert name not in lines[0]
    for name in ("compile", "tokens/s", "verdict"):
        assert name in lines[0]
    assert ("note" in lines[0]) == (width == 200)
    if width < 200:  # a note without its column is a line, the same one once
        assert lines[-1] == "compile=off launch.nproc=1 and 3 more: other work"


def test_one_repeat_says_how_to_get_intervals() -> None:
    lines = shown(terminal.table, tables.make(sweep()))
    assert lines[-1] == "no intervals: one repeat ranks nothing; add repeat=range(3)"
    assert sum("one repeat" in line for line in lines) == 1
    assert "can't tell" in lines[2] and "1.091" in lines[2]
    assert not any("one repeat" in line for line in shown(terminal.table, tables.make(sweep(2))))
    assert not any("one repeat" in line for line in shown(terminal.table, tables.make(sweep()[:1])))


def test_failures_stand_below_with_kind_and_message() -> None:
    records = sweep()
    failed(records[3])
    records[2]["status"] |= {"state": "skipped", "message": "needs a compiler"}
    lines = shown(terminal.table, tables.make(records))
    below = [line for line in lines if line.startswith("failed")]
    assert below == [
        f"failed  compile=inductor launch.nproc=2: oom: no memory {MARKUP}  "
        "(sweeps/s/inductor-2-r0)"
    ]
    assert any(line.startswith("inductor") and "failed" in line for line in lines)
    assert any(line.startswith("inductor") and "skipped" in line for line in lines)
    assert "compile=inductor launch.nproc=1: needs a compiler" in lines


def test_hygiene_is_said() -> None:
    made_table = tables.make(sweep()) | {"notes": [f"torch differs {MARKUP}"]}
    assert f"note: torch differs {MARKUP}" in shown(terminal.table, made_table)


def test_cells_that_look_alike_are_named() -> None:
    lines = shown(terminal.table, tables.make([made(["a=1"]), made(["a=1", "b=2"])]))
    assert lines[0].split()[0] == "b"
    lines = shown(terminal.table, tables.make([made(["a=1"])]))
    assert lines[0].split()[0] == "cell" and lines[1].split()[0] == "1"


def test_an_empty_table_is_no_error() -> None:
    assert shown(terminal.table, tables.make([]))[0].startswith("cell")


@pytest.mark.parametrize("width", [20, 40, 100])
def test_markup_in_values_is_text(width: int) -> None:
    records = [made([f"tag={MARKUP}"]), made(["tag=b"])]
    text = "".join(shown(terminal.table, tables.make(records), width))
    assert "smile" in text and "[/nor]"[:3] in text


# ---------------------------------------------------------------- a job


def test_a_job_is_explained() -> None:
    lines = shown(terminal.job, made(["compile=inductor"]))
    assert lines == [
        "inductor-r0  completed, valid",
        "  rate       12,345 tokens/s ± 2.0 % (within this process), steady",
        "  sustained  11,110 tokens/s with what recurs; 6,172 over the whole job",
        "  step       31.2 ms median, 40 ms p95 over 120 steady steps; "
        "left out: 5 warmup, 1 compile",
        "  batch      64 a step = 2 ranks x 8 a rank x 4 micro-batches; 1 thread a rank",
        "  steady step data wait   10.0%  ██",
        "              forward     30.0%  ███████",
        "              backward    59.8%  ██████████████",
        "              other        0.2%",
        "  compile    12.3 s (cold), first step 13.5 s; 3 frames compiled, 0 fell back",
        "  loss       5.5000 -> 3.1000, held out 3.2000",
        "  memory     host 0.61 GiB at most",
        "  ran as     device=auto ran as cpu",
        "             strategy=ddp ran as DistributedDataParallel(Gpt)",
        "  not known  mfu: the peak isn't known",
        "  record     sweeps/s/inductor-r0/result.json",
    ]


def test_a_diagnosis_is_a_line() -> None:
    record = made(["a=1"])
    advice = {"override": "x=4", "why": "it waits", "basis": "a batch takes 3 ms", "check": "go"}
    advice |= {"predicted_gain": 1.5, "predicted_bounds": [1.2, 1.8], "measured_gain": None}
    unsure = advice | {"override": "y=1", "predicted_gain": None}
    record["diagnosis"] |= {"bound": "input", "share": 0.42, "advice": [advice, unsure]}
    lines = shown(terminal.job, record)
    at = lines.index("  bound by   input (42% of the step)")
    assert lines[at + 1 : at + 6] == [
        "  try        x=4: predicted 1.5 times [1.2, 1.8]; it waits",
        "               (a batch takes 3 ms)",
        "             y=1: at most 1.8 times; it waits",
        "               (a batch takes 3 ms)",
        "  check      go",
    ]
    record["diagnosis"]["advice"][0]["measured_gain"] = 1.4
    assert "  try        x=4: measured 1.400 times; it waits" in shown(terminal.job, record)
    record["diagnosis"] |= {"bound": "undetermined", "share": None, "advice": []}
    assert "  bound by   undetermined" in shown(terminal.job, record)


def test_a_plain_job_ran_as_it_was_asked_for() -> None:
    record = made(["a=1"])
    record["requested"] |= {"device": "cuda", "compile": "off", "precision": "fp32"}
    record["requested"] |= {"strategy": "single"}
    record["effective"] |= {"device": "cuda:0", "compile": "eager", "strategy": "Gpt"}
    record["effective"] |= {"precision": {"compute": "float32"}}
    assert not any("ran as" in line for line in shown(terminal.job, record))
    record["requested"]["precision"] = "bf16"
    record["requested"]["compile"] = "inductor"
    lines = [line for line in shown(terminal.job, record) if " ran as " in line]
    assert [line.split()[-4:] for line in lines] == [
        ["compile=inductor", "ran", "as", "eager"],
        ["precision=bf16", "ran", "as", "float32"],
    ]


def test_a_job_with_nothing_but_gaps_is_explained() -> None:
    record = empty_record()
    record["status"]["state"] = "invalid"
    record["validity"] = {"verdict": "not_training", "reasons": ["no parameter changed"]}
    lines = shown(terminal.job, record)
    assert lines[0] == "None  invalid, not_training"
    assert "  validity   no parameter changed" in lines


def test_a_job_without_an_interval_says_so() -> None:
    record = made(["a=1"])
    record["throughput"]["ci95"] = None
    assert shown(terminal.job, record)[1] == "  rate       12,345 tokens/s (no interval), steady"
    record["throughput"]["ci95"] = [1.0, "inf"]
    assert shown(terminal.job, record)[1] == "  rate       12,345 tokens/s (no interval), steady"


# ---------------------------------------------------------------- a failure


def test_a_failure_names_rank_phase_and_step_and_ends_with_its_traceback() -> None:
    record = failed(made(["a=1"]))
    expected = [
        "failed (oom) 1-r0: rank 1, phase forward, step 3",
        f"  no memory {MARKUP}",
        "  logs: sweeps/s/1-r0/log",
        "  Traceback:",
        f"    File x {MARKUP}",
        "  MemoryError: no memory",
    ]
    assert shown(terminal.failure, record) == expected
    assert shown(terminal.job, record) == expected


def test_a_long_traceback_is_cut_at_its_beginning() -> None:
    record = failed(made(["a=1"]))
    record["status"]["traceback"] = "\n".join(f"line {i}" for i in range(100))
    lines = shown(terminal.failure, record)
    assert lines[3] == "  ... 60 lines more, in result.json"
    assert (lines[4], lines[-1]) == ("  line 60", "  line 99")


def test_an_interrupted_job() -> None:
    record = made(["a=1"])
    record["status"] |= {"state": "interrupted", "message": "stopped at a step's end"}
    assert shown(terminal.failure, record)[:2] == ["interrupted 1-r0", "  stopped at a step's end"]
