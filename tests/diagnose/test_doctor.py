"""What measured facts come to, by figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.diagnose.doctor import Line, lines
from paceline.diagnose.doctor.machine import bus_bytes_per_s

MIB = 1024**2

TORCH: dict[str, Any] = {
    "error": None,
    "version": "2.13.0",
    "cuda_build": None,
    "hip_build": None,
    "gloo": True,
    "devices": [],
    "cuda_error": None,
    "nccl": None,
    "driver": None,
    "driver_cuda": None,
    "gpu_seen": False,
}
CUDA = TORCH | {"cuda_build": "13.0"}
H200 = {"name": "NVIDIA H200", "gib": 139.8}

CORES = {"cpu": "a CPU", "machine": 8, "usable": 4, "quota": None, "others": 0.1, "load": 0.2}

LIMITS: dict[str, Any] = {
    "shared_bytes": 64 * MIB,
    "shared_free_bytes": 64 * MIB,
    "open_files": {"soft": 1024, "hard": 4096},
    "locked_bytes": {"soft": 8 * MIB, "hard": None},
    "infiniband": False,
    "workers": 2,
    "batch_bytes": 18 * MIB,
    "in_flight_bytes": 90 * MIB,
    "in_flight_files": 17,
}

DISK: dict[str, Any] = {
    "directory": "/data",
    "file_system": "ext4",
    "free_bytes": 10**12,
    "written_bytes": 200 * 10**6,
    "write_s": 0.1,
    "fsync_s": 0.1,
    "small_fsync_s": 0.002,
    "needed_bytes": 200 * 10**6,
    "error": None,
}

LOADER = {"batch": [32, 3, 224, 224], "batch_bytes": 10**7, "cores": 4, "error": None}


def only(topic: str, facts: dict[str, Any], name: str) -> Line:
    (line,) = (line for line in lines(topic, facts) if line.name == name)
    return line


def rates(*pairs: tuple[int, float]) -> dict[str, Any]:
    return LOADER | {"rows": [{"workers": n, "batches_per_s": rate} for n, rate in pairs]}


def test_bus_bandwidth_by_hand() -> None:
    assert bus_bytes_per_s(8000, 2.0, 2) == 4000  # one half is sent and one received, once each
    assert bus_bytes_per_s(8000, 2.0, 4) == 6000


class TestGpu:
    def test_a_cpu_build_misses_none(self) -> None:
        line = only("torch", TORCH, "gpu")
        assert (line.state, line.value) == ("ok", "no GPU: CPU build of torch")

    def test_one_that_a_cpu_build_can_not_use(self) -> None:
        line = only("torch", TORCH | {"gpu_seen": True}, "gpu")
        assert line.state == "slow"
        assert "CUDA build" in line.way_out

    def test_none_for_a_cuda_build(self) -> None:
        line = only("torch", CUDA | {"cuda_error": "Found no NVIDIA driver"}, "gpu")
        assert (line.state, line.why) == ("missing", "Found no NVIDIA driver")
        assert "CUDA_VISIBLE_DEVICES" in line.way_out

    def test_a_driver_that_is_too_old(self) -> None:
        line = only("torch", CUDA | {"driver": "550.1", "driver_cuda": "12.4"}, "gpu")
        assert line.state == "missing"
        assert "a driver for CUDA 13.0" in line.way_out

    def test_devices_are_counted(self) -> None:
        facts = CUDA | {"devices": [H200, H200], "driver": "580.1", "driver_cuda": "13.1"}
        line = only("torch", facts, "gpu")
        assert (line.state, line.value) == ("ok", "2 x NVIDIA H200 140 GiB")
        assert only("torch", facts, "nccl").state == "missing"
        assert only("torch", facts | {"nccl": "2.27.3"}, "nccl").state == "ok"
        assert only("torch", facts | {"devices": [H200]}, "nccl").state == "ok"

    def test_torch_that_breaks_says_why(self) -> None:
        (line,) = lines("torch", {"error": "OSError: libcudart.so.13"})
        assert (line.state, line.why) == ("missing", "OSError: libcudart.so.13")


class TestCores:
    def test_a_tenth_of_them_busy_is_slow(self) -> None:
        assert only("cores", CORES, "cores").state == "ok"
        assert only("cores", CORES | {"others": 0.4}, "cores").state == "slow"

    def test_beside_other_ranks_nothing_is_judged(self) -> None:
        line = only("cores", CORES | {"others": None}, "cores")
        assert line.state == "ok"
        assert "n/a" in line.why

    def test_a_quota_below_what_a_job_counts(self) -> None:
        line = only("cores", CORES | {"quota": 2.5}, "cpu quota")
        assert line.state == "slow"
        assert "launch.threads_per_rank=2" in line.way_out
        assert len(lines("cores", CORES | {"quota": 4.0})) == 1


class TestLimits:
    def test_shared_memory_of_a_plain_container(self) -> None:
        line = only("limits", LIMITS, "shared memory")
        assert (line.state, line.value) == ("slow", "64 MiB free of 64 MiB in /dev/shm")
        assert "--shm-size" in line.way_out
        assert only("limits", LIMITS | {"in_flight_bytes": 36 * MIB}, "shared memory").state == "ok"

    def test_open_files(self) -> None:
        assert only("limits", LIMITS, "open files").state == "ok"
        few = only("limits", LIMITS | {"in_flight_files": 2000}, "open files")
        assert (few.state, few.way_out) == ("slow", "ulimit -n 4096")

    def test_locked_memory_matters_to_infiniband_only(self) -> None:
        names = [line.name for line in lines("limits", LIMITS)]
        assert "locked memory" not in names
        assert only("limits", LIMITS | {"infiniband": True}, "locked memory").state == "slow"


class TestDisk:
    def test_rates_by_hand(self) -> None:
        line = only("disk", DISK, "disk write")
        assert (line.state, line.value) == ("ok", "1 GB/s onto the disk, 2 GB/s into its cache")
        assert only("disk", DISK, "fsync").value == "2 ms for 4 KiB"

    def test_a_disk_that_takes_ten_times_the_copy(self) -> None:
        line = only("disk", DISK | {"fsync_s": 1.9}, "disk write")
        assert (line.state, line.why) == (
            "slow",
            "a save that waits for the disk takes 20 times its copy",
        )
        assert "checkpoint=async" in line.way_out

    def test_no_room_and_no_permission(self) -> None:
        (full,) = lines("disk", DISK | {"written_bytes": None, "free_bytes": 1000})
        assert (full.state, full.value) == ("missing", "1000 B free in /data (ext4)")
        (refused,) = lines("disk", DISK | {"error": "Read-only file system"})
        assert (refused.state, refused.why) == ("missing", "Read-only file system")
        assert "--dir" in refused.way_out

    def test_memory_is_told_from_a_disk(self) -> None:
        assert "lost" in only("disk", DISK | {"file_system": "tmpfs"}, "disk write").why


class TestLoader:
    def test_the_best_is_named(self) -> None:
        (line,) = lines("loader", rates((0, 10), (1, 9), (2, 20)))
        assert line.state == "ok"
        assert line.value == "20.0 batches/s of 32 x 3 x 224 x 224 float32 with 2 workers"
        assert line.table[-1] == ["2", "20.0", "200 MB/s"]

    def test_workers_that_slow_it(self) -> None:
        (line,) = lines("loader", rates((0, 10), (1, 5), (2, 8.9)))
        assert (line.state, line.value.endswith("with 0 workers")) == ("slow", True)
        assert "num_workers=0" in line.way_out

    def test_less_than_it_scatters_is_not_slow(self) -> None:
        (line,) = lines("loader", rates((0, 10), (2, 9.1)))
        assert line.state == "ok"

    def test_one_core_has_no_use_for_workers(self) -> None:
        (line,) = lines("loader", rates((0, 10), (1, 5)) | {"cores": 1})
        assert line.state == "ok"


class TestCollectives:
    def test_a_table_over_sizes(self) -> None:
        rows = [
            {"bytes": 4, "repeats": 100, "seconds": 5e-5},
            {"bytes": 64 * MIB, "repeats": 5, "seconds": 64 * MIB / 1e9},
        ]
        facts = {"world_size": 4, "error": None, "hosts": 2, "backend": "gloo", "rows": rows}
        (line,) = lines("collectives", facts)
        assert line.value == "4 ranks on 2 hosts, gloo: 50 us for 4 B, 1.5 GB/s of bus for 64 MiB"
        assert line.table[2] == ["64 MiB", "67.1 ms", "1.5 GB/s", "5"]
        assert (line.state, line.why[:3]) == ("ok", "n/a")

    def test_one_rank_has_nobody_to_talk_to(self) -> None:
        (line,) = lines("collectives", {"world_size": 1, "error": None, "rows": []})
        assert line.state == "ok"

    def test_who_did_not_come(self) -> None:
        said = "rank 0: rank 1 of 2 didn't come within 30 s"
        (line,) = lines("collectives", {"world_size": 2, "error": said, "rows": []})
        assert (line.state, line.why) == ("missing", said)
        assert "every rank" in line.way_out


def test_packages_that_do_not_fit() -> None:
    wrong = {"name": "rich", "needs": ">=13.7", "version": "12.0", "fits": False}
    right = {"name": "numpy", "needs": ">=1.26", "version": "2.0", "fits": True}
    facts: dict[str, Any] = {"python": "3.11.7", "requires_python": ">=3.11", "python_fits": True}
    line = only("packages", facts | {"packages": [wrong, right]}, "packages")
    assert (line.state, line.value) == ("missing", "1 of 2 as required")
    assert line.way_out == 'pip install "rich>=13.7"'
    assert only("packages", facts | {"packages": [right]}, "packages").state == "ok"
    old = only("packages", facts | {"python_fits": False, "packages": [right]}, "python")
    assert old.state == "missing"


@pytest.mark.parametrize(
    ("facts", "state", "said"),
    [
        ({"path": "/usr/bin/g++", "version": "g++ 12", "error": None}, "ok", "in 4.0 s on cpu"),
        ({"path": None, "version": None, "error": "InvalidCxxCompiler: none"}, "missing", ""),
    ],
    ids=["there", "not there"],
)
def test_a_compiler(facts: dict[str, Any], state: str, said: str) -> None:
    facts = {"asked": None, "compile_s": 4.0, "device": "cpu"} | facts
    found = lines("compiler", facts)
    assert [line.state for line in found] == [state, state]
    assert said in found[1].value
    assert state == "ok" or "g++" in found[1].way_out


def test_no_slurm_is_no_fault() -> None:
    facts: dict[str, Any] = {"sbatch": None, "srun": None, "sinfo": None}
    facts |= {"job": None, "nodes": {}, "error": None}
    assert lines("slurm", facts)[0].state == "ok"
    there = facts | dict.fromkeys(("sbatch", "srun", "sinfo"), "/bin/x") | {"job": "12"}
    (line,) = lines("slurm", there | {"nodes": {"idle": 3, "down": 1}})
    assert (line.state, line.why) == ("ok", "nodes: 3 idle, 1 down")
    assert "inside job 12" in line.value
    (line,) = lines("slurm", there | {"error": "sinfo gave no answer within 5 s"})
    assert line.state == "missing"
    said = "sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host"
    (line,) = lines("slurm", there | {"error": said})  # commands without a cluster
    assert (line.state, line.why) == ("ok", "n/a: no cluster is configured on this machine")
