"""`paceline doctor` measures this machine for real, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from paceline.controller.doctor import disk, host, loader
from tests.conftest import Command

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "paceline"]


def answered(code: str, **env: str) -> Any:
    """What a script prints as JSON; the forkserver is its own."""
    stop = "from paceline.controller import launch; launch.stop_forkserver()"
    whole = f"{textwrap.dedent(code)}\n{stop}"
    done = subprocess.run(
        [sys.executable, "-c", whole],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.distributed
class TestOneRun:
    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, module_command: Command) -> dict[str, Any]:
        done = module_command("doctor", "--quick", "--json")
        assert done.code == 0, done.out + done.err
        assert done.err == ""
        assert list(done.cwd.iterdir()) == []
        module_command.assert_nothing_left()
        found: dict[str, Any] = json.loads(done.out)
        return found

    def test_every_topic_has_a_line(self, made: dict[str, Any]) -> None:
        names = {line["name"] for line in made["lines"]}
        wanted = {"python", "packages", "torch", "gpu", "cores", "shared memory", "open files"}
        wanted |= {"all-reduce", "c++ compiler", "inductor", "loader", "disk write", "fsync"}
        assert wanted | {"slurm"} <= names
        assert made["counts"]["missing"] == 0

    def test_what_is_slow_says_the_way_out(self, made: dict[str, Any]) -> None:
        slow = [line for line in made["lines"] if line["state"] == "slow"]
        assert len(slow) == made["counts"]["slow"]
        assert all(line["why"] and line["way_out"] for line in slow)

    def test_versions_are_those_that_are_installed(self, made: dict[str, Any]) -> None:
        assert made["facts"]["torch"]["version"] == str(torch.__version__)
        assert made["facts"]["cores"]["usable"] == len(os.sched_getaffinity(0))

    def test_ranks_talked(self, made: dict[str, Any]) -> None:
        facts = made["facts"]["collectives"]
        if torch.cuda.device_count() == 1:
            pytest.skip("one device, so one rank")
        assert facts["world_size"] == max(2, torch.cuda.device_count())
        times = [row["seconds"] for row in facts["rows"]]
        assert facts["rows"][0]["bytes"] == 4 and facts["rows"][-1]["bytes"] == 64 * 2**20
        assert times[0] < times[-1]
        assert all(row["repeats"] >= 5 for row in facts["rows"])

    def test_the_loader_delivered_with_and_without_workers(self, made: dict[str, Any]) -> None:
        rows = made["facts"]["loader"]["rows"]
        assert [row["workers"] for row in rows] == [0, made["facts"]["cores"]["usable"]]
        assert all(row["batches_per_s"] > 0 for row in rows)

    def test_a_compiler_ran(self, made: dict[str, Any]) -> None:
        assert made["facts"]["compiler"]["compile_s"] > 0


@pytest.mark.distributed
@pytest.mark.slow
def test_the_ranks_of_a_launcher_are_those_at_hand(command: Command) -> None:
    done = command.wait(command.start("doctor", "--quick", program=[sys.executable, *TORCHRUN]))
    assert done.code == 0, done.err
    assert done.out.count("all-reduce     2 ranks on 1 host") == 1
    assert done.out.count(" missing\n") == 1


def test_a_rank_that_does_not_come_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    facts = answered(
        """
        import json
        from paceline.controller.doctor import collectives
        print(json.dumps(collectives.between_launched(True, 1)))
        """,
        RANK="0",
        WORLD_SIZE="3",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )
    assert facts["error"] == "rank 0: ranks 1, 2 of 3 didn't come within 1 s"


ASKED = """
    import json, sys
    from dataclasses import asdict
    from paceline.controller.doctor.asked import ask
    sys.path.insert(0, {folder!r})
    import strange

    given = [("answer",), ("raise",), ("die",), ("hang",)]
    print(json.dumps([asdict(a) for a in ask(strange.be, given, 2)]))
"""

STRANGE = """
import os, signal, subprocess, time
from pathlib import Path

