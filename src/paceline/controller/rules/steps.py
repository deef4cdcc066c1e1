"""Rules of lengths: steps, warm-ups, sequences."""

from __future__ import annotations

from paceline.controller.rules.rule import Config, Rules


def _measured(config: Config, choices: Config, world: int) -> str | None:
    warmup, steps = config["measure"].get("warmup_steps"), config["run"]["steps"]
    if isinstance(warmup, int) and warmup >= steps:
        return (
            f"measure.warmup_steps={warmup}: this leaves nothing to measure in run.steps={steps}; "
            "raise run.steps or lower measure.warmup_steps"
        )
    return None


def _warmed_up(config: Config, choices: Config, world: int) -> str | None:
    warmup, steps = config["scheduler"].get("warmup_steps"), config["run"]["steps"]
    if isinstance(warmup, int) and warmup > steps:
        return (
            f"scheduler.warmup_steps={warmup}: longer than the training, run.steps={steps}; "
            "raise run.steps or lower scheduler.warmup_steps"
        )
    return None


def _context_length(config: Config, choices: Config, world: int) -> str | None:
    length = config["data"].get("sequence_length")
    context = config["model"].get("context_length")
    if isinstance(length, int) and isinstance(context, int) and length > context:
        return (
            f"data.sequence_length={length}: longer than model.context_length={context}; "
            "raise the second or lower the first"
        )
    return None


RULES: Rules = (
    (("measure.warmup_steps", "run.steps"), _measured),
    (("scheduler.warmup_steps", "run.steps"), _warmed_up),
    (("data.sequence_length", "model.context_length"), _context_length),
)
