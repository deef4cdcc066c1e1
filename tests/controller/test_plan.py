"""plan=true: what would run, what is skipped and why; nothing is started, nothing is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

from paceline.__main__ import config_dir
from paceline.controller.plan import CannotRun, Job, cell_directory, make_job
from paceline.controller.show import overrides_apart, print_plan
from paceline.record.schema import empty_record, write_json
from paceline.types import ConfigError
from tests.conftest import Command, Done

SWEEP = [
    "repeat=range(2)",
    "strategy=single,ddp",
    "launch.nproc=1,2",
    "data.global_batch_size=16",
    "run.device=cpu",
    "data.loader.num_workers=3",
    "plan=true",
]


def lines(done: Done, word: str) -> list[list[str]]:
    return [line.split() for line in done.out.splitlines() if word in line]


@pytest.fixture(scope="module")
def planned(module_command: Command) -> Done:
    return module_command("-m", *SWEEP)


class TestOfASweep:
    """P15, P16."""

    def test_it_ends_well_and_makes_nothing(self, planned: Done) -> None:
        assert (planned.code, planned.err) == (0, "")
        assert not list(planned.cwd.iterdir())

    def test_it_lists_every_job(self, planned: Done) -> None:
        jobs = lines(planned, " to run")
        names = [words[0] for words in jobs[:-1]]
        assert len(set(names)) == 6
        assert all(name.startswith(("gpt-single-fp32-off-", "gpt-ddp-fp32-off-")) for name in names)
        assert {name[-3:] for name in names} == {"-r0", "-r1"}

    def test_it_shows_only_what_differs(self, planned: Done) -> None:
        assert lines(planned, "all: ") == [
            ["all:", "data.global_batch_size=16", "run.device=cpu", "data.loader.num_workers=3"]
        ]
        for job in lines(planned, " to run")[:-1]:
            keys = [word.partition("=")[0] for word in job if "=" in word and len(word) > 1]
            assert keys == ["repeat", "strategy", "launch.nproc"]
        assert "plan=True" not in planned.out

    def test_it_shows_ranks_threads_batch_and_memory(self, planned: Done) -> None:
        (job, _) = [w for w in lines(planned, "launch.nproc=2") if w[0].startswith("gpt-ddp")]
        ranks, threads, *words = job[4:-2]
        batch, (need, of, room, unit) = " ".join(words[:-4]), words[-4:]
        assert (ranks, batch) == ("2", "16 = 2 x 8")
        assert int(threads) >= 1
        assert (of, unit) == ("of", "GiB") and 0 < float(need) < float(room)

    def test_cells_that_cannot_run_are_skipped_with_the_reason(self, planned: Done) -> None:
        skipped = [line for line in planned.out.splitlines() if line.startswith("skipped gpt-")]
        assert len(skipped) == 2
        for line in skipped:
            assert line.startswith("skipped gpt-single-fp32-off-")
            assert line.endswith(
                ": strategy=single: it runs one process, launch.nproc=2 asks for 2; use "
                "strategy=ddp, or launch.nproc=1"
            )

    def test_it_counts(self, planned: Done) -> None:
        assert planned.out.splitlines()[-1] == (
            "8 jobs: 6 to run, 0 done, 2 skipped; one at a time, at most 2 ranks, 8 processes with "
            "their loader workers. plan=true: nothing was started."
        )


def test_of_a_job(command: Command) -> None:
    done = command("plan=true", "model.width=65536", "strategy=ddp", "run.device=cpu")
    assert (done.code, done.err) == (0, "")
    assert not list(command.cwd.iterdir())
    (job,) = lines(done, "-r0")
    assert job[0].startswith("gpt-ddp-fp32-off-")
    assert job[1:4] == ["model.width=65536", "strategy=ddp", "run.device=cpu"]
    assert done.out.splitlines()[-1].startswith("1 jobs: 1 to run, 0 done, 0 skipped; ")
    (memory,) = [line for line in done.out.splitlines() if line.startswith("memory of a rank: ")]
    assert memory.startswith("memory of a rank: parameters 768.")  # 4 layers x 12 x width x width
    assert "GiB; does not fit: DDP needs " in memory
    assert memory.endswith("use strategy=fsdp over more ranks")


@pytest.mark.slow
def test_of_a_sweep_that_is_partly_done(command: Command, tmp_path: Path) -> None:
    typed = ["-m", "run.seed=1,2", "hydra.sweep.dir=s", "plan=true"]
    first = command(*typed)
    name = lines(first, "run.seed=1")[0][0]
    record = empty_record()
    record["status"]["state"] = "completed"
    (tmp_path / "s" / name).mkdir(parents=True)
    write_json(tmp_path / "s" / name / "result.json", record)
    before = sorted(tmp_path.rglob("*"))
    done = command(*typed)
    assert sorted(p for p in tmp_path.rglob("*") if p.name != "multirun.yaml") == before
    assert [words[-1] for words in lines(done, "run.seed=")] == ["done", "run"]
    assert "2 jobs: 1 to run, 1 done, 0 skipped" in done.out


def test_a_plan_of_nothing_that_can_run(command: Command) -> None:
    done = command("-m", "strategy=single", "launch.nproc=2,3", "plan=true")
    assert done.code == 0
    assert "2 jobs: 0 to run, 0 done, 2 skipped; one at a time, at most 0 ranks" in done.out


def planned_job(directory: Path, *overrides: str, **options: Any) -> Job:
    OmegaConf.register_new_resolver("paceline.cell", cell_directory, replace=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        root = compose("config", list(overrides), return_hydra_config=True)
    return make_job(root, directory, **options)


class TestAJob:
    def test_it_is_resolved_and_plain(self, tmp_path: Path) -> None:
        job = planned_job(tmp_path / "j", "run.steps=30", "tag=${run.seed}x")
        assert job.config["scheduler"]["total_steps"] == 30
        assert job.config["tag"] == "0x"
        assert "hydra" not in job.config
        assert type(job.config["optimizer"]["betas"]) is list
        assert job.overrides == ["run.steps=30", "tag=${run.seed}x"]  # as typed
        assert (job.name, job.directory) == ("j", tmp_path / "j")
        assert not job.directory.exists()

    def test_what_is_requested(self, tmp_path: Path) -> None:
        words = ["strategy=ddp", "launch.nproc=4", "launch.threads_per_rank=1", "checkpoint=sync"]
        asked = planned_job(tmp_path, *words, "run.device=cpu").requested
        assert (asked["world_size"], asked["threads_per_rank"]) == (4, 1)
        assert asked["data"] == {"option": "python_source", "num_workers": 0}
        assert asked["checkpoint"] == {"option": "sync", "every_steps": 100, "mtbf_s": 86400.0}

    def test_one_that_breaks_a_rule_is_known_all_the_same(self, tmp_path: Path) -> None:
        with pytest.raises(CannotRun) as caught:
            planned_job(tmp_path, "launch.nproc=2", "data.sequence_length=999")
        assert [p.partition("=")[0] for p in caught.value.problems] == [
            "strategy",
            "data.sequence_length",
        ]
        assert caught.value.job.cell.startswith("gpt-single-fp32-off-")

    def test_one_that_is_not_well_formed_is_none(self, tmp_path: Path) -> None:
        typed = ["run.steps=x", "run.seed=${nope}", "launch.nproc=2"]
        with pytest.raises(ConfigError) as caught:
            planned_job(tmp_path, *typed)
        assert not isinstance(caught.value, CannotRun)
        keys = [p.partition("=")[0] for p in caught.value.problems]
        assert keys == ["run.steps", "run.seed", "strategy"]
        with pytest.raises(ConfigError) as caught:  # in a sweep the broken rule would be skipped
            planned_job(tmp_path, *typed, sweep="s")
        assert [p.partition("=")[0] for p in caught.value.problems] == keys[:2]

    def test_its_directory_never_raises(self) -> None:
        empty = OmegaConf.create({"run": "${nope}", "repeat": 0})
        assert cell_directory(_root_=empty) == "unresolved"


class TestWhatIsShown:
    @pytest.fixture
    def jobs(self, tmp_path: Path) -> list[Job]:
        return [
            planned_job(tmp_path / name, "run.seed=1", f"tag={name}", "plan=true") for name in "ab"
        ]

    def test_overrides_apart(self, jobs: list[Job]) -> None:
        assert overrides_apart(jobs) == (["run.seed=1"], [["tag=a"], ["tag=b"]])
        assert overrides_apart(jobs[:1]) == ([], [["run.seed=1", "tag=a"]])
        assert overrides_apart([]) == ([], [])

    def test_the_same_job_twice_is_one(self, jobs: list[Job]) -> None:
        console = Console(width=150)
        with console.capture() as captured:
            print_plan([*jobs, jobs[0]], [(jobs[1], "[bold]why[/bold]")], console)
        shown = captured.get()
        assert "3 jobs: 2 to run, 0 done, 1 skipped" in shown
        assert "skipped b: [bold]why[/bold]" in shown
