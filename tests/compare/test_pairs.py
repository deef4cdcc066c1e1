"""Records from directories, cells from records, pairs of rates measured side by side."""

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paceline.compare import pairs
from paceline.record.schema import empty_record, write_json
from paceline.types import ConfigError


def made(
    cell: str = "a", rate: float | None = 100.0, repeat: int = 0, rerun: int = 0, **job: Any
) -> dict[str, Any]:
    record = empty_record()
    record["job"] |= {
        "name": f"{cell}-r{repeat}",
        "config_hash": f"{cell}123",
        "work_hash": "w",
        "overrides": [],
        "repeat": repeat,
        "rerun": rerun,
    }
    record["job"] |= job
    record["status"]["state"] = "completed"
    record["validity"]["verdict"] = "valid"
    record["throughput"]["sustained_units_per_s"] = rate
    return record


def put(directory: Path, record: dict[str, Any], name: str = "result.json") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / name, record)
    return directory


def states(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(r["job"]["name"], r["status"]["state"]) for r in records]


# ---------------------------------------------------------------- from files


def test_a_finished_job_is_read_back(tmp_path: Path) -> None:
    record = made() | {"numerics": empty_record()["numerics"] | {"loss": [5.0, "nan"]}}
    (read,) = pairs.load([put(tmp_path / "a-r0", record)])
    assert read == record | {"job": record["job"] | {"dir": str(tmp_path / "a-r0")}}


def test_a_record_without_a_newer_section_gets_it_empty(tmp_path: Path) -> None:
    record = made()
    del record["diagnosis"], record["numerics"]
    (read,) = pairs.load([put(tmp_path / "a", record)])
    assert read["diagnosis"]["bound"] is None
    assert read["numerics"]["loss"] == []


def test_a_sweep_stands_for_its_jobs_in_the_order_of_its_list(tmp_path: Path) -> None:
    for name, repeat in [("z", 0), ("b", 0), ("z", 1)]:
        put(tmp_path / f"{name}-r{repeat}", made(name, repeat=repeat))
    put(tmp_path / "z-r0.1", made("z", rerun=1, name="z-r0.1"))
    put(tmp_path / "extra", made("extra", started_at="2026-01-01"))
    (tmp_path / "log").mkdir()
    unlisted = [r["job"]["name"] for r in pairs.load([tmp_path])]
    assert sorted(unlisted) == ["b-r0", "extra-r0", "z-r0", "z-r0.1", "z-r1"]
    write_json(tmp_path / "sweep.json", {"cells": [{"name": n} for n in ("z-r0", "b-r0", "z-r1")]})
    listed = [r["job"]["name"] for r in pairs.load([tmp_path])]
    assert listed == ["z-r0", "z-r0.1", "b-r0", "z-r1", "extra-r0"]


def test_the_same_job_named_twice_counts_once(tmp_path: Path) -> None:
    put(tmp_path / "a-r0", made())
    assert len(pairs.load([tmp_path, tmp_path / "a-r0", tmp_path / "." / "a-r0"])) == 1