def be(how):
    if how == "raise":
        raise ValueError("no more\\nof this")
    if how == "die":
        os.write(2, b"some last words\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        child = subprocess.Popen(["sleep", "77"])
        Path(__file__).with_name("child").write_text(str(child.pid))
        time.sleep(60)
    return {"how": how}
"""


def test_what_does_not_answer_is_ended_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "strange.py").write_text(STRANGE.replace("\\\\", "\\"))
    code = ASKED.format(folder=str(tmp_path))
    answer, raised, died, hung = answered(code, PYTHONPATH=str(tmp_path))
    assert answer == {"value": {"how": "answer"}, "why": None}
    assert raised["why"] == "ValueError: no more"
    assert died["why"] == "it ended by SIGKILL: some last words"
    assert hung["why"] == "it gave no answer within 2 s and was ended"
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_a_torch_that_breaks_is_a_line_and_the_rest_goes_on(command: Command) -> None:
    broken = command.cwd / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise OSError('libcudart.so.13 is not there')")
    done = command("doctor", "--quick", "--json", env={"PYTHONPATH": str(broken)})
    assert (done.code, done.err) == (1, "")
    lines = {line["name"]: line for line in json.loads(done.out)["lines"]}
    assert lines["torch"]["state"] == "missing"
    assert lines["torch"]["why"].endswith("OSError: libcudart.so.13 is not there")
    assert "disk write" in lines and "loader" not in lines


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_stopped_in_the_middle_it_leaves_nothing(
    command: Command, number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    process = command.start("doctor", env={"TMPDIR": str(temporary)})
    assert process.stdout is not None
    for line in process.stdout:  # torch is imported, so that processes are there
        if line.startswith("ok       torch"):
            break
    time.sleep(0.3)
    process.send_signal(number)
    done = command.wait(process)
    assert done.code == (130 if number == signal.SIGINT else -number)
    assert number == signal.SIGKILL or "interrupted" in done.err
    command.assert_nothing_left()
    assert list(command.cwd.iterdir()) == []
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert number == signal.SIGKILL or not left


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dir", "nowhere"], "--dir nowhere: there is no such directory"),
        (["--nproc", "0"], "give 1 or more"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
    ids=["dir", "nproc", "unknown"],
)
def test_bad_arguments(command: Command, words: list[str], said: str) -> None:
    done = command("doctor", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_ranks_of_a_launcher_can_not_be_asked_for(command: Command) -> None:
    done = command("doctor", "--nproc", "2", env={"RANK": "0", "WORLD_SIZE": "2"})
    assert done.code == 2
    assert "--nproc 2: the ranks are those of the launcher" in done.err


def test_no_torch_in_the_command() -> None:
    code = "import sys, paceline.controller.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    facts = disk.disk_facts(tmp_path, quick=True)
    assert facts["error"] is None
    assert facts["written_bytes"] == disk.QUICK_SIZE
    assert facts["write_s"] > 0 and facts["fsync_s"] > 0 and facts["small_fsync_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_takes_no_files_says_why() -> None:
    facts = disk.disk_facts(Path("/sys"), quick=True)
    assert facts["error"] or facts["written_bytes"] is None
    assert facts["file_system"] == "sysfs"


def test_quotas_of_both_kinds_of_cgroup(tmp_path: Path) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    (root / "a/b").mkdir(parents=True)
    (root / "a/cpu.max").write_text("250000 100000\n")
    (root / "a/b/cpu.max").write_text("max 100000\n")
    proc.write_text("0::/a/b\n")
    assert list(host.quotas(proc, root)) == [2.5]
    old = root / "cpu,cpuacct/c"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("150000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    proc.write_text("4:cpu,cpuacct:/c\n5:memory:/a\n")
    assert list(host.quotas(proc, root)) == [1.5]
    assert list(host.quotas(tmp_path / "not there", root)) == []


def test_numbers_of_workers() -> None:
    assert loader.counts(6, False, None) == [0, 1, 2, 4, 6]
    assert loader.counts(6, True, None) == [0, 6]
    assert loader.counts(1, False, None) == [0, 1]
    assert loader.counts(4, False, loader.in_flight_bytes(2)) == [0, 1]


def test_what_is_installed_fits() -> None:
    facts = host.packages_facts()
    named = {one["name"]: one for one in facts["packages"]}
    assert named["torch"]["version"] == str(torch.__version__)
    assert all(one["fits"] for one in facts["packages"])
    assert "pytest" not in named  # an extra
