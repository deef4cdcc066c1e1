"""The micro-batch search: at a fixed global batch, which run.accumulation_steps fits or is fastest.

Memory falls as accumulation rises, so what fits is one end of the list: the search looks for its
border. Running out of memory is an answer, and no failure of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from paceline.compare import pairs
from paceline.compare import table as tables
from paceline.config import suggest
from paceline.controller.problems import examine
from paceline.controller.rules import world_size
from paceline.controller.scaling import job_batch
from paceline.controller.session import SESSION
from paceline.record.schema import RAN, read_json, write_json
from paceline.report.terminal import screen
from paceline.types import ConfigError, Failed

KEY = "run.accumulation_steps"
GOALS = ("largest", "fastest")


@dataclass(frozen=True)
class Candidate:
    """One way to share the global batch: `micro_batch_size` samples a rank at a time."""

    accumulation_steps: int
    micro_batch_size: int

    @property
    def overrides(self) -> list[str]:
        return [override(self.accumulation_steps)]

    def __str__(self) -> str:
        return f"{self.overrides[0]} (micro-batch {self.micro_batch_size} a rank)"


def override(accumulation_steps: int) -> str:
    return f"{KEY}={accumulation_steps}"


def check(goal: str, on_failure: str, typed: Mapping[str, Sequence[str]], detach: bool) -> None:
    """ConfigError for a command that asks for no search. `typed`: key -> its overrides."""
    problems = []
    if goal not in GOALS:
        problems.append(f"hydra.sweeper.goal={goal}: no such goal{suggest(goal, GOALS)}")
    if on_failure == "stop":
        problems.append(
            "sweep.on_failure=stop: this search goes on where memory ran out; leave it at continue"
        )
    if detach:
        problems.append(
            "detach=true: this search needs the result of a try for the next one; leave it out"
        )
    for key, values in typed.items():
        bare = key.lstrip("+~")
        if bare == KEY:
            problems.append(f"{KEY}: it is what the search varies; leave it out")
        elif len(values) > 1 and bare != "repeat":
            problems.append(
                f"{bare}: the search varies nothing but {KEY} and repeat; give {bare} one value, "
                "and search once for each"
            )
    if problems:
        raise ConfigError(problems)


def candidates(root: DictConfig) -> list[Candidate]:
    """Every even share, the largest micro-batch first. `root`: a composed config at accumulation 1.

    Raises ConfigError with all problems of the config: none of its cells could run.
    """
    found = examine(root)
    if found.problems or found.broken:
        raise ConfigError([*found.problems, *found.broken])
    ranks = world_size(found.config, found.choices)
    batch = job_batch(found.config, ranks)
    if batch is None:
        option = found.choices.get("data")
        raise ConfigError(
            [
                f"data={option}: it has no data.global_batch_size that ranks could share; choose "
                "a data option that has one"
            ]
        )
    share = batch // ranks
    return [Candidate(n, share // n) for n in range(1, share + 1) if share % n == 0]


def first_that_fits(number: int, fits: Callable[[int], bool]) -> int | None:
    """The first of `number` that fits, where each after one that fits does too; None if none does.
    Each is asked at most once.

    What doesn't fit ends at once, what fits runs in full: so it goes forward in growing strides
    up to the first that fits, and only then halves the gap behind it.
    """
    low, high = 0, number  # none below low fits; high does, or is the end
    while low < high:
        at = min(max(0, 2 * low - 1), high - 1) if high == number else (low + high) // 2
        if fits(at):
            high = at
        else:
            low = at + 1
    return low if low < number else None


@dataclass
class Search:
    """`launch`: candidates -> what their cells returned, all repeats of each. `values`: for each
    candidate that was tried, its sustained rates or Failed."""

    candidates: list[Candidate]
    launch: Callable[[Sequence[Candidate]], Sequence[Any]]
    values: dict[Candidate, list[Any]] = field(default_factory=dict)
    returned: list[Sequence[Any]] = field(default_factory=list)
    answer: Candidate | None = None

    def largest(self) -> None:
        """Try until the border between what fits and what doesn't is known."""
        at = first_that_fits(len(self.candidates), lambda n: self._fits(self.candidates[n]))
        self.answer = None if at is None else self.candidates[at]

    def all(self) -> None:
        """Try every candidate, in one launch."""
        self._try(self.candidates)

    def _fits(self, candidate: Candidate) -> bool:
        screen().print(f"trying {candidate}", markup=False, highlight=False, soft_wrap=True)
        self._try([candidate])
        return all(map(_ran, self.values[candidate]))

    def _try(self, tried: Sequence[Candidate]) -> None:
        jobs = self.launch(tried)
        self.returned.append(jobs)
        for number, candidate in enumerate(tried):
            own = jobs[number :: len(tried)]  # repeats are the outer loop
            self.values[candidate] = [job.return_value for job in own]

    def conclude(self, goal: str, sweep_dir: Path) -> None:
        """Print the answer. If memory is all that was short, and there is an answer, the command
        has done its work: no cell counts as failed."""
        found = self.answer or (goal == "fastest" and any(map(_ran, chain(*self.values.values()))))
        failed = {c: _kinds(values) for c, values in self.values.items() if _kinds(values)}
        if not found:
            lines = [self._no_answer(failed)]
        elif goal == "fastest":
            lines = [fastest(sweep_dir, self.candidates)]
        else:
            lines = [f"largest that fits: {self.answer}"]
        other = [f"{c.overrides[0]} ({kinds})" for c, kinds in failed.items() if kinds != "oom"]
        if other:
            lines.append(f"failed, but not for lack of memory: {', '.join(other)}")
        elif found:
            SESSION.states = [state for state in SESSION.states if state != "failed"]
        for line in lines:
            screen().print(line, markup=False, highlight=False, soft_wrap=True)

    def _no_answer(self, failed: Mapping[Candidate, str]) -> str:
        if set(failed.values()) == {"oom"}:
            return (
                f"no micro-batch fits, not even {self.candidates[-1]}: use a smaller model, "
                "precision=bf16 or strategy=fsdp"
            )
        return "no answer: not one try ran to its end, and memory was not all that was short"


