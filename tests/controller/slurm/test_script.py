"""The text of sbatch scripts, held to golden files that a person has read."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.controller.slurm import script
from paceline.controller.slurm.script import Ask

GOLDEN = Path(__file__).with_name("golden")

NOTHING: dict[str, Any] = {
    "partition": None,
    "account": None,
    "qos": None,
    "constraint": None,
    "exclusive": False,
    "gpus_per_node": None,
    "cpus_per_task": "auto",
    "mem": None,
    "time": None,
    "dependency": None,
    "options": {},
    "setup": [],
    "python": None,
    "prefix": None,
    "signal_s": 120,
    "max_requeues": 3,
}
PLAIN = Ask(
    name="gpt-ddp-fp32-off-1a2b3c4d-r0",
    command="paceline -m hydra/launcher=slurm strategy=ddp,fsdp",
    directory=Path("/data/outputs/sweeps/s/gpt-ddp-fp32-off-1a2b3c4d-r0"),
    nodes=(2, 2),
    ranks=2,
    workers=0,
    slurm=NOTHING,
    python="/data/.venv/bin/python",
)
FULL = replace(
    PLAIN,
    nodes=(1, 4),
    ranks=8,
    workers=4,
    slurm=NOTHING
    | {
        "partition": "gpu",
        "account": "lab",
        "qos": "high",
        "constraint": "a100&nvlink",
        "exclusive": True,
        "gpus_per_node": 8,
        "mem": "64G",
        "time": "1-12:00:00",
        "options": {"reservation": "mine", "contiguous": True, "mail_type": "END"},
        "setup": ["module load cuda/12.4", "source env.sh"],
        "prefix": "apptainer exec --nv image.sif",
        "signal_s": 300,
        "max_requeues": 10,
    },
)
SPACES = replace(PLAIN, directory=Path("/data/my outputs/50%"), command="paceline tag='a\nb'")
CASES = {
    "plain": script.job_text(PLAIN),
    "full": script.job_text(FULL),
    "spaces": script.job_text(SPACES),
    "no_requeue": script.job_text(
        replace(PLAIN, nodes=(1, 1), slurm=NOTHING | {"max_requeues": 0, "signal_s": 0})
    ),
    "allocation": script.allocation_text(FULL),
    "cell": script.cell_text(FULL, nodes=2),
    "collector": script.collector_text(FULL),
}


@pytest.mark.parametrize("name", CASES)
def test_text_is_the_golden_one(name: str) -> None:
    assert CASES[name] == (GOLDEN / f"{name}.sh").read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {p.stem for p in GOLDEN.glob("*.sh")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_bash_can_read_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "script.sh"
    path.write_text(CASES[name])
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr


def run(
    text: str, tmp_path: Path, srun: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The script by bash, with stand-ins for the three programs that it calls."""
    programs = {
        "srun": srun,
        "scontrol": 'case $1 in show) echo n1;; *) echo "scontrol $*" >> called;; esac',
    }
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    (tmp_path / "cell/slurm").mkdir(parents=True)
    (tmp_path / "script.sh").write_text(text)
    given = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_JOB_NUM_NODES": "2"}
    given |= {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]"} | environment
    return subprocess.run(
        ["bash", "script.sh"], cwd=tmp_path, env=given, capture_output=True, text=True, timeout=20
    )


