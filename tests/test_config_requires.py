"""What a choice requires beyond paceline's own parts: looked for without an import, told with the
way to install it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline import config

HERE = __name__


@dataclasses.dataclass(frozen=True)
class Needs:
    size: int

    requires: ClassVar[dict[str, str]] = {
        "json": "never-told",
        "paceline_no_such_module": "some-package",
        "paceline_no_such_parent.module": "other-package",
    }

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size}: give 1 or more")


@dataclasses.dataclass(frozen=True)
class Ours:
    """As if it stood in paceline."""

    requires: ClassVar[dict[str, str]] = {"paceline_no_such_module": "hf"}


Ours.__module__ = "paceline.model.ours"


@dataclasses.dataclass(frozen=True)
class Side:
    requires: ClassVar[dict[str, str]] = {"paceline_side_effect": "side"}


@dataclasses.dataclass(frozen=True)
class Field:
    """Its own field happens to have that name."""

    requires: str = "nothing"


def told(name: str, **fields: Any) -> list[str]:
    return config.check_target("model", {"_target_": f"{HERE}.{name}", **fields})


def test_each_missing_module_is_told_with_what_to_install() -> None:
    where = f"model._target_={HERE}.Needs: needs"
    assert told("Needs", size=1) == [
        f"{where} paceline_no_such_module, which is not installed; pip install some-package, or "
        "choose another model",
        f"{where} paceline_no_such_parent.module, which is not installed; pip install "
        "other-package, or choose another model",
    ]


def test_a_choice_of_ours_names_its_extra() -> None:
    (problem,) = told("Ours")
    assert problem == (
        f"model._target_={HERE}.Ours: needs paceline_no_such_module, which is not installed; "
        "pip install 'paceline[hf]', or choose another model"
    )


def test_it_is_told_beside_all_other_problems() -> None:
    assert len(told("Needs", size=0, sice=3)) == 4
    assert told("Needs", size=0)[-1] == "model.size=0: give 1 or more"


def test_nothing_is_imported_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(told("Side")) == 1
    (tmp_path / "paceline_side_effect.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert told("Side") == []
    assert "paceline_side_effect" not in sys.modules


def test_a_field_of_that_name_is_only_a_field() -> None:
    assert told("Field", requires="x") == []
