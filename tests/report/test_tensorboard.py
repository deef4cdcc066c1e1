"""Scalars written are the scalars that TensorBoard reads back."""

import datetime
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from paceline.record.schema import empty_record
from paceline.report import tensorboard
from tests.conftest import Command

START = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def put_steps(directory: Path, count: int = 6) -> dict[str, Any]:
    steps = {
        "step": np.arange(count),
        "tag": np.array([1, *[0] * (count - 1)]),
        "start_s": 1e6 + 0.5 * np.arange(count),
        "step_s": np.array([1.0, *[0.25, 0.5] * count])[:count],
        "phase_s": np.zeros((count, 2)),
        "loss": np.array([*np.linspace(5, 4, count - 1), np.nan]),
        "phases": np.array(["forward", "data_wait"]),
        "tags": np.array(["steady", "warmup"]),
    }
    steps["phase_s"][:, 1] = 0.2 * steps["step_s"]
    np.savez(directory / "steps.npz", **steps)  # type: ignore[arg-type]
    return steps


def made() -> dict[str, Any]:
    record = empty_record()
    record["job"]["started_at"] = START.isoformat()
    record["ledger"]["phases_s"] |= {"startup": 2.0, "build": 3.0}
    record["throughput"]["steady_units_per_s"] = 1000.0
    record["numerics"]["eval_loss"] = 3.75
    return record


def read_back(directory: Path) -> dict[str, list[Any]]:
    events = EventAccumulator(str(directory / "tb"))
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    steps = put_steps(tmp_path)
    tensorboard.write(tmp_path, made(), units_per_step=512)
    found = read_back(tmp_path)
    assert set(found) == {"loss", "step_s", "units_per_s", "data_wait_share", "eval_loss"}
    assert [e.step for e in found["step_s"]] == list(range(6))
    assert [e.value for e in found["step_s"]] == pytest.approx(steps["step_s"])
    assert [e.value for e in found["loss"]] == pytest.approx(steps["loss"][:-1])  # nan: no point
    assert [e.value for e in found["units_per_s"]] == pytest.approx(512 / steps["step_s"])
    assert [e.value for e in found["data_wait_share"]] == pytest.approx([0.2] * 6)
    assert [(e.step, e.value) for e in found["eval_loss"]] == [(5, 3.75)]


def test_wall_times_begin_when_the_steps_did(tmp_path: Path) -> None:
    put_steps(tmp_path)
    tensorboard.write(tmp_path, made())
    times = [e.wall_time for e in read_back(tmp_path)["step_s"]]
    first_end = START.timestamp() + 2 + 3 + 1
    assert times == pytest.approx(
        [first_end, *(first_end + x for x in (-0.25, 0.5, 0.75, 1.5, 1.75))]
    )


def test_without_a_start_the_file_time_is_the_end(tmp_path: Path) -> None:
    put_steps(tmp_path)
    record = made()
    record["job"]["started_at"] = None
    tensorboard.write(tmp_path, record)
    written = (tmp_path / "steps.npz").stat().st_mtime
    assert read_back(tmp_path)["step_s"][-1].wall_time == pytest.approx(written, abs=1e-3)


def test_units_per_step_come_from_the_record(tmp_path: Path) -> None:
    steps = put_steps(tmp_path)
    tensorboard.write(tmp_path, made())  # 1000 / s x mean of .25 .5 .25 .5 .25 = 350 a step
    found = [e.value for e in read_back(tmp_path)["units_per_s"]]
    assert found == pytest.approx(350 / steps["step_s"])
    record = made()
    record["throughput"]["units_per_step"] = 400
    tensorboard.write(tmp_path, record)
    found = [e.value for e in read_back(tmp_path)["units_per_s"]]
    assert found == pytest.approx(400 / steps["step_s"])


def test_writing_again_replaces(tmp_path: Path) -> None:
    put_steps(tmp_path)
    for _ in range(2):
        tensorboard.write(tmp_path, made())
    assert len(list((tmp_path / "tb").iterdir())) == 1
    assert len(read_back(tmp_path)["loss"]) == 5


def test_unknown_figures_have_no_points(tmp_path: Path) -> None:
    put_steps(tmp_path)
    record = made()
    record["numerics"]["eval_loss"] = "nan"
    record["throughput"]["steady_units_per_s"] = None
    tensorboard.write(tmp_path, record)
    assert set(read_back(tmp_path)) == {"loss", "step_s", "data_wait_share"}


def test_a_job_without_steps(tmp_path: Path) -> None:
    tensorboard.write(tmp_path, made())
    assert list(tmp_path.iterdir()) == []
    put_steps(tmp_path, count=2)
    with np.load(tmp_path / "steps.npz") as loaded:
        empty = {k: v if k in ("phases", "tags") else v[:0] for k, v in loaded.items()}
    np.savez(tmp_path / "steps.npz", **empty)
    tensorboard.write(tmp_path, made())
    assert read_back(tmp_path) == {}


def test_a_long_run_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MAX_POINTS", 10)
    put_steps(tmp_path, count=25)
    tensorboard.write(tmp_path, made())
    assert [e.step for e in read_back(tmp_path)["step_s"]] == list(range(0, 25, 3))


def test_reports_of_a_running_job_are_points_until_its_steps_are_known(tmp_path: Path) -> None:
    live = tensorboard.Live(tmp_path)
    account = {"step": 1, "steps": 9, "loss": None, "units_per_s": 8.0, "data_wait_share": 0.75}
    live.add(account)
    live.add(account)  # seen twice
    live.add(account | {"step": 3, "loss": 2.5, "data_wait_share": 0.5})
    live.close()
    found = read_back(tmp_path)
    assert [(e.step, e.value) for e in found["data_wait_share"]] == [(1, 0.75), (3, 0.5)]
    assert [(e.step, e.value) for e in found["loss"]] == [(3, 2.5)]
    put_steps(tmp_path)
    tensorboard.write(tmp_path, made())
    assert [e.step for e in read_back(tmp_path)["data_wait_share"]] == list(range(6))


def test_a_disk_that_takes_nothing_costs_no_job(tmp_path: Path) -> None:
    (tmp_path / "tb").write_text("in the way")
    live = tensorboard.Live(tmp_path)
    for step in (1, 2):
        live.add({"step": step, "loss": 1.0, "units_per_s": 8.0, "data_wait_share": 0.5})
    live.close()
    assert (tmp_path / "tb").read_text() == "in the way"


@pytest.mark.slow
def test_a_starved_job_shows_it_while_it_runs(command: Command) -> None:
    words = ["experiment=planted", "data.item_wait_s=0.004", "run.steps=200", "diagnose=ledger"]
    words.append("launch.threads_per_rank=1")
    process = command.start(*words)
    deadline = time.monotonic() + 60
    shares: list[float] = []
    # the first report has the check of the first step in it
    while len(shares) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
        for out in command.cwd.glob("outputs/jobs/*/tb"):
            shares = [e.value for e in read_back(out.parent).get("data_wait_share", [])]
    running = process.poll() is None
    process.send_signal(signal.SIGTERM)
    command.wait(process)
    assert running
    assert shares[-1] > 0.5, shares
