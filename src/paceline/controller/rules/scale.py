"""Rules of scale: what DDP and its communication hooks need."""

from __future__ import annotations

from paceline.controller.rules.rule import Config, Rules

INSTEAD = {
    "single": "it is one process, which sends nothing; use comm_hook=none",
    "fsdp": "its gradients travel in strategy.reduce_dtype; use strategy.reduce_dtype=compute with "
    "precision=bf16, or strategy=ddp",
}
INSTEAD["hsdp"] = INSTEAD["fsdp"]
"""Strategies of ours that take no hook, and what to do."""


def _hook_without_ddp(config: Config, choices: Config, world: int) -> str | None:
    hook, strategy = choices.get("comm_hook"), choices.get("strategy")
    if hook == "none" or strategy not in INSTEAD:
        return None
    return f"comm_hook={hook}: strategy={strategy} takes no hook: {INSTEAD[strategy]}"


def _narrow_already(config: Config, choices: Config, world: int) -> str | None:
    hook, dtype = choices.get("comm_hook"), config["precision"].get("dtype")
    pure = choices.get("precision") == "bf16_pure" and dtype == "bfloat16"
    if hook not in ("fp16", "bf16") or not pure:
        return None
    return (
        f"comm_hook={hook}: with precision=bf16_pure gradients have 2 bytes already, it would save "
        "none; use comm_hook=none or powersgd, or precision=bf16"
    )


def _scaled_feedback(config: Config, choices: Config, world: int) -> str | None:
    if choices.get("comm_hook") != "powersgd" or "init_scale" not in config["precision"]:
        return None
    return (
        f"comm_hook=powersgd: what it carries over from step to step has the loss scale of its "
        f"step, which precision={choices.get('precision')} changes, and an overflow would stay in "
        "it for ever; use precision=bf16, or comm_hook=fp16"
    )


def _compressed_late(config: Config, choices: Config, world: int) -> str | None:
    start = config["comm_hook"].get("start_powerSGD_iter")
    warmup = config["measure"].get("warmup_steps")
    if not isinstance(start, int) or not isinstance(warmup, int) or start <= warmup:
        return None
    return (
        f"comm_hook.start_powerSGD_iter={start}: steps are measured from measure.warmup_steps="
        f"{warmup} on, the first of them uncompressed; raise measure.warmup_steps to {start}, or "
        "lower comm_hook.start_powerSGD_iter"
    )


def _static_graph(config: Config, choices: Config, world: int) -> str | None:
    accumulation = config["run"]["accumulation_steps"]
    if not config["strategy"].get("static_graph") or accumulation == 1:
        return None
    return (
        f"strategy.static_graph=true: DDP learns the graph in the first backward, which must "
        f"average, and with run.accumulation_steps={accumulation} it doesn't (torch fails an "
        "assertion); use strategy.static_graph=false, or run.accumulation_steps=1"
    )


RULES: Rules = (
    (("comm_hook", "strategy"), _hook_without_ddp),
    (("comm_hook", "precision"), _narrow_already),
    (("comm_hook", "precision"), _scaled_feedback),
    (("comm_hook.start_powerSGD_iter", "measure.warmup_steps"), _compressed_late),
    (("strategy.static_graph", "run.accumulation_steps"), _static_graph),
)