def test_what_a_job_left_that_never_ended(tmp_path: Path) -> None:
    job = made()["job"]
    running = put(tmp_path / "a-r0", {"job": job, "status": {"state": "running"}}, "status.json")
    with (running / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (read,) = pairs.load([running])
        assert read["status"]["state"] == "running"
        assert read["job"]["config_hash"] == "a123"
    (read,) = pairs.load([running])
    assert read["status"]["state"] == "interrupted"
    assert read["status"]["message"] == "the controller ended before the job did"
    with (running / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # reading left it free


def test_the_ranks_part_of_a_result_is_no_end(tmp_path: Path) -> None:
    part = made()
    part["status"]["state"] = None
    directory = put(tmp_path / "a", part)
    assert states(pairs.load([directory])) == [("a-r0", "interrupted")]
    put(directory, {"job": part["job"], "status": {"state": "running"}}, "status.json")
    assert states(pairs.load([directory])) == [("a-r0", "interrupted")]


def test_a_result_stands_against_a_status_that_was_never_updated(tmp_path: Path) -> None:
    directory = put(tmp_path / "a", made())
    put(directory, {"job": made()["job"], "status": {"state": "running"}}, "status.json")
    assert states(pairs.load([directory])) == [("a-r0", "completed")]
    (directory / "status.json").write_text("{")
    assert states(pairs.load([directory])) == [("a-r0", "completed")]


def test_a_job_that_only_has_its_job_yaml(tmp_path: Path) -> None:
    frozen = {
        "name": "a-r2",
        "identity": {"config_hash": "a123", "work_hash": "w"},
        "overrides": ["repeat=2"],
        "requested": {"compile": "off"},
        "config": {"repeat": 2, "tag": None, "run": {"seed": 7}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(frozen))
    (read,) = pairs.load([tmp_path])
    job = read["job"]
    assert (job["config_hash"], job["repeat"], job["seed"]) == ("a123", 2, 7)
    assert read["requested"] == {"compile": "off"}
    assert read["status"]["state"] == "interrupted"


@pytest.mark.parametrize("name", ["result.json", "status.json", "job.yaml"])
@pytest.mark.parametrize("text", ['{"job": {"na', "[1]", '{"job": 3, "requested": 3}', "\x00"])
def test_a_broken_file_is_a_row(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (read,) = pairs.load([tmp_path])
    assert (read["status"]["state"], read["status"]["kind"]) == ("failed", "error")
    assert str(tmp_path / name) in read["status"]["message"]
    assert set(read) == set(empty_record())


def test_a_broken_result_keeps_its_place_in_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{")
    put(tmp_path, {"job": made()["job"], "status": {"state": "completed"}}, "status.json")
    (read,) = pairs.load([tmp_path])
    assert (read["status"]["state"], read["job"]["config_hash"]) == ("failed", "a123")


def test_another_schema_is_not_guessed_at(tmp_path: Path) -> None:
    (read,) = pairs.load([put(tmp_path, made() | {"schema": 2})])
    assert read["status"]["state"] == "failed"
    assert "schema 2" in read["status"]["message"]


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(ConfigError) as caught:
        pairs.load([tmp_path, tmp_path / "nowhere"])
    first, second = caught.value.problems
    assert first.startswith(f"{tmp_path}: nothing to compare")
    assert "result.json" in first and "sweep.json" in first
    assert second.startswith(f"{tmp_path / 'nowhere'}: no such directory")


def test_a_broken_sweep_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ConfigError, match=r"sweep\.json: can't be read"):
        pairs.load([tmp_path])


def test_cells_that_were_not_run() -> None:
    entries = [made("a", repeat=i)["job"] for i in range(2)] + [made("b")["job"]]
    entries[2] |= {"state": "skipped", "message": "ddp needs two ranks"}
    missing = pairs.not_run({"cells": entries}, [made("a", repeat=0)])
    assert states(missing) == [("a-r1", "pending"), ("b-r0", "skipped")]
    assert pairs.not_run({"cells": entries}, [*missing, made("a")]) == []
    assert pairs.not_run({}, []) == []


# ---------------------------------------------------------------- cells


def test_cells_hold_repeats_and_reruns() -> None:
    found = pairs.cells(
        [made("b"), made("a"), made("a", repeat=1), made("b", rerun=1, name="b-r0.1")]
    )
    assert [(c.name, c.key, len(c.records)) for c in found] == [("b", "b123", 2), ("a", "a123", 2)]


@pytest.mark.parametrize(
    ("name", "repeat", "cell"),
    [
        ("gpt-ddp-1a2b3c4d-r0", 0, "gpt-ddp-1a2b3c4d"),
        ("gpt-ddp-1a2b3c4d-r12", 12, "gpt-ddp-1a2b3c4d"),
        ("gpt-ddp-1a2b3c4d-r0.3", 0, "gpt-ddp-1a2b3c4d"),
        ("gpt-r50-1a2b3c4d-r1", 1, "gpt-r50-1a2b3c4d"),
        ("mine", 0, "mine"),
    ],
)
def test_the_name_of_a_cell(name: str, repeat: int, cell: str) -> None:
    assert pairs.cells([made(name=name, repeat=repeat)])[0].name == cell


def made_cells(*overrides: list[str]) -> list[pairs.Cell]:
    return pairs.cells([made(str(i), overrides=o) for i, o in enumerate(overrides)])


def test_swept_keys() -> None:
    assert pairs.swept_keys(
        made_cells(
            ["repeat=0", "run.steps=40", "compile=off", "+model.x=1", "strategy=ddp"],
            ["repeat=1", "run.steps=40", "compile=inductor", "+model.x=1"],
        )
    ) == ["compile", "strategy"]
    assert pairs.swept_keys(made_cells(["a=1"])) == []
    assert pairs.settings(["+a.b=x=y", "~c", "++d=", "repeat=3"]) == {
        "a.b": "x=y",
        "c": "deleted",
        "d": "",
    }


def test_the_baseline() -> None:
    found = pairs.cells([made("aa"), made("ab"), made("b", repeat=2)])
    assert pairs.baseline(found, None, None).name == "aa"
    assert pairs.baseline(found, None, {"baseline": "b123"}).name == "b"
    assert pairs.baseline(found, None, {"baseline": "gone"}).name == "aa"
    assert pairs.baseline(found, "ab", {"baseline": "b123"}).name == "ab"
    assert pairs.baseline(found, "b-r2", None).name == "b"  # a job's name
    assert pairs.baseline(found, "b12", None).name == "b"  # a hash's beginning
    with pytest.raises(ConfigError, match=r"no such cell.*aa \(aa123\), ab \(ab123\), b \(b123\)"):
        pairs.baseline(found, "c", None)
    with pytest.raises(ConfigError, match=r"more than one cell.*aa \(aa123\), ab \(ab123\)$"):
        pairs.baseline(found, "a", None)
    with pytest.raises(ConfigError, match="no such cell"):
        pairs.baseline(found, "", None)


# ---------------------------------------------------------------- pairs


def paired(cell: list[dict[str, Any]], base: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return pairs.pairs(*(pairs.cells(records)[0] for records in (cell, base)))


def test_the_same_repeat_and_rerun_pair() -> None:
    cell = [made("c", 110, 0), made("c", 120, 1), made("c", 130, 2, rerun=1)]
    base = [made("b", 102, 2), made("b", 101, 1), made("b", 100, 0), made("b", 99, 2, rerun=1)]
    assert paired(cell, base) == [(110, 100), (120, 101), (130, 99)]


def test_without_its_own_partner_the_nearest_repeat_of_the_same_start() -> None:
    base = [made("b", 100, 0), made("b", None, 1), made("b", 103, 3), made("b", 50, 1, rerun=1)]
    assert paired([made("c", 200, 1)], base) == [(200, 100)]
    assert paired([made("c", 200, 2)], base) == [(200, 103)]
    assert paired([made("c", 200, 9, rerun=1)], base) == [(200, 50)]
    assert paired([made("c", 200, 0, rerun=2)], base) == []


def test_only_rates_that_count_pair() -> None:
    bad = [made("c", 1, i) for i in range(4)]
    bad[0]["status"]["state"] = "interrupted"
    bad[1]["validity"]["verdict"] = "ineffective"
    bad[2]["throughput"]["sustained_units_per_s"] = "nan"
    bad[3]["throughput"]["sustained_units_per_s"] = 0.0
    assert paired(bad, [made("b", 100, i) for i in range(4)]) == []


def test_a_partner_of_the_same_sweep_comes_first() -> None:
    base = [made("b", 100, 0, sweep="s"), made("b", 70, 1, sweep="t")]
    assert paired([made("c", 10, 1, sweep="s"), made("c", 7, 0, sweep="t")], base) == [
        (10, 100),
        (7, 70),
    ]
    assert paired([made("c", 9, 1)], base) == [(9, 70)]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), unique=True, min_size=1),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), unique=True, min_size=1),
)
def test_each_record_pairs_once_within_its_own_start(
    mine: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    def at(starts: list[tuple[int, int]], scale: float) -> list[dict[str, Any]]:
        return [made("x", scale * (1 + r + 10 * s), r, s) for r, s in starts]

    found = paired(at(mine, 1), at(theirs, 100))
    assert len(found) == sum(rerun in {s for _, s in theirs} for _, rerun in mine)
    for rate, base in found:
        assert (rate - 1) // 10 == (base / 100 - 1) // 10
        exact = (rate - 1) % 10, (rate - 1) // 10
        if exact in theirs:
            assert base == 100 * rate


def test_a_record_is_json_all_the_way(tmp_path: Path) -> None:
    (read,) = pairs.load([put(tmp_path, made())])
    assert json.loads(json.dumps(read)) == read
