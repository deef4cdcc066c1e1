"""What differs beside the swept keys is said; what was swept, or isn't known, is not."""

from typing import Any

import pytest

from paceline.compare.hygiene import blocking, differences
from paceline.record.schema import empty_record

HERE = {
    "torch": "2.9.0",
    "python": "3.11.9",
    "cpu": "Xeon x2",
    "gpu": None,
    "host": "here",
    "git_commit": "c0ffee",
    "dirty": False,
    "env": {"OMP_NUM_THREADS": "2"},
}


ON_A_CLUSTER = {"kind": "slurm", "job_id": "7", "restarts": 0, "nodes": "n1", "partition": "main"}


def made(name: str = "a", *overrides: str, threads: Any = 2, **changed: Any) -> dict[str, Any]:
    record = empty_record()
    record["job"] |= {"name": name, "config_hash": name, "overrides": list(overrides)}
    record["environment"] = HERE | changed
    record["effective"] = {"threads_per_rank": threads}
    record["requested"] = {"host_memory": "steady"}
    return record


def test_alike() -> None:
    assert differences([made("a", "compile=off"), made("b", "compile=inductor")]) == []
    assert differences([made()]) == differences([]) == blocking([]) == []


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("torch", "2.10.0", "torch differs: 2.9.0 (a) and 2.10.0 (b)"),
        ("cpu", "Epyc x8", "cpu differs: Xeon x2 (a) and Epyc x8 (b)"),
        ("gpu", "H200 x1", "gpu differs: none (a) and H200 x1 (b)"),
        ("host", "there", "host differs: here (a) and there (b)"),
    ],
)
def test_another_machine_or_torch_blocks(key: str, value: str, shown: str) -> None:
    records = [made("a"), made("b", **{key: value})]
    assert differences(records) == blocking(records) == [shown]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("python", "3.13.1", "python differs: 3.11.9 (a) and 3.13.1 (b)"),
        ("git_commit", None, "git_commit differs: c0ffee (a) and none (b)"),
        ("dirty", True, "dirty differs: false (a) and true (b)"),
        ("env", {}, "env.OMP_NUM_THREADS differs: 2 (a) and not set (b)"),
    ],
)
def test_other_differences_are_noted(key: str, value: Any, shown: str) -> None:
    records = [made("a"), made("b", **{key: value})]
    assert differences(records) == [shown]
    assert blocking(records) == []


def test_different_threads_are_flagged_whatever_made_them_so() -> None:
    records = [made("a", "strategy=single"), made("b", "strategy=ddp", threads=1)]
    (sentence,) = differences(records)
    assert sentence == (
        "threads_per_rank differs: 2 (a) and 1 (b); set launch.threads_per_rank to compare alike"
    )


def test_what_was_swept_differs_on_purpose() -> None:
    records = [
        made("a", "launch.threads_per_rank=2"),
        made("b", "launch.threads_per_rank=1", threads=1, env={"OMP_NUM_THREADS": "1"}),
    ]
    assert differences(records) == []
    for record, memory in zip(records, ("steady", "system"), strict=True):
        record["requested"]["host_memory"] = memory
    (sentence,) = differences(records)
    assert sentence.startswith("host_memory differs: steady (a) and system (b)")
    for record, memory in zip(records, ("steady", "system"), strict=True):
        record["job"]["overrides"].append(f"launch.host_memory={memory}")
    records[0]["environment"]["env"]["MALLOC_TRIM_THRESHOLD_"] = "1"
    assert differences(records) == []


def test_what_ran_counts_before_what_was_asked_for() -> None:
    records = [made("a"), made("b")]
    records[1]["effective"]["host_memory"] = "system"
    assert differences(records)[0].startswith("host_memory differs: steady (a) and system (b)")


def test_what_is_not_known_differs_from_nothing() -> None:
    unknown = made("b")
    unknown["environment"] = {}
    unknown["effective"] = unknown["requested"] = {}
    assert differences([made("a"), unknown]) == []


def test_many_values_and_many_jobs_stay_one_line() -> None:
    records = [made(f"{host}{i}", host=host) for host in "pqrstu" for i in range(3)]
    assert blocking(records) == [
        "host differs: p (p0 and 2 more), q (q0 and 2 more), r (r0 and 2 more) and 3 more values"
    ]


def test_blocking_comes_first() -> None:
    found = differences([made("a"), made("b", python="3.13", torch="2.10")])
    assert [sentence.split()[0] for sentence in found] == ["torch", "python"]


def test_two_checkouts_that_are_dirty_in_different_ways() -> None:
    first, second = ({"started": {"commit": "c0ffee", "dirty": f"{n}ab"}} for n in (1, 2))
    records = [made("a", dirty=True, source=first), made("b", dirty=True, source=second)]
    assert differences(records) == ["dirty differs: 1ab (a) and 2ab (b)"]
    assert differences([records[0], made("c", dirty=True, source=first)]) == []


def test_hosts_that_a_scheduler_chose_have_a_way_out() -> None:
    here, there = made("a"), made("b", host="there")
    (plain,) = differences([here, there])
    assert plain == "host differs: here (a) and there (b)"
    there["job"]["scheduler"] = ON_A_CLUSTER
    (said,) = blocking([here, there])
    assert said == f"{plain}; hydra.launcher.mode=allocation runs all cells on the same nodes"


def test_the_interface_differs_with_the_nodes_on_purpose() -> None:
    """paceline sets it where there are several; by itself it is a difference."""
    several = HERE["env"] | {"GLOO_SOCKET_IFNAME": "eth0"}
    one, two = made("a", "launch.nnodes=1"), made("b", "launch.nnodes=2", env=several)
    assert differences([one, two]) == []
    assert len(differences([made("a"), made("b", env=several)])) == 1
