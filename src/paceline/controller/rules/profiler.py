"""Rules of what is profiled: which steps, which ranks, on which device."""

from __future__ import annotations

from paceline.config import shown
from paceline.controller.rules.device import on_cuda
from paceline.controller.rules.rule import DEVICE, WORLD, Config, Rules


def _long_enough(config: Config, choices: Config, world: int) -> str | None:
    profiler, steps = config["profiler"], config["run"]["steps"]
    cycle = [profiler.get(key) for key in ("wait", "warmup", "active", "repeat")]
    if not all(isinstance(n, int) for n in cycle):
        return None
    wait, warmup, active, repeat = cycle
    needed = (wait + warmup + active) * repeat
    if needed > steps:
        return (
            f"profiler.wait={wait}: (wait + warmup={warmup} + active={active}) x repeat={repeat} "
            f"needs {needed} steps, run.steps={steps} has fewer; lower profiler.wait or raise "
            "run.steps"
        )
    return None


def _begins(config: Config, choices: Config, world: int) -> str | None:
    """A history, which has no end of its own."""
    profiler, steps = config["profiler"], config["run"]["steps"]
    wait = profiler.get("wait")
    if "max_entries" not in profiler or not isinstance(wait, int) or wait < steps:
        return None
    return (
        f"profiler.wait={wait}: the history would begin after the last of run.steps={steps}; lower "
        "profiler.wait or raise run.steps"
    )


def _warmed_up(config: Config, choices: Config, world: int) -> str | None:
    profiler, unsettled = config["profiler"], config["measure"].get("warmup_steps")
    wait, warmup = profiler.get("wait"), profiler.get("warmup")
    if not all(isinstance(n, int) for n in (wait, warmup, unsettled)):
        return None
    if wait + warmup >= unsettled:
        return None
    return (
        f"profiler.wait={wait}: with warmup={warmup} steps are recorded from step {wait + warmup} "
        f"on, which measure.warmup_steps={unsettled} takes for unsettled; set profiler.wait="
        f"{unsettled - warmup} or more"
    )


def _ranks(config: Config, choices: Config, world: int) -> str | None:
    ranks = config["profiler"].get("ranks", [])
    if [r for r in ranks if isinstance(r, int) and not 0 <= r < world]:
        return (
            f"profiler.ranks={shown(ranks)}: the job has ranks 0 to {world - 1}; give some of those"
        )
    return None


def _activities(config: Config, choices: Config, world: int) -> str | None:
    activities = config["profiler"].get("activities", [])
    if "cuda" not in activities or on_cuda(config):
        return None
    return (
        f"profiler.activities={shown(activities)}: there would be no CUDA device; use "
        "profiler.activities=auto"
    )


def _history(config: Config, choices: Config, world: int) -> str | None:
    if "max_entries" not in config["profiler"] or on_cuda(config):
        return None
    return (
        f"profiler={choices.get('profiler')}: it is the history of the allocator on a CUDA device, "
        "there would be none; on a CPU use profiler=schedule profiler.profile_memory=true"
    )


RULES: Rules = (
    (
        ("profiler.wait", "profiler.warmup", "profiler.active", "profiler.repeat", "run.steps"),
        _long_enough,
    ),
    (("profiler.wait", "profiler.max_entries", "run.steps"), _begins),
    (("profiler.wait", "profiler.warmup", "measure.warmup_steps"), _warmed_up),
    ((*WORLD, "profiler.ranks"), _ranks),
    (("profiler.activities", *DEVICE), _activities),
    (("profiler", *DEVICE), _history),
)
