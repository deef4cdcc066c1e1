"""Advice in lines: what to type, what it should gain and why; what it did gain."""

from __future__ import annotations

from typing import Any

from paceline.record import predictions

SHOWN = 3

Lines = list[tuple[str, str]]


def lines(record: dict[str, Any]) -> Lines:
    """Of a job: the first pieces of its advice, each with its ground, and how to check the best."""
    advice = [one for one in record["diagnosis"]["advice"] if isinstance(one, dict)]
    found: Lines = []
    for one in advice[:SHOWN]:
        found.append(("" if found else "try", f"{one['override']}: {gain(one)}; {one['why']}"))
        found.append(("", f"  ({one['basis']})"))
    if len(advice) > SHOWN:
        found.append(
            ("", f"and {len(advice) - SHOWN} more: paceline diagnose {record['job']['dir']}")
        )
    if advice and advice[0].get("check"):
        found.append(("check", advice[0]["check"]))
    return found


def checked_lines(measured: list[dict[str, Any]], everything: list[dict[str, Any]]) -> list[str]:
    """Of a sweep: each prediction that it held beside what came of it, then how good all of them
    have been so far; nothing without one."""
    said = []
    for one in measured:
        low, high = one["predicted_bounds"]
        found = one["measured_gain"]
        interval = one["measured_ci95"]
        reaches = interval is not None and interval[0] <= high and low <= interval[1]
        verdict = "can't tell, the interval reaches into it" if reaches else "NOT as predicted"
        verdict = "as predicted" if low <= found <= high else verdict
        over = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        said.append(
            f"advice {one['override']}: predicted {one['predicted_gain']:.3f} times "
            f"[{low:.3f}, {high:.3f}], measured {found:.3f}{over}: {verdict}"
        )
    known = predictions.track_record(everything)
    if said and known is not None:
        said.append(
            f"predictions so far: {known['checked']} checked, median error "
            f"{known['median_error']:.1%}, {known['within']} within their bounds"
        )
    return said


def gain(one: dict[str, Any]) -> str:
    """Measured, else predicted with its bounds: ratios of sustained rates."""
    if one.get("measured_gain") is not None:
        return f"measured {one['measured_gain']:.3f} times"
    if one["predicted_bounds"] is None:
        return "can't be predicted"
    low, high = one["predicted_bounds"]
    if one["predicted_gain"] is None:
        return f"at most {high:.3g} times"
    return f"predicted {one['predicted_gain']:.3g} times [{low:.3g}, {high:.3g}]"
