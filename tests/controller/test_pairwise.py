"""hydra/sweeper=pairwise: every pair of values that can run together is in a cell, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, product

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from paceline.__main__ import config_dir
from paceline.controller import pairwise
from paceline.controller.cover import Conflict, Values, cover
from paceline.controller.problems import examine
from paceline.types import ConfigError
from tests.conftest import TINY, Command


def keys(*sizes: int) -> list[list[str]]:
    return [[f"k{key}={value}" for value in range(size)] for key, size in enumerate(sizes)]


def held(cells: Sequence[Values]) -> set[frozenset[str]]:
    """The sets of two values (of one, where cells have one) that these cells hold."""
    return {frozenset(p) for cell in cells for p in combinations(cell, min(2, len(cell)))}


class Rules:
    """Values that can't be together. `asked`: the cells that were looked at."""

    def __init__(self, forbidden: Sequence[frozenset[str]] = ()) -> None:
        self.forbidden, self.asked = forbidden, list[Values]()

    def why_not(self, cell: Values) -> list[Conflict]:
        self.asked.append(cell)
        return self.broken(cell)

    def broken(self, cell: Values) -> list[Conflict]:
        return [Conflict(f, f"no {' '.join(sorted(f))}") for f in self.forbidden if f <= set(cell)]


@st.composite
def spaces(draw: st.DrawFn) -> tuple[list[list[str]], list[frozenset[str]]]:
    values = keys(*draw(st.lists(st.integers(1, 4), min_size=0, max_size=5)))
    everything = [value for options in values for value in options]
    some = st.sets(st.sampled_from(everything), min_size=1, max_size=3) if everything else st.none()
    return values, [frozenset(f) for f in draw(st.lists(some, max_size=6)) if f]


@settings(max_examples=300, deadline=None)
@given(spaces())
def test_every_pair_that_can_run_and_no_cell_that_cannot(
    space: tuple[list[list[str]], list[frozenset[str]]],
) -> None:
    values, forbidden = space
    rules = Rules(forbidden)
    found = cover(values, rules.why_not)
    runnable = [cell for cell in product(*values) if not rules.broken(cell)]
    assert held(found.cells) == held(runnable)
    assert set(found.cells) <= set(runnable)
    assert len(set(found.cells)) == len(found.cells) <= len(runnable)
    assert len(set(rules.asked)) == len(rules.asked)
    first = tuple(options[0] for options in values)
    assert first not in runnable or found.cells[0] == first
    assert found.cells == [cell for cell in product(*values) if cell in found.cells]
    impossible = held(list(product(*values))) - held(runnable)
    for pair in impossible:  # each is told: itself, or a value in it
        assert any(pair.issuperset(told) for told in found.impossible)
    for told in found.impossible:
        assert not [cell for cell in runnable if set(told) <= set(cell)]


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ((5,), 5),
        ((2, 2, 2), 4),
        ((3,) * 4, 9),
        ((2,) * 8, 8),
        ((4, 3, 2, 2, 2), 12),
        ((4,) * 10, 32),
        ((3,) * 13, 19),
    ],
)
def test_cells_are_few(sizes: tuple[int, ...], most: int) -> None:
    """As few as others get greedily; the product of the two longest lists is the least."""
    assert len(cover(keys(*sizes), Rules().why_not).cells) <= most


def test_combinations_are_looked_at_only_to_be_chosen() -> None:
    rules = Rules([frozenset(("k0=0", "k1=1")), frozenset(("k2=1", "k3=2", "k4=3"))])
    found = cover(keys(*(4,) * 10), rules.why_not)  # a million combinations
    assert len(rules.asked) <= len(found.cells) + 10


def test_the_same_cells_whatever_the_order_of_hashes() -> None:
    code = (
        "from paceline.controller.cover import Conflict, cover\n"
        "bad = [{'a0', 'b1'}, {'b2', 'c0', 'd1'}, {'d2'}]\n"
        "values = [[f'{k}{n}' for n in range(3)] for k in 'abcd']\n"
        "print(cover(values, lambda c: [Conflict(frozenset(b), 'no') for b in bad if b <= {*c}]))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "2")
    ]
    assert len(set(said)) == 1
    assert "d2" in said[0]


def test_reasons_are_about_what_is_impossible() -> None:
    bad = [("k0=1", "k1=1"), ("k2=1",), ("k0=0", "k3=1"), ("k1=0", "k3=1")]
    found = cover(keys(2, 3, 2, 2), Rules([frozenset(b) for b in bad]).why_not)
    assert found.impossible == {
        ("k0=0", "k3=1"): "no k0=0 k3=1",
        ("k0=1", "k1=1"): "no k0=1 k1=1",
        ("k1=0", "k3=1"): "no k1=0 k3=1",
        # k0=1 alone goes with k3=1, and not with k1=1
        ("k1=1", "k3=1"): "not with any of the other values; one says: no k0=1 k1=1",
        ("k2=1",): "no k2=1",
    }
    places = [value for options in keys(2, 3, 2, 2) for value in options]
    told = [[places.index(value) for value in values] for values in found.impossible]
    assert told == sorted(told)


# what the command does, without starting it


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        yield


def composed(cell: Sequence[str]) -> DictConfig:
    return compose("config", list(cell), return_hydra_config=True)


