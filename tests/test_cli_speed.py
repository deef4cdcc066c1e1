"""P22: what only looks or completes imports no torch, and so is faster than importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.__main__ import config_dir

PACELINE = str(Path(sys.executable).with_name("paceline"))


def completion(line: str) -> dict[str, str]:
    """What bash sets when somebody presses tab at the end of `line`."""
    point = str(len(line))
    return {"COMP_LINE": line, "COMP_POINT": point, "COMP_TYPE": "9", "COMP_KEY": "9"}


QUERY = ["--shell-completion", "query=bash"]

CASES = {
    "--help": (["--help"], {}, "paceline -m repeat=range(3) compile=off,inductor"),
    "--cfg job": (["--cfg", "job"], {}, "steps: 480"),
    "--cfg job with overrides": (["--cfg", "job", "model=mlp"], {}, "inputs: 64"),
    "--hydra-help": (["--hydra-help"], {}, "Hydra"),
    "--version": (["--version"], {}, "Hydra"),
    "--info searchpath": (["--info", "searchpath"], {}, ""),
    "install completion": (["-sc", "install=bash"], {}, "-F hydra_bash_completion paceline"),
    "complete groups": (QUERY, completion("paceline comp"), "compile="),
    "complete options": (QUERY, completion("paceline -m strategy="), "strategy=ddp"),
    "complete keys": (QUERY, completion("paceline compile=off run.see"), "run.seed="),
    "compare --help": (["compare", "--help"], {}, "usage: paceline compare"),
    "report --help": (["report", "--help"], {}, "usage: paceline report"),
    "status --help": (["status", "--help"], {}, "usage: paceline status"),
}


def timed(*command: str, **env: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return time.perf_counter() - start, done


def fastest(*command: str, **env: str) -> float:
    return min(timed(*command, **env)[0] for _ in range(3))


@pytest.fixture(scope="module")
def torch_s() -> float:
    """Seconds that it takes to import torch here and now."""
    return fastest(sys.executable, "-c", "import torch")


@pytest.mark.parametrize(("typed", "env", "said"), CASES.values(), ids=CASES)
def test_no_torch(
    typed: list[str],
    env: dict[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    _, done = timed(sys.executable, "-X", "importtime", PACELINE, *typed, **env)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "paceline.__main__" in imported or "paceline" in imported
    assert not {name for name in imported if name.partition(".")[0] == "torch"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("typed", "env", "said"), CASES.values(), ids=CASES)
def test_faster_than_torch(
    typed: list[str], env: dict[str, str], said: str, torch_s: float
) -> None:
    assert fastest(PACELINE, *typed, **env) < torch_s


def test_completions_are_whole_words() -> None:
    _, done = timed(PACELINE, *QUERY, **completion("paceline compile="))
    assert (done.returncode, done.stderr) == (0, "")
    options = sorted(path.stem for path in (config_dir() / "compile").glob("*.yaml"))
    assert sorted(done.stdout.split()) == [f"compile={option}" for option in options]


def test_bash_completes(tmp_path: Path) -> None:
    """The installed text, in a real bash, as a key press would have it."""
    script = """
eval "$(paceline -sc install=bash)"
COMP_WORDS=(paceline optimizer=) COMP_CWORD=1 COMP_LINE="paceline optimizer=" COMP_POINT=19
hydra_bash_completion
printf '%s\\n' "${COMPREPLY[@]}"
"""
    folder = str(Path(PACELINE).parent)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    _, done = timed("bash", "--norc", "-c", script, PATH=path)
    assert done.stdout.split() == ["optimizer=adamw", "optimizer=sgd"], done.stderr
