"""Which code a job ran: the commit and what differed from it, when submitted and when started."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIME_LIMIT_S = 10.0
"""For one repository; a slow file system must not hold up a job."""

READ_BYTES = 10_000_000
"""An untracked file that is larger counts by its size and time, unread."""

CODE = (
    *(".py", ".pyi", ".pyx", ".pxd", ".so", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp"),
    *(".cu", ".cuh", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini"),
)
"""Endings of untracked files that count: logs and data come and go beside a running job."""

LEFT_BY_JOBS = ("job.yaml", "status.json", "result.json", "sweep.json", "multirun.yaml", ".hydra")
"""A folder with one of these is a job's or a sweep's own: what lies in it is no code."""

OURS = Path(__file__).parent


def snapshot(folder: Path) -> dict[str, Any]:
    """`commit` of the repository that `folder` is in, and `dirty`: a short hash over all that
    differs from it, null when nothing does. Both null without git, a repository or a commit, and
    when git takes longer than TIME_LIMIT_S. `paceline`: the same of the checkout that paceline runs
    from, null where that isn't another one. Never raises.

    What differs: changes of tracked files (`git diff HEAD`), and untracked files that are not
    ignored and look like code.
    """
    own = _repository(OURS)
    there = _repository(folder)
    another = own is not None and own != there and _tracks(OURS)
    return _state(there) | {"paceline": _state(own) if another else None}


def section(submitted: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The `environment.source` section of a record, to be made when a job starts that waited in a
    queue. `submitted`: the snapshot in its frozen job.yaml."""
    started = snapshot(folder)
    return {"submitted": submitted, "started": started, "changed": changed(submitted, started)}


def changed(submitted: dict[str, Any], started: dict[str, Any]) -> list[str]:
    """A sentence for each way in which the code that started isn't what was submitted; none where
    one of the two isn't known."""
    both = [("code", submitted, started), ("paceline", submitted["paceline"], started["paceline"])]
    found = []
    for what, was, now in both:
        if was is None or now is None or was["commit"] is None or now["commit"] is None:
            continue
        says = f"{what} changed since it was submitted"
        if was["commit"] != now["commit"]:
            found.append(f"{says}: commit {was['commit'][:7]} -> {now['commit'][:7]}")
        if was["dirty"] != now["dirty"]:
            found.append(f"{says}: uncommitted changes differ")
    return found


def _state(repository: Path | None) -> dict[str, str | None]:
    if repository is not None:
        deadline = time.monotonic() + TIME_LIMIT_S
        try:
            commit = _git(repository, deadline, "rev-parse", "HEAD").decode().strip()
            return {"commit": commit, "dirty": _dirty(repository, deadline)}
        except (OSError, subprocess.SubprocessError):
            pass
    return {"commit": None, "dirty": None}


def _dirty(repository: Path, deadline: float) -> str | None:
    # --full-index: a changed binary file is there by the hash of its content
    plain = ("--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
    diff = _git(repository, deadline, "diff", *plain, "HEAD")
    names = _git(repository, deadline, "ls-files", "--others", "--exclude-standard", "-z")
    untracked = [os.fsdecode(name) for name in sorted(names.split(b"\0")) if name]
    files = list(_code(repository, untracked))
    if not diff and not files:
        return None
    found = hashlib.sha256(diff)
    for name in files:
        found.update(b"\0" + os.fsencode(name) + b"\0" + _content(repository / name))
    return found.hexdigest()[:12]


def _code(repository: Path, names: list[str]) -> Iterator[str]:
    of_a_job: dict[Path, bool] = {repository: False}

    def inside(folder: Path) -> bool:
        if folder not in of_a_job:
            marked = any((folder / mark).exists() for mark in LEFT_BY_JOBS)
            of_a_job[folder] = marked or inside(folder.parent)
        return of_a_job[folder]

    for name in names:
        path = repository / name
        if path.suffix in CODE and not inside(path.parent):
            yield name


def _content(path: Path) -> bytes:
    """The hash of what a file holds; that of where a link points to."""
    if path.is_symlink():
        return os.fsencode(os.readlink(path))
    about = path.stat()
    if about.st_size > READ_BYTES:
        return f"{about.st_size} {about.st_mtime_ns}".encode()
    return hashlib.sha256(path.read_bytes()).digest()


def _repository(folder: Path) -> Path | None:
    """The top of the checkout that `folder` is in; None outside of one, and without git."""
    deadline = time.monotonic() + TIME_LIMIT_S
    try:
        top = _git(folder, deadline, "rev-parse", "--show-toplevel")
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(os.fsdecode(top.rstrip(b"\n")))


def _tracks(folder: Path) -> bool:
    """Is it a part of its repository? Not so in a virtual environment inside of some checkout."""
    deadline = time.monotonic() + TIME_LIMIT_S
    try:
        return bool(_git(folder, deadline, "ls-files", "."))
    except (OSError, subprocess.SubprocessError):
        return False


def _git(folder: Path, deadline: float, *words: str) -> bytes:
    """What git prints. It takes no locks: others may use the checkout at the same time."""
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=max(0.1, deadline - time.monotonic()),
        check=True,
    )
    return done.stdout
