"""`paceline diagnose`: what it says of jobs and traces, in words and JSON, and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.diagnose.trace import device
from paceline.diagnose.trace.definitions import DEFINITIONS
from paceline.diagnose.trace.main_thread import PARTS
from paceline.record.schema import empty_record, write_json
from paceline.report import diagnosis
from tests.conftest import Command
from tests.diagnose.trace.synthetic import (
    annotation,
    copy,
    kernel,
    launch,
    operator,
    step,
    talk,
    write,
)

FLAT = ("idle_pct", "compute_pct", "non_compute_pct", "overlap_pct")


def events() -> list[dict[str, Any]]:
    """Two steps of 100 us: 50 % compute, 20 % communication alone, 10 % copies, 20 % idle."""
    made = []
    for i in range(2):
        at, n = 100.0 * i, 10 * i
        told = {"Collective name": "allreduce", "In msg nelems": 500, "dtype": "Float"}
        made += [step(i, at, 100), operator("aten::linear", at + 1, 50)]
        made += [launch(at, 1, n + 1), kernel("gemm", at + 2, 50, n + 1)]
        made += [launch(at + 2, 1, n + 2), talk(at + 42, 30, n + 2, **told, **{"Group size": 2})]
        made += [launch(at + 4, 1, n + 3), copy(at + 62, 20, n + 3)]
    return [*made, launch(200, 1, 99), kernel("end", 202, 0.001, 99)]


def job(directory: Path) -> Path:
    record = empty_record()
    record["job"] |= {"name": "mine", "dir": str(directory)}
    record["status"]["state"] = "completed"
    record["diagnosis"] |= {
        "bound": "input",
        "rank": 0,
        "share": 0.7,
        "evidence": ["data_wait 70.0 %"],
        "advice": [
            {
                "override": "data.loader.num_workers=2",
                "why": "each step waits for its data",
                "predicted_gain": 1.5,
                "predicted_bounds": [1.2, 1.8],
                "measured_gain": None,
            },
            {
                "override": "compile=inductor",
                "why": "the model computes 20 % of a step",
                "predicted_gain": None,
                "predicted_bounds": [1.0, 1.25],
                "basis": "not predicted",
                "check": "paceline -m compile=off,inductor",
                "measured_gain": None,
            },
        ],
    }
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "result.json", record)
    return directory


def said(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> tuple[str, str]:
    assert diagnosis.run([str(word) for word in argv]) == code
    out, err = capsys.readouterr()
    return out, err


def told(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    out, err = said(capsys, *argv, "--json")
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_trace_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "rank3.json.gz", events())
    (found,) = told(capsys, path)["traces"]
    assert (found["path"], found["rank"]) == (str(path), 3)
    for part in (found, found["steps"]):
        assert set(FLAT) <= part.keys()
        assert all(isinstance(part[name], float) for name in FLAT)
    assert found["steps"]["compute_pct"] == pytest.approx(100 * 100 / 180)
    assert found["bound"] == "compute"


def test_a_trace_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, write(tmp_path / "rank3.json", events()))
    lines = out.splitlines()
    assert lines[0] == f"rank 3  {tmp_path}/rank3.json"
    assert lines[1].split() == ["bound", "by", "compute", "(56%", "of", "the", "steps)"]
    assert max(len(line) for line in lines[1:]) <= 100
    shares = [
        float(line.split("%")[0].split()[-1])
        for line in lines
        if line[14:30].strip().startswith(("compute", "communication", "copies", "idle"))
        and line.rstrip(" █").endswith("%")
    ]
    assert sum(shares) == pytest.approx(100, abs=0.25)
    assert "33.3 % of 33.3 % communication runs beside compute" in out
    assert "4 kB" not in out
    assert "2 x all_reduce of 2 kB Float, 2 ranks" in out
    assert "each step       step" in out


def test_a_trace_without_a_device_has_reasons_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t.json", [operator("aten::mm", 0, 80), annotation("x", 0, 100)])
    out, _ = said(capsys, path)
    assert "device      n/a: no device activity in the trace" in out
    assert "rank        n/a: neither distributedInfo nor the file's name has one" in out
    assert " 0.0 %" not in out
    (found,) = told(capsys, path)["traces"]
    for name in FLAT:
        assert found[name] is None
        assert found["reasons"][name] == "no device activity in the trace"
    assert found["bound"] == "compute"


def test_steps_without_a_launch_say_so_beside_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [step(1, 0, 10), operator("aten::mm", 0, 9), kernel("a", 20, 5)]
    out, _ = said(capsys, write(tmp_path / "t.json", made))
    assert "device      n/a: no launch call of a device activity is inside of" in out
    assert "whole trace idle 0.0 %, compute 100.0 %" in out
    assert "bound by    undetermined" in out


def test_names_cannot_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences and halves of characters."""
    out, _ = said(capsys, write(tmp_path / "t.json", [kernel("a\x1b[31m\ud800\nb", 0, 5)]))
    assert "a?[31m? b" in out


