"""Rules of `scaling`: the batch and the learning rate that it works on must be there."""

from __future__ import annotations

from paceline.controller.rules.rule import Config, Rules
from paceline.controller.scaling import learning_rate

ABSOLUTE = ("max_lr", "base_lr")
"""Keys by which a scheduler of torch sets learning rates of its own."""


def _batch_to_scale(config: Config, choices: Config, world: int) -> str | None:
    scaling, batch = config["scaling"], config["data"].get("global_batch_size")
    if isinstance(batch, int) or (scaling["mode"], scaling["learning_rate"]) == ("strong", "none"):
        return None
    weak = scaling["mode"] == "weak"
    asked = "mode=weak" if weak else f"learning_rate={scaling['learning_rate']}"
    return (
        f"scaling.{asked}: data={choices.get('data')} has no data.global_batch_size that it could "
        f"scale; use {'scaling.mode=strong' if weak else 'scaling.learning_rate=none'}, or a data "
        "option that has one"
    )


def _rate_to_scale(config: Config, choices: Config, world: int) -> str | None:
    rule = config["scaling"]["learning_rate"]
    if rule == "none":
        return None
    if learning_rate(config) is None:
        return (
            f"scaling.learning_rate={rule}: there is no number optimizer.lr that it could scale; "
            "give one (+optimizer.lr=0.001 where the optimizer takes it), or use "
            "scaling.learning_rate=none"
        )
    own = [key for key in ABSOLUTE if config["scheduler"].get(key) is not None]
    if own:
        return (
            f"scaling.learning_rate={rule}: the scheduler sets rates of its own (scheduler."
            f"{own[0]}), so that optimizer.lr has no effect; scale that key by hand with "
            "scaling.learning_rate=none, or use scheduler=warmup_cosine"
        )
    return None


RULES: Rules = (
    (("scaling", "data"), _batch_to_scale),
    (("scaling", "optimizer", "scheduler"), _rate_to_scale),
)
