"""What counts as the code of a job, in real repositories; and whether it changed in the queue."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline.record import source
from paceline.record.environment import environment
from paceline.record.schema import empty_record

ROOT = Path(__file__).parents[2]
UNKNOWN = {"commit": None, "dirty": None}


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        for key in ("user.name", "user.email"):
            self.git("config", key, "a@b")
        self.write(".gitignore", "cache/\n")
        self.write("train.py", "lr = 1\n")
        self.commit()

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "one")
        return self.git("rev-parse", "HEAD")

    def dirty(self) -> str | None:
        found: str | None = source.snapshot(self.folder)["dirty"]
        return found


@pytest.fixture
def code(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "code")


def test_a_clean_checkout_is_its_commit(code: Repository) -> None:
    found = source.snapshot(code.folder)
    assert (found["commit"], found["dirty"]) == (code.git("rev-parse", "HEAD"), None)


def test_a_folder_below_counts_all_of_its_repository(code: Repository) -> None:
    below = code.write("models/mine.py", "x = 1\n").parent
    code.commit()
    code.write("train.py", "lr = 2\n")
    assert source.snapshot(below)["dirty"] == code.dirty() is not None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.py", "lr = 2\n"),
        ("new.py", "x = 1\n"),
        ("conf/mine.yaml", "a: 1\n"),
        ("weights.bin", b"\0\1\3"),
        ("ünï code.py", "x = 1\n"),
    ],
)
def test_a_change_is_seen_and_so_is_another(
    code: Repository, name: str, content: str | bytes
) -> None:
    code.write("weights.bin", b"\0\1\2")
    code.commit()
    code.write(name, content)
    first = code.dirty()
    assert first is not None and len(first) == 12
    assert code.dirty() == first
    code.write(name, content * 2)
    assert code.dirty() not in (None, first)


def test_staged_deleted_and_made_executable(code: Repository) -> None:
    code.write("train.py", "lr = 2\n")
    unstaged = code.dirty()
    code.git("add", "-A")
    assert code.dirty() == unstaged  # the same code
    code.git("reset", "-q", "--hard")
    (code.folder / "train.py").chmod(0o755)
    executable = code.dirty()
    (code.folder / "train.py").unlink()
    assert None not in (executable, code.dirty()) and executable != code.dirty()


def test_the_same_code_at_another_time_is_the_same(code: Repository) -> None:
    path = code.write("new.py", "x = 1\n")
    first = code.dirty()
    os.utime(path, (0, 0))
    assert code.dirty() == first


def test_what_is_no_code_does_not_count(code: Repository) -> None:
    code.write("cache/generated.py", "x = 1\n")
    code.write("slurm-12.out", "step 3\n")
    code.write("__pycache__/train.cpython-311.pyc", b"\0")
    code.write("outputs/jobs/a/job.yaml", "name: a\n")
    code.write("outputs/jobs/a/slurm/job.sh", "srun\n")
    code.write("multirun/s/sweep.json", "{}\n")
    code.write("multirun/s/slurm/jobs.json", "{}\n")
    code.write("hydra/0/.hydra/config.yaml", "a: 1\n")
    code.write("hydra/0/left.json", "{}\n")
    assert code.dirty() is None
    code.write("outputs/mine.py", "x = 1\n")
    assert code.dirty() is not None


def test_links_and_large_files(code: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    (code.folder / "nowhere.py").symlink_to("gone.py")
    linked = code.dirty()
    assert linked is not None
    monkeypatch.setattr(source, "READ_BYTES", 10)
    path = code.write("large.json", "1234567890123")
    os.utime(path, ns=(5, 5))
    first = code.dirty()
    path.write_text("abcdefghijklm")
    os.utime(path, ns=(5, 5))
    assert code.dirty() == first != linked  # by size and time, unread
    os.utime(path, ns=(6, 6))
    assert code.dirty() != first


def test_git_as_people_set_it_up_changes_nothing(code: Repository) -> None:
    code.write("train.py", "lr = 2\n")
    plain = code.dirty()
    for key, value in (("color.ui", "always"), ("diff.external", "false"), ("core.pager", "false")):
        code.git("config", key, value)
    assert code.dirty() == plain


def test_nothing_is_known_outside_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    subprocess.run(["git", "init", "-q", "empty"], cwd=tmp_path, check=True)
    for folder in (tmp_path, tmp_path / "missing", tmp_path / "empty"):
        assert source.snapshot(folder).items() >= UNKNOWN.items()


def test_without_git_and_with_one_that_hangs(
    code: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    assert source.snapshot(code.folder) == UNKNOWN | {"paceline": None}
    (tools / "git").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tools / "git").chmod(0o755)
    monkeypatch.setattr(source, "TIME_LIMIT_S", 0.2)
    assert source.snapshot(code.folder) == UNKNOWN | {"paceline": None}


def test_locks_of_others_are_left_alone(code: Repository) -> None:
    (code.folder / ".git" / "index.lock").touch()
    code.write("train.py", "lr = 2\n")
    assert code.dirty() is not None


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout of paceline")
def test_paceline_itself_is_another_repository(code: Repository) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    assert source.snapshot(code.folder)["paceline"]["commit"] == head.stdout.strip()
    here = source.snapshot(ROOT)
    assert (here["commit"], here["paceline"]) == (head.stdout.strip(), None)


def state(commit: str | None, dirty: str | None = None, /, **paceline: Any) -> dict[str, Any]:
    return {"commit": commit, "dirty": dirty, "paceline": paceline or None}


@pytest.mark.parametrize(
    ("submitted", "started", "said"),
    [
        (state("a" * 40), state("a" * 40), []),
        (state("a" * 40, "f00"), state("a" * 40, "f00"), []),
        (state("a" * 40), state("b" * 40), ["code _: commit aaaaaaa -> bbbbbbb"]),
        (state("a" * 40), state("a" * 40, "f00"), ["code _: uncommitted changes differ"]),
        (
            state("a" * 40, "f00"),
            state("b" * 40),
            ["code _: commit aaaaaaa -> bbbbbbb", "code _: uncommitted changes differ"],
        ),
        (state(None), state("b" * 40, "f00"), []),
        (state("a" * 40, "f00"), state(None), []),
        (
            state(None, commit="c" * 40, dirty=None),
            state(None, commit="d" * 40, dirty=None),
            ["paceline _: commit ccccccc -> ddddddd"],
        ),
        (state("a" * 40, commit="c" * 40, dirty=None), state("a" * 40), []),
    ],
)
def test_changed(submitted: dict[str, Any], started: dict[str, Any], said: list[str]) -> None:
    sentences = [text.replace("_", "changed since it was submitted") for text in said]
    assert source.changed(submitted, started) == sentences


def test_the_section_of_a_job_that_waited(code: Repository) -> None:
    submitted = source.snapshot(code.folder)
    code.write("train.py", "lr = 2\n")
    found = source.section(submitted, code.folder)
    assert found == {
        "submitted": submitted,
        "started": source.snapshot(code.folder),
        "changed": ["code changed since it was submitted: uncommitted changes differ"],
    }
    assert empty_record()["environment"] == {"source": None}


def test_the_environment_says_the_same(
    code: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(code.folder)
    clean = environment()
    assert (clean["git_commit"], clean["dirty"]) == (code.git("rev-parse", "HEAD"), False)
    code.write("train.py", "lr = 2\n")
    assert environment()["dirty"] is True
    monkeypatch.chdir(tmp_path)
    outside = environment()
    assert (outside["git_commit"], outside["dirty"]) == (None, None)