class TestWhatItDoes:
    """Run for real by bash; only SLURM's own programs are stand-ins."""

    def text(self, tmp_path: Path, **slurm: Any) -> str:
        given: dict[str, Any] = {"directory": tmp_path / "cell", "python": sys.executable}
        ask = replace(PLAIN, slurm=NOTHING | slurm, **given)
        return script.job_text(ask)

    def phase(self, tmp_path: Path) -> str:
        return (tmp_path / "cell/slurm/phase").read_text().strip()

    def test_one_task_a_node_meets_at_the_first_by_name(self, tmp_path: Path) -> None:
        done = run(self.text(tmp_path), tmp_path, 'printf "%s\n" "$@" > words')
        assert done.returncode == 0, done.stderr
        words = (tmp_path / "words").read_text().splitlines()
        assert "--ntasks-per-node=1" in words and "--nodes=2" in words and "--ntasks=2" in words
        assert re.fullmatch(r"n1:[1-9]\d{3,4}", words[words.index("--meet") + 1])
        assert words[words.index("run") + 1] == str(tmp_path / "cell")

    @pytest.mark.parametrize(
        ("restarts", "requeued"), [("", True), ("2", True), ("3", False), ("7", False)]
    )
    def test_preempted_goes_back_to_the_queue_so_often(
        self, tmp_path: Path, restarts: str, requeued: bool
    ) -> None:
        given = {"SLURM_RESTART_COUNT": restarts} if restarts else {}
        done = run(self.text(tmp_path), tmp_path, "exit 75", **given)
        assert done.returncode == 75
        called = tmp_path / "called"
        assert (called.read_text() == "scontrol requeue 12\n") if requeued else not called.exists()

    @pytest.mark.parametrize("code", [1, 2, 130, 143])
    def test_other_ends_are_not_requeued(self, tmp_path: Path, code: int) -> None:
        done = run(self.text(tmp_path), tmp_path, f"exit {code}")
        assert done.returncode == code
        assert not (tmp_path / "called").exists()

    def test_node_0_has_the_say_not_srun(self, tmp_path: Path) -> None:
        srun = "echo 0 > cell/slurm/exit_code; exit 143"
        assert run(self.text(tmp_path), tmp_path, srun).returncode == 0

    def test_a_word_of_an_earlier_start_is_not_believed(self, tmp_path: Path) -> None:
        text = self.text(tmp_path).replace("code=0\n", "code=0\n", 1)
        (tmp_path / "cell/slurm").mkdir(parents=True)
        (tmp_path / "cell/slurm/exit_code").write_text("0\n")
        (tmp_path / "cell/slurm").rename(tmp_path / "kept")
        (tmp_path / "cell").rmdir()
        done = run(f"cp kept/exit_code cell/slurm/\n{text}", tmp_path, "exit 1")
        assert done.returncode == 1

    def test_setup_that_fails_starts_nothing_and_says_where_it_was(self, tmp_path: Path) -> None:
        done = run(self.text(tmp_path, setup=["false", "true"]), tmp_path, "touch started")
        assert done.returncode == 1
        assert not (tmp_path / "started").exists()
        assert self.phase(tmp_path) == "setup"

    def test_setup_reaches_the_ranks(self, tmp_path: Path) -> None:
        text = self.text(tmp_path, setup=["export MINE=7"])
        assert run(text, tmp_path, "exit $MINE").returncode == 7
        assert self.phase(tmp_path) == "run"

    def test_a_word_before_the_end_is_ignored_until_ranks_take_it(self, tmp_path: Path) -> None:
        srun = 'while [ "$1" != bash ]; do shift; done; shift 4; kill -USR2 $$ $PPID; exit 5'
        assert run(self.text(tmp_path), tmp_path, srun).returncode == 5

    def test_the_task_itself_ignores_it_too(self, tmp_path: Path) -> None:
        words = CASES["plain"].splitlines()
        (task,) = [w for w in words if "exec" in w]
        assert task.strip().startswith('bash -c \'trap "" USR2; exec "$@"\' paceline')
        inner = task.strip().rstrip("\\").strip()
        command = f"{inner} sh -c 'kill -USR2 $$; echo alive'"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20)
        assert done.stdout == "alive\n"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=40))
def test_no_directory_name_breaks_out_of_the_script(name: str) -> None:
    text = script.job_text(replace(PLAIN, directory=Path("/x") / name, command=name))
    (line,) = [i for i, x in enumerate(text.split("\n")) if x.startswith("directory=")]
    code = "\n".join(text.split("\n")[line:]).partition("\n\necho setup")[0]
    done = subprocess.run(
        ["bash", "-c", f'{code}\nprintf %s "$directory"'], capture_output=True, timeout=20
    )
    assert done.stdout.decode() == str(Path("/x") / name)
