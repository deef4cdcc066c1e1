"""What checkpoints cost and what they are good for, in lines."""

from __future__ import annotations

from typing import Any

from paceline.report.comm import said_bytes

Lines = list[tuple[str, str]]


def lines(record: dict[str, Any]) -> Lines:
    """Nothing of a job that saved nothing."""
    section = record["checkpoint"]
    saves, found = section["saves"], section.get("economics")
    failed = [save for save in saves if save["state"] == "failed"]
    texts = [f"step {save['step']} was not saved: {save['message']}" for save in failed[:3]]
    if found is not None:
        count = len(saves) - len(failed)
        text = f"{count} save{'' if count == 1 else 's'} of {said_bytes(found['bytes'])}: "
        text += f"{_time(found['blocked_s'])} blocked each"
        if found["slowed_s"]:
            text += f", {_time(found['slowed_s'])} slower steps beside it"
        texts.insert(0, f"{text}, durable after {_time(found['durable_s'])}")
        texts += _advice(found)
    if section.get("skipped"):
        texts.append(f"{len(section['skipped'])} skipped, for one was still being written")
    return [("checkpoint" if i == 0 else "", text) for i, text in enumerate(texts)]


def _advice(found: dict[str, Any]) -> list[str]:
    if found["every_s"] is None:
        return []
    text = f"one in {_time(found['every_s'])} of training; for a failure in "
    text += (
        f"{_time(found['mtbf_s'])} Daly's rule says one in {_time(found['recommended_every_s'])}"
    )
    return [f"{text}, checkpoint.every_steps={found['recommended_every_steps']}"]


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "d" and seconds >= size):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