def typed(*words: str) -> dict[str, list[str]]:
    """As the sweeper reads them: of `key=A,B` one override a value."""
    found = {"repeat": ["repeat=0"]}
    for word in words:
        key, _, values = word.partition("=")
        found[key] = [f"{key}={value}" for value in values.split(",")]
    return found


def planned(*words: str, most: int = 500) -> pairwise.Plan:
    return pairwise.plan(typed(*words), composed, most)


GRID = (
    "strategy=single,ddp",
    "launch.nproc=1,2,3",
    "data.sequence_length=32,256",
    "model.context_length=128,512",
)


def test_rules_of_the_whole_config_are_kept() -> None:
    """Against every combination, looked at one by one."""
    found = planned(*GRID, "data.global_batch_size=16")
    swept = [options for options in typed(*GRID).values() if len(options) > 1]
    rest = ["data.global_batch_size=16"]
    runnable = [c for c in product(*swept) if not examine(composed([*c, *rest])).broken]
    assert 0 < len(runnable) < 24
    chosen = [tuple(o for o in cell if o not in ("repeat=0", *rest)) for cell in found.cells]
    assert held(chosen) == held(runnable)
    assert set(chosen) <= set(runnable)
    assert found.cells[0] == ["repeat=0", *(options[0] for options in swept), *rest]
    start = "can't run together: strategy=single with launch.nproc=2: strategy=single: it runs one"
    assert [note for note in found.notes if note.startswith(start)]
    assert [note for note in found.notes if note.startswith("can't run: launch.nproc=3: not with")]
    # with 3 ranks the batch can't be shared, whatever the strategy: told once, not for each pair
    assert len([note for note in found.notes if "launch.nproc=3" in note.partition(": ")[2]]) == 1
    assert found.notes[-1].startswith(f"pairwise: {len(found.cells)} of 24 combinations")


def test_what_a_rule_reads_may_come_from_another_key() -> None:
    """model.layers says how long a sample is here: the rule reads data.sequence_length alone."""
    words = ("data.sequence_length=${model.layers}", "model.layers=64,200")
    found = planned(*words, "model.context_length=128,256", "precision=fp32,bf16")
    assert len(found.cells) == 5
    assert [note.partition(": ")[2].partition(": ")[0] for note in found.notes[:-1]] == [
        "model.layers=200 with model.context_length=128"
    ]


def test_repeats_are_outermost_and_meet_the_same_cells() -> None:
    words = typed("precision=fp32,bf16,fp32", "run.accumulation_steps=1,2", "run.steps=20")
    words["repeat"] = ["repeat=0", "repeat=1"]
    cells = pairwise.plan(words, composed, 500).cells
    assert [cell[0] for cell in cells] == ["repeat=0"] * 4 + ["repeat=1"] * 4
    assert [cell[1:] for cell in cells[:4]] == [cell[1:] for cell in cells[4:]]
    assert cells[3] == ["repeat=0", "precision=bf16", "run.accumulation_steps=2", "run.steps=20"]


def test_nothing_swept_is_one_cell() -> None:
    assert planned("run.steps=20").cells == [["repeat=0", "run.steps=20"]]


@pytest.mark.parametrize(
    ("words", "most", "said"),
    [
        (("run.seed=0,1",), 0, ["hydra.sweeper.most=0: give a whole number, 1 or more"]),
        (
            ("run.seed=0,1,2", "precision=fp32,bf16", "run.steps=20,21,22"),
            8,
            [
                "hydra.sweeper.most=8: every pair of values of run.seed and run.steps needs 9 "
                "cells; give them fewer values, or raise it"
            ],
        ),
        (
            ("run.seed=0,1,2", "precision=fp32,bf16", "run.steps=20,21,22"),
            9,
            [
                "hydra.sweeper.most=9: so many combinations were looked at, and there are pairs "
                "of values that none of them holds; sweep fewer values, or raise it"
            ],
        ),
        (
            ("strategy=single,ddp", "launch.nproc=2,1"),
            500,
            [
                "strategy=single launch.nproc=2: the first value of every key makes the baseline, "
                "and that can't run (strategy=single: it runs one process, launch.nproc=2 asks for "
                "2; use strategy=ddp, or launch.nproc=1); give values first that can"
            ],
        ),
        (
            ("strategy=single", "launch.nproc=2"),
            500,
            [
                "strategy=single: it runs one process, launch.nproc=2 asks for 2; use "
                "strategy=ddp, or launch.nproc=1"
            ],
        ),
        (
            ("run.seed=0,-1", "strict=false,true", "run.steps=20,0"),
            500,
            [
                "strict: can't be swept, it is no part of a cell's identity; set it once",
                "run.seed=-1: give 0 or more",
                "run.steps=0: give 1 or more",
            ],
        ),
    ],
)
def test_what_makes_no_sweep(words: tuple[str, ...], most: int, said: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        planned(*words, most=most)
    assert refused.value.problems == said


def test_the_command_plans_it(command: Command) -> None:
    words = ["strategy=single,ddp", "launch.nproc=1,2", "precision=fp32,bf16", "repeat=range(2)"]
    done = command("-m", "hydra/sweeper=pairwise", *TINY, *words, "plan=true")
    assert done.code == 0, done.err
    assert not list(done.cwd.iterdir())
    assert done.out.startswith("can't run together: strategy=single with launch.nproc=2: ")
    assert "\npairwise: 5 of 8 combinations" in done.out
    assert "10 jobs: 10 to run, 0 done, 0 skipped" in done.out
