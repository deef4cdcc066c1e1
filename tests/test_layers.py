"""Arrows point one way (docs/design.md, section 2): read from the imports themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "paceline"
CHOICES = ["model", "data", "loss", "scheduler", "precision", "compile", "strategy"]
CHOICES += ["activation_checkpointing", "comm_hook", "checkpoint", "profiler"]
MAY_IMPORT = {
    "types": set(),
    "config": {"types"},
    "record": {"types"},
    "compare": {"record", "types"},
    "diagnose": {"record", "types"},
    "report": {"compare", "diagnose", "record", "checkpoint", "types"},
    "rank": {"config", "record", "types"},
    "controller": {"report", "compare", "record", "config", "checkpoint", "types"},
    "__main__": {"controller", "report", "types"},
    "__init__": set(),
} | {choice: {"types"} for choice in CHOICES}
ENTRY = {
    ("controller/launch.py", "paceline.rank.main"),
    ("controller/adopt.py", "paceline.rank.main"),
}
"""Where processes are made, the function that they run must be named; nothing else is shared."""

SHELF = "paceline.checkpoint.shelf"
"""The part of a choice that imports no torch: commands may import it. Others, inside functions."""

FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def place(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    here = place(path)
    assert here in MAY_IMPORT, f"{path} is in a place that docs/design.md does not name"
    for name in imports(path):
        if not name.startswith("paceline."):
            continue
        there = name.split(".")[1]
        allowed = there == here or there in MAY_IMPORT[here]
        known_entry = (str(path.relative_to(SOURCE)), name) in ENTRY
        assert allowed or known_entry, f"{path} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_hydra_stays_in_the_controller(path: Path) -> None:
    if place(path) in ("controller", "config", "__main__"):
        return
    assert not [n for n in imports(path) if n.split(".")[0] in ("hydra", "omegaconf")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_commands_know_checkpoints_by_their_files(path: Path) -> None:
    if place(path) not in ("report", "controller"):
        return
    for node in ast.parse(path.read_text()).body:  # imports inside functions are not in it
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("paceline.checkpoint"):
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            assert node.module == SHELF or named == [SHELF], f"{path} imports {named}"


def test_no_drawer_for_everything() -> None:
    bad = {"utils", "helpers", "common", "base", "manager", "misc"}
    assert not [p for p in FILES if bad & set(p.with_suffix("").parts)]


def test_plugin_modules_keep_their_annotations() -> None:
    # above a dataclass in a plugin module this line breaks every Hydra app (1.3.8)
    for path in (ROOT / "launchers").rglob("*.py"):
        assert "from __future__ import annotations" not in path.read_text(), path


def test_the_command_and_the_reports_import_no_torch() -> None:
    modules = [
        "paceline.__main__",
        "paceline.types",
        "paceline.config",
        "paceline.report.commands",
        "paceline.report.checkpoints",
        "paceline.controller.plan",
        "hydra_plugins.paceline_launchers.local",
        "hydra_plugins.paceline_launchers.ladder",
        "hydra_plugins.paceline_launchers.micro_batch",
        "hydra_plugins.paceline_launchers.pairwise",
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
