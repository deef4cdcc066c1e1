"""config.check of one target: what passes, and what is told of what doesn't."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline import config

HERE = __name__


@dataclasses.dataclass(frozen=True)
class Inner:
    workers: int
    pin: bool | Literal["auto"]

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"workers={self.workers}: give 0 or more")


@dataclasses.dataclass(frozen=True)
class Outer:
    size: int
    rate: float
    kind: Literal["a", "b"]
    count: int | Literal["auto"]
    widths: list[int]
    note: str | None
    inner: Inner

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size}: give 1 or more")
        if self.rate <= 0:
            raise ValueError(f"rate={self.rate}: give a rate above 0")
        if any(w > self.size for w in self.widths):
            raise ValueError(f"widths={self.widths}: none may be above size={self.size}")


@dataclasses.dataclass(frozen=True)
class Open:
    """Hints that can't be checked, a path, and a default."""

    where: Path
    tensor: torch.Tensor
    either: float | torch.Tensor
    call: Callable[..., Any]
    lists: list[int] | list[str]
    least: int = 3


class Plain:
    def __init__(
        self, wide: int, rate: float = 0.1, name: str | None = None, other: torch.Tensor = None
    ) -> None:
        self.given = {"wide": wide, "rate": rate, "name": name, "other": other}


class Bag:
    def __init__(self, **values: Any) -> None:
        self.values = values


class Nested:
    def __init__(self, part: Any, parts: Sequence[Any] = ()) -> None:
        self.part, self.parts = part, parts


def untyped(wide, rate=0.1, deep=True):  # type: ignore[no-untyped-def]
    return [wide, rate, deep]


GOOD = {
    "size": 3,
    "rate": 0.5,
    "kind": "a",
    "count": "auto",
    "widths": [1, 2],
    "note": None,
    "inner": {"workers": 0, "pin": "auto"},
}


def told(target: str, **fields: Any) -> list[str]:
    return config.check_target("x", {"_target_": f"{HERE}.{target}", **fields})


def changed(**fields: Any) -> list[str]:
    return told("Outer", **{**GOOD, **fields})


class TestADataclass:
    def test_good(self) -> None:
        assert changed() == []
        assert changed(count=4, note="text", rate=1, inner={"workers": 2, "pin": True}) == []

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            ("size", "3", "x.size=3: expected int, got str; give a whole number"),
            ("size", True, "x.size=true: expected int, got bool; give a whole number"),
            ("size", 2**63, f"x.size={2**63}: this does not fit 64 bits; give a smaller number"),
            ("rate", "1", "x.rate=1: expected float, got str; give a number"),
            ("rate", math.nan, "x.rate=nan: this is no number; give one"),
            ("kind", "c", "x.kind=c: no such choice; give a or b"),
            ("count", "al", "x.count=al: no such choice; give a whole number or auto"),
            ("widths", 3, "x.widths=3: expected array, got int; give a list, each a whole number"),
            ("widths", [1, "b"], "x.widths=[1,b]: expected int, got str at [1]; give a list, each"),
            ("note", 3, "x.note=3: expected str | null, got int; give text or null, as x.note="),
            ("inner", None, "x.inner=null: a value stands in the place of several keys; set them"),
            ("size", "???", "x.size: missing; give it a value: x.size=..."),
        ],
    )
    def test_a_wrong_type(self, field: str, value: Any, said: str) -> None:
        (problem,) = changed(**{field: value})
        assert problem.startswith(said), problem

    def test_a_bare_off_is_explained_where_a_word_is_wanted(self) -> None:
        (problem,) = changed(kind=False)
        assert problem.endswith('give a or b (YAML reads a bare off as false: write "off")')
        (problem,) = changed(size=False)
        assert "YAML" not in problem

    def test_a_key_too_many_and_one_too_few(self) -> None:
        fields = {k: v for k, v in GOOD.items() if k != "size"}
        assert told("Outer", **fields, sice=3) == [
            "x.sice=3: no such key; did you mean size?",
            "x.size: missing, Outer needs it; give it a value: +x.size=...",
        ]

    def test_nested(self) -> None:
        assert changed(inner={"workers": "2", "pim": True}) == [
            "x.inner.workers=2: expected int, got str; give a whole number",
            "x.inner.pim=true: no such key; did you mean pin?",
            "x.inner.pin: missing, Inner needs it; give it a value: +x.inner.pin=...",
        ]
        assert changed(inner={"workers": -1, "pin": True}) == ["x.inner.workers=-1: give 0 or more"]

    def test_all_wrong_values_although_the_class_stops_at_the_first(self) -> None:
        assert changed(size=0, rate=-1.0, widths=[]) == [
            "x.size=0: give 1 or more",
            "x.rate=-1.0: give a rate above 0",
        ]

    def test_values_are_checked_beside_a_wrong_type(self) -> None:
        assert changed(kind=3, rate=-1.0) == [
            "x.kind=3: expected str, got int; give a or b",
            "x.rate=-1.0: give a rate above 0",
        ]

    def test_what_only_follows_from_a_wrong_value_is_not_told(self) -> None:
        # with size=1 in the place of 0, widths would look wrong
        assert changed(size=0, widths=[7]) == ["x.size=0: give 1 or more"]

    def test_two_values_that_do_not_fit(self) -> None:
        assert changed(widths=[7]) == ["x.widths=[7]: none may be above size=3"]

    def test_hints_that_cannot_be_checked(self) -> None:
        open_ended = {"tensor": 3, "call": "x", "lists": ["a"]}
        assert told("Open", where="a/b", either=1.0, **open_ended) == []
        (problem,) = told("Open", where=3, either=1.0, **open_ended)
        assert problem == "x.where=3: expected path, got int; give a path"
        (problem,) = told("Open", where="a", either="b", **open_ended)
        assert problem == "x.either=b: expected float, got str; give a number"

    def test_settings_follow_the_check(self) -> None:
        node = {"where": "a/b", "tensor": 3, "either": 1, "call": "x", "lists": ["a"]}
        made = config.settings({"_target_": f"{HERE}.Open", **node})
        assert made == Open(Path("a/b"), 3, 1.0, "x", ["a"])  # type: ignore[arg-type]
        assert config.settings({"_target_": f"{HERE}.Outer", **GOOD}).inner == Inner(0, "auto")