def _ran(value: Any) -> bool:
    """It had the memory that it needs, whatever its gates say."""
    return not isinstance(value, Failed) or value.state in RAN


def _kinds(values: Sequence[Any]) -> str:
    """Why they failed, each kind once."""
    failed = [v for v in values if isinstance(v, Failed) and v.state not in RAN]
    return ", ".join(dict.fromkeys(str(v.kind or v.state) for v in failed))


def fastest(sweep_dir: Path, known: Sequence[Candidate]) -> str:
    """The candidate of the highest sustained rate, if the others are slower beyond doubt."""
    records = pairs.load([sweep_dir])
    steps = {c.name: int(pairs.settings(c.overrides)[KEY]) for c in pairs.cells(records)}
    rows = _ranked(tables.make(records))
    if not rows:
        return "fastest: none of the cells that ran has a valid rate"
    best = max(rows, key=lambda row: row["sustained_units_per_s"])["name"]
    answer = next(c for c in known if c.accumulation_steps == steps[best])
    against = {r["name"]: r["verdict"] for r in _ranked(tables.make(records, baseline=best))}
    unclear = [n for n, verdict in against.items() if verdict in ("faster", "cant_tell")]
    same = [n for n, verdict in against.items() if verdict == "same"]
    if unclear:
        listed = ", ".join(str(steps[n]) for n in [*unclear, *same])
        more = max(3, 2 * max(row["repeats"] for row in rows))
        return f"fastest: can't tell {answer} from {listed}; add repeat=range({more})"
    listed = ", ".join(str(steps[n]) for n in same)
    return f"fastest: {answer}" + (f"; the same rate: {KEY}={listed}" if same else "")


def _ranked(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that may win: their rate is valid, and they train as the baseline does."""
    return [r for r in table["rows"] if r["sustained_units_per_s"] and r["verdict"] != "invalid"]


def move_baseline(sweep_dir: Path) -> None:
    """Compare with the largest micro-batch that has a rate: the first cell may have had none."""
    sweep = read_json(sweep_dir / "sweep.json")  # None under a launcher that isn't ours
    cells = [] if sweep is None else sweep["cells"]
    rated = []
    for cell in cells:
        record = read_json(sweep_dir / cell["name"] / "result.json")
        if record is not None and pairs.rated(record):
            rated.append((int(pairs.settings(cell["overrides"])[KEY]), cell["config_hash"]))
    if sweep is not None and rated:
        write_json(sweep_dir / "sweep.json", sweep | {"baseline": min(rated)[1]})
