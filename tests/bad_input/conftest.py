"""`refuse(...)`: run a bad command line for real and get what it was told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.__main__ import config_dir

Refuse = Callable[..., list[str]]

WAY_OUT = re.compile(
    r"\b(give|use|write|choose|did you mean|there are|raise|lower|leave|add|begin|make|set|remove|"
    r"repair|change|sweep|it takes none)\b"
)


def options(group: str) -> str:
    """The options of a group as a message lists them."""
    return ", ".join(sorted(path.stem for path in (config_dir() / group).glob("*.yaml")))


def problems_of(message: str) -> list[str]:
    """The problems of a refusal, which must be one message, whole and in our form."""
    head, *lines = message.splitlines()
    number = re.fullmatch(r"paceline: this config cannot run, (\d+) problems?:", head)
    assert number, message
    assert len(lines) == int(number.group(1)), message
    assert len(set(lines)) == len(lines), message
    for line in lines:
        assert line.startswith("  - "), message
        assert re.match(r"  - \S[^;]*: \S", line), line
        assert WAY_OUT.search(line), f"no way out: {line}"
    return [line[4:] for line in lines]


@pytest.fixture(scope="session")
def forks() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forks.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    yield process
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()


@pytest.fixture
def refuse(tmp_path: Path, forks: subprocess.Popen[str]) -> Refuse:
    """`refuse("compile=nope", ...)`: its problems. Asserts exit code 2, one message on stderr, and
    that nothing was started or left behind. `files` are laid out beforehand: path -> text."""

    def run(*argv: str, files: dict[str, str] | None = None) -> list[str]:
        cwd = tmp_path / "cwd"
        cwd.mkdir()
        for name, text in (files or {}).items():
            (cwd / name).parent.mkdir(parents=True, exist_ok=True)
            (cwd / name).write_text(text)
        before = sorted(cwd.rglob("*"))
        out, err = tmp_path / "out", tmp_path / "err"
        asked = {"argv": argv, "cwd": str(cwd), "out": str(out), "err": str(err)}
        assert forks.stdin is not None and forks.stdout is not None
        forks.stdin.write(json.dumps(asked) + "\n")
        forks.stdin.flush()
        answer = json.loads(forks.stdout.readline())
        said = err.read_text()
        assert "Traceback" not in said, said
        assert answer == {"code": 2, "left": []}, (answer, said, out.read_text())
        assert out.read_text() == ""
        assert sorted(cwd.rglob("*")) == before
        return problems_of(said)

    return run
