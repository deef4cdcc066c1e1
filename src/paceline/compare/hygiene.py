"""What else differs between records that are compared, beside the keys that were swept."""

from __future__ import annotations

from typing import Any

from paceline.compare.pairs import Record, cells, swept_keys

BLOCKING = ("torch", "cpu", "gpu", "host")
"""With one of these different, a ratio says nothing about the swept keys."""

NOTED = ("python", "git_commit", "dirty")

SWEPT_BY = {
    "threads_per_rank": "launch.threads_per_rank",
    "host_memory": "launch.host_memory",
    "env.OMP_NUM_THREADS": "launch.threads_per_rank",
    "env.MKL_NUM_THREADS": "launch.threads_per_rank",
    "env.OPENBLAS_NUM_THREADS": "launch.threads_per_rank",
    "env.MALLOC_": "launch.host_memory",
    "env.GLOO_SOCKET_IFNAME": "launch.nnodes",  # set where there are several
}
"""A fact (or the beginning of its name) -> the key that sets it: swept, it differs on purpose."""

LEFT_OUT = ("env.TORCHINDUCTOR_CACHE_DIR",)
"""Differs from job to job by design; the table tells cold compilations from warm ones."""

WAY_OUT = {
    "threads_per_rank": "set launch.threads_per_rank to compare alike",
    "host_memory": "set launch.host_memory to compare alike",
}

ON_A_CLUSTER = "hydra.launcher.mode=allocation runs all cells on the same nodes"
"""The way out where a scheduler has chosen the hosts."""

SHOWN = 4


def differences(records: list[Record]) -> list[str]:
    """A sentence for each fact that differs and that no swept key sets; unknown facts don't."""
    swept = swept_keys(cells(records))
    each = [(str(r["job"]["name"]), _facts(r)) for r in records]
    keys = dict.fromkeys(key for _, facts in each for key in facts)
    ordered = sorted(keys, key=lambda key: key not in BLOCKING)
    found = []
    for key in ordered:
        if key in LEFT_OUT or _set_by(key) in swept:
            continue
        sentence = _sentence(key, each)
        if sentence and key == "host" and any(r["job"]["scheduler"] for r in records):
            sentence = f"{sentence}; {ON_A_CLUSTER}"
        if sentence:
            found.append(sentence)
    return found


def blocking(records: list[Record]) -> list[str]:
    """Those of `differences` that make a verdict unsafe."""
    starts = tuple(f"{key} differs" for key in BLOCKING)
    return [sentence for sentence in differences(records) if sentence.startswith(starts)]


def _facts(record: Record) -> dict[str, Any]:
    """Name -> value of what is known; an environment variable that isn't set is known to be so."""
    environment = record["environment"]
    facts = {key: environment[key] for key in (*BLOCKING, *NOTED) if key in environment}
    source = environment.get("source")
    if source and source["started"]["dirty"]:  # two checkouts may be dirty in different ways
        facts["dirty"] = source["started"]["dirty"]
    for key in ("threads_per_rank", "host_memory"):
        value = record["effective"].get(key, record["requested"].get(key))
        if value is not None:
            facts[key] = value
    return facts | {f"env.{key}": v for key, v in (environment.get("env") or {}).items()}


def _sentence(key: str, each: list[tuple[str, dict[str, Any]]]) -> str | None:
    """`key differs: value (job) and value (job)`; None if all that know it agree."""
    named: dict[str, list[str]] = {}
    for name, facts in each:
        if key in facts:
            named.setdefault(_shown(facts[key]), []).append(name)
        elif key.startswith("env.") and facts.keys() & {*BLOCKING, *NOTED}:
            named.setdefault("not set", []).append(name)
    if len(named) < 2:
        return None
    values = [f"{value} ({_who(names)})" for value, names in named.items()]
    if len(values) > SHOWN:
        values = [*values[: SHOWN - 1], f"{len(values) - SHOWN + 1} more values"]
    way_out = f"; {WAY_OUT[key]}" if key in WAY_OUT else ""
    return f"{key} differs: {', '.join(values[:-1])} and {values[-1]}{way_out}"


def _set_by(key: str) -> str | None:
    return next((by for fact, by in SWEPT_BY.items() if key.startswith(fact)), None)


def _who(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
