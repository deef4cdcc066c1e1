"""compare, report and status: what they print, where, and how they exit."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.record.schema import empty_record, write_json
from paceline.report import commands


def made(cell: str, rate: float, repeat: int = 0) -> dict[str, Any]:
    record = empty_record()
    record["job"] |= {
        "name": f"{cell}-r{repeat}",
        "overrides": [f"compile={cell}"],
        "config_hash": f"{cell}123",
        "work_hash": "w",
        "repeat": repeat,
        "rerun": 0,
    }
    record["status"]["state"] = "completed"
    record["validity"]["verdict"] = "valid"
    record["throughput"] |= {
        "unit": "tokens",
        "steady_units_per_s": rate,
        "sustained_units_per_s": rate,
    }
    return record


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three repeats of `off` and the slower `inductor`; a running and a missing job."""
    directory = tmp_path / "sweep"
    records = [made("off", 100 + i, i) for i in range(3)]
    records += [made("inductor", 50 + i, i) for i in range(3)]
    for record in records:
        put(directory, record, "result.json", record)
    running = made("running", 1)
    put(directory, running, "status.json", {"job": running["job"], "status": {"state": "running"}})
    cells = [r["job"] for r in [*records, running, made("later", 1)]]
    write_json(directory / "sweep.json", {"baseline": "off123", "cells": cells})
    return directory


def put(sweep: Path, record: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    directory = sweep / record["job"]["name"]
    (directory / "log").mkdir(parents=True)
    write_json(directory / name, value)


def printed(capsys: pytest.CaptureFixture[str], command: Any, *argv: object) -> Any:
    assert command([*map(str, argv), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_compare(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_table = printed(capsys, commands.compare, sweep)
    rows = {row["name"]: (row["state"], row["verdict"]) for row in made_table["rows"]}
    assert rows == {
        "off": ("completed", "baseline"),
        "inductor": ("completed", "slower"),
        "running": ("interrupted", "invalid"),
        "later": ("pending", "invalid"),
    }
    assert commands.compare([str(sweep)]) == 0
    out = capsys.readouterr().out
    assert "slower" in out and "not run" in out
    assert "interrupted  compile=running: the controller ended before the job did" in out


def test_fail_if_slower(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.compare([str(sweep), "--fail-if", "slower", "--json"]) == 3
    json.loads(capsys.readouterr().out)
    argv = [str(sweep), "--fail-if", "slower", "--baseline", "inductor"]
    assert commands.compare(argv) == 0


def test_compare_of_single_jobs(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_table = printed(capsys, commands.compare, sweep / "inductor-r0", sweep / "off-r0")
    assert made_table["baseline"] == "inductor"
    assert [row["verdict"] for row in made_table["rows"]] == ["baseline", "cant_tell"]


def test_force_ranks_over_machines(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in sweep.glob("*/result.json"):
        record = json.loads(path.read_text())
        record["environment"] = {"host": path.parent.name.partition("-")[0]}
        write_json(path, record)
    assert commands.compare([str(sweep), "--fail-if", "slower"]) == 0
    assert "host differs" in capsys.readouterr().out
    assert commands.compare([str(sweep), "--fail-if", "slower", "--force"]) == 3


@pytest.mark.parametrize(
    ("command", "argv", "said"),
    [
        (commands.compare, ["nowhere"], "nowhere: no such directory"),
        (commands.compare, ["SWEEP", "--baseline", "gone"], "there is no such cell"),
        (commands.compare, ["SWEEP", "--fail-if", "faster"], "invalid choice"),
        (commands.compare, [], "DIR"),
        (commands.report, ["nowhere"], "nowhere: no such directory"),
        (commands.report, ["SWEEP", "SWEEP"], "unrecognized arguments"),
        (commands.status, ["EMPTY"], "nothing to compare in it"),
    ],
)
def test_bad_input(
    sweep: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: Any,
    argv: list[str],
    said: str,
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"SWEEP": str(sweep), "EMPTY": str(tmp_path / "empty")}
    assert command([places.get(word, word) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err and "Traceback" not in err


def test_a_broken_sweep_file(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sweep / "sweep.json").write_text("{")
    assert commands.report([str(sweep)]) == 2
    assert "sweep.json: can't be read" in capsys.readouterr().err


@pytest.mark.parametrize("command", [commands.compare, commands.report, commands.status])
def test_help(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: paceline {command.__name__}")


def test_report(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = printed(capsys, commands.report, sweep / "off-r0")
    assert record["throughput"]["sustained_units_per_s"] == 100
    assert printed(capsys, commands.report, sweep) == printed(capsys, commands.compare, sweep)
    assert commands.report([str(sweep / "off-r0")]) == 0
    assert capsys.readouterr().out.startswith("off-r0  completed, valid")
    assert commands.report([str(sweep)]) == 0
    assert "baseline" in capsys.readouterr().out
    assert commands.report([str(sweep / "running-r0")]) == 0
    assert capsys.readouterr().out.startswith("interrupted running-r0")


def test_status(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = sweep / "running-r0"
    with (running / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert commands.status([str(sweep)]) == 0
        assert "running      starting" in capsys.readouterr().out
        write_json(
            running / "log" / "progress.json",
            {"step": 7, "steps": 40, "loss": 3.0, "units_per_s": 1234.5, "data_wait_share": 0.1},
        )
        assert commands.status([str(sweep)]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        found = printed(capsys, commands.status, sweep)
    assert lines[0] == ["off-r0", "completed", "100", "tokens/s"]
    assert lines[6] == ["running-r0", "running", "step", "7", "of", "40,", "1,234/s"]
    assert lines[7] == ["later-r0", "pending"]
    assert len(lines) == len(found) == 8
    assert (found[6]["step"], found[6]["steps"], found[6]["loss"]) == (7, 40, 3.0)
    assert found[0]["sustained_units_per_s"] == 100
    (running / "log" / "progress.json").write_text("{")  # never seen half written; still no crash
    assert printed(capsys, commands.status, running)[0]["state"] == "interrupted"


def test_status_of_what_ended_badly(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = made("off", 1)
    record["status"] |= {"state": "failed", "kind": "oom", "message": "no [/red] memory\nat all"}
    write_json(sweep / "off-r0" / "result.json", record)
    record = made("off", 101, 1)
    record["validity"]["verdict"] = "ineffective"
    write_json(sweep / "off-r1" / "result.json", record)
    assert commands.status([str(sweep)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [
        "off-r0 failed oom: no [/red] memory",
        "off-r1 completed 101 tokens/s, ineffective",
    ]


def test_no_torch_is_imported() -> None:
    code = (
        "import sys, paceline.report.commands, paceline.report.tensorboard\n"
        "assert 'torch' not in sys.modules and 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