def test_a_job_and_its_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job(tmp_path / "job")
    out, _ = said(capsys, directory)
    assert "bound by    input (70% of a step)" in out
    assert "evidence    data_wait 70.0 %" in out
    wanted = (
        "data.loader.num_workers=2: predicted 1.5 times [1.2, 1.8]; each step waits for its data"
    )
    assert wanted in out
    assert "try         compile=inductor: at most 1.25 times; the model computes" in out
    assert "ground: not predicted" in out
    assert "check: paceline -m compile=off,inductor" in out
    (directory / "trace").mkdir()
    write(directory / "trace" / "rank0.json.gz", events())
    (directory / "trace" / "rank0.operators.txt").write_text("a table")
    (directory / "trace" / "rank0.summary.json").write_text("{}")
    found = told(capsys, directory)
    assert found["jobs"][0]["diagnosis"]["bound"] == "input"
    assert [trace["rank"] for trace in found["traces"]] == [0]
    assert found["skipped"] == []


def test_a_job_without_a_diagnosis_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = empty_record()
    record["job"] |= {"name": "mine", "dir": str(tmp_path)}
    record["status"]["state"] = "completed"
    write_json(tmp_path / "result.json", record)
    out, _ = said(capsys, tmp_path)
    assert "bound by    n/a: the record holds no diagnosis" in out


def test_a_folder_of_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", events(), distributedInfo={"rank": rank})
    (tmp_path / "notes.json").write_text('{"a": 1}')
    found = told(capsys, tmp_path)
    assert [trace["rank"] for trace in found["traces"]] == [0, 1]
    assert len(found["ranks"]) == 1
    assert found["ranks"][0]["straggler"] is None
    (skipped,) = found["skipped"]
    assert "notes.json: it has no traceEvents" in skipped
    assert "ranks 0, 1 together" in said(capsys, tmp_path)[0]


def test_files_without_ranks_are_numbered_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write(tmp_path / name, events()) for name in ("b.json", "a.json")]
    found = told(capsys, *paths)["traces"]
    assert [(trace["rank"], Path(trace["path"]).name) for trace in found] == [
        (0, "b.json"),
        (1, "a.json"),
    ]
    assert "rank        numbered by the order of the files" in said(capsys, *paths)[0]


def test_a_cut_file_is_analysed_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t.json", events())
    path.write_bytes(path.read_bytes()[:-700])
    out, _ = said(capsys, path)
    assert "compute" in out
    assert "note        the file is cut off" in out


def test_every_bad_path_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    out, err = said(capsys, tmp_path / "none.json", tmp_path / "empty", code=2)
    assert out == ""
    assert "none.json: there is no such file or directory" in err
    assert "empty: neither a job's directory" in err
    (tmp_path / "bad.json").write_bytes(b"\0\1\2")
    good = write(tmp_path / "good.json", events())
    out, err = said(capsys, good, tmp_path / "bad.json", code=2)
    assert out == ""
    assert "bad.json: it is no JSON" in err
    assert "Traceback" not in err


def test_a_folder_whose_files_are_no_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text("[1, 2")
    (tmp_path / "b.json").write_text("{}")
    _, err = said(capsys, tmp_path / "b.json", code=2)
    assert "b.json: it has no traceEvents" in err
    (tmp_path / "a.json").unlink()
    _, err = said(capsys, tmp_path, code=2)
    assert "b.json: it has no traceEvents" in err


def test_nothing_asked_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, code=2)
    assert "give a job's directory, a trace, or a folder of traces" in err


def test_every_figure_has_its_definition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = said(capsys, "--definitions")
    for name in ("span_us", *device.SHARES, *PARTS):
        assert DEFINITIONS[name]
        assert f"{name}: " in out
    found = told(capsys, write(tmp_path / "t.json", events()))
    assert found["definitions"] == DEFINITIONS
    tables = {"kernels", "operators", "idle_stretches", "syncs", "collectives", "bound", "steps"}
    assert tables <= found["traces"][0].keys() & DEFINITIONS.keys()


def test_no_torch_is_imported(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", events())
    code = (
        "import sys; from paceline.__main__ import main; code = main(['diagnose', sys.argv[1]]); "
        "sys.exit(code or ('torch' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "bound by    compute" in done.stdout


def test_the_command_reads_what_a_job_of_its_own_traced(
    command: Command, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    traced = ["profiler=schedule", "profiler.wait=20", "profiler.active=3"]
    ran = command(*tiny, *traced)
    assert ran.code == 0, ran.err
    directory = ran.job()["job"]["dir"]
    found = told(capsys, directory)
    assert found["jobs"][0]["diagnosis"] == ran.job()["diagnosis"]
    assert found["skipped"] == []
    (trace,) = found["traces"]
    assert trace["rank"] == 0
    assert len(trace["steps"]["numbers"]) == 3
    assert trace["idle_pct"] is None
    assert sum(trace["main_thread"][name] for name in PARTS) == pytest.approx(100)