class TestACall:
    def test_good(self) -> None:
        assert told("Plain", wide=3) == []
        assert told("Plain", wide=3, rate=1, name=None, other="anything") == []
        assert told("Bag", whatever=3) == []
        assert told("untyped", wide="x", deep=None) == []

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"wide": "3"}, "x.wide=3: expected int, got str; give a whole number"),
            ({"wide": 3, "rate": True}, "x.rate=true: expected float, got bool; give a number"),
            ({"wide": 3, "rate": None}, "x.rate=null: expected float, got null; give a number"),
            ({"wide": "???"}, "x.wide: missing; give it a value: x.wide=..."),
            ({}, "x.wide: missing, Plain needs it; give it a value: +x.wide=..."),
            (
                {"wide": 3, "rat": 1},
                "x.rat=1: Plain takes no such argument; did you mean rate?; rem",
            ),
        ],
    )
    def test_wrong(self, fields: dict[str, Any], said: str) -> None:
        (problem,) = told("Plain", **fields)
        assert problem.startswith(said), problem

    def test_defaults_stand_in_for_hints(self) -> None:
        (problem,) = told("untyped", wide=3, rate="fast")
        assert problem.startswith("x.rate=fast: expected float | null, got str; give a number")

    def test_what_paceline_passes(self) -> None:
        node = {"_target_": "torch.optim.SGD", "params": [], "lr": 0.1}
        (problem,) = config.check_target("optimizer", node, ("params",))
        assert problem == "optimizer.params=[]: paceline passes this itself; leave it out"

    def test_targets_inside(self) -> None:
        wrong = {"_target_": f"{HERE}.Plain", "wide": "3"}
        assert told("Nested", part={"_target_": f"{HERE}.Plain", "wide": 3}) == []
        assert told("Nested", part=wrong, parts=[{"deep": wrong}, {"_target_": "no.Where"}]) == [
            "x.part.wide=3: expected int, got str; give a whole number",
            "x.parts.0.deep.wide=3: expected int, got str; give a whole number",
            "x.parts.1._target_=no.Where: there is no module no; give module.Class of something "
            "importable from where you started paceline, or set PYTHONPATH",
        ]

    def test_a_partial_call_needs_no_argument(self) -> None:
        assert told("Plain", _partial_=True) == []


@pytest.mark.parametrize(
    ("hint", "part"),
    [
        (float | torch.Tensor, float),
        (tuple[float | torch.Tensor, float], tuple[float, float]),
        (Annotated[int, "steps"], int),
        (Sequence[torch.Tensor], list[Any]),
        (Mapping[str, int | torch.dtype], dict[str, int]),
        (Callable[..., int], Any),
        (torch.nn.Module, Any),
        (tuple[int, ...], tuple[int, ...]),
        (Literal["a"] | None, Literal["a"] | None),
    ],
)
def test_the_part_of_a_hint_that_can_be_checked(hint: Any, part: Any) -> None:
    from paceline.config.hints import checkable

    assert checkable(hint) == part


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(field=st.sampled_from(sorted(GOOD)), value=SCALARS)
def test_a_check_never_raises_and_never_lets_a_wrong_type_pass(field: str, value: Any) -> None:
    problems = changed(**{field: value})
    assert all(p.startswith(("x.", "x: ")) for p in problems)
    if not problems:
        right = {
            "size": type(value) is int,
            "rate": type(value) in (int, float),
            "kind": value in ("a", "b"),
            "count": type(value) is int or value == "auto",
            "widths": isinstance(value, list),
            "note": value is None or isinstance(value, str),
            "inner": False,
        }
        assert right[field]
        config.settings({**GOOD, field: value}, Outer)  # what passes can be built


@given(
    size=st.integers(1, 2**63 - 1),
    rate=st.floats(1e-9, 1e9),
    kind=st.sampled_from(["a", "b"]),
    count=st.one_of(st.integers(-(2**63), 2**63 - 1), st.just("auto")),
    widths=st.lists(st.integers(-5, 1)),
    note=st.one_of(st.none(), st.text().filter(lambda text: text != "???")),
    workers=st.integers(0, 99),
    pin=st.one_of(st.booleans(), st.just("auto")),
)
def test_right_values_always_pass(workers: int, pin: Any, **fields: Any) -> None:
    assert changed(**fields, inner={"workers": workers, "pin": pin}) == []


@given(st.one_of(SCALARS, st.text()))
def test_any_target_is_found_or_told(path: Any) -> None:
    problems = config.check_target("x", {"_target_": path})
    assert problems and problems[0].startswith("x._target_")
