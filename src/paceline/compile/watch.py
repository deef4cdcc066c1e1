"""What Dynamo and inductor really did, from their own metrics and logs (torch 2.9 to 2.13)."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from paceline.types import CompileReport

BREAKS = "torch._dynamo.symbolic_convert.__graph_breaks"
HINTS = (
    "torch._dynamo.variables.optimizer.__perf_hints",
    "torch._inductor.compile_fx.__perf_hints",
    "torch._inductor.graph.__perf_hints",
    "torch._inductor.codegen.simd.__perf_hints",
    "torch._inductor.codegen.triton.__perf_hints",
)
"""Log artifacts of torch: TORCH_LOGS=graph_breaks,perf_hints prints the same."""

BREAK = re.compile(
    r"Graph break.*? in user code at (?P<where>.+:\d+)\nGraph Break Reason: (?P<reason>.+)"
)
SKIPPED = "Skipping the function and falling back to eager"
KEPT = 10_000
"""Compilations whose metrics are kept; torch's own bound is 64."""


class Watch:
    """Listens from the moment it is made until `close`; reads its process's counters, which is
    right because every job has fresh processes."""

    def __init__(self) -> None:
        from torch._dynamo import utils

        utils.set_compilation_metrics_limit(KEPT)
        self._all = utils.get_compilation_metrics
        self._counters = utils.counters
        self._metrics: list[tuple[int, Any]] = []
        self._known = len(self._all())
        self._breaks = _Listener(BREAKS)
        self._hints = [_Listener(name) for name in HINTS]

    def tick(self, step: int) -> bool:
        """Did anything compile since the last call? Its metrics belong to `step`."""
        # not counters["frames"]: those stay at 0 under fullgraph=True (torch 2.13)
        found = self._all()
        if len(found) == self._known:
            return False
        self._metrics += [(step, m) for m in found[self._known :]]
        self._known = len(found)
        return True

    def report(self, cache: str) -> CompileReport:
        counted = self._counters["inductor"]
        frames = [m for _, m in self._metrics if m.is_forward is not False and not m.is_runtime]
        compiled = [m for m in frames if m.has_guarded_code and not m.fail_type]
        durations = [m.duration_us for _, m in self._metrics if m.duration_us and not m.is_runtime]
        return CompileReport(
            frames_compiled=len(compiled),
            frames_fallen_back=len(frames) - len(compiled),
            compile_s=sum(durations) / 1e6,
            cache={
                "setting": cache,
                "hits": counted["fxgraph_cache_hit"],
                "misses": counted["fxgraph_cache_miss"],
            },
            graph_breaks=graph_breaks(self._breaks.messages),
            recompiles=[_recompile(step, m) for step, m in self._metrics if m.recompile_reason],
            limits_hit=[self._frame(m) for _, m in self._metrics if _hit_limit(m)],
            recompile_limit=_limit([m for _, m in self._metrics]),
            cudagraphs_skipped=next(
                (m.cudagraph_skip_reason for _, m in self._metrics if m.cudagraph_skip_reason), None
            ),
            hints=list(dict.fromkeys(line for one in self._hints for line in one.messages)),
        )

    def _frame(self, metrics: Any) -> str | None:
        """The place of a frame that was given up: only its earlier compilations know it."""
        frame = str(metrics.compile_id).partition("/")[0]
        same = (m for _, m in self._metrics if str(m.compile_id).partition("/")[0] == frame)
        return next((place for m in same if (place := _place(m))), None)

    def close(self) -> None:
        for listener in [self._breaks, *self._hints]:
            listener.close()


class _Listener(logging.Handler):
    """Keeps the messages of one of torch's log artifacts, whether or not anyone prints it."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []
        self._logger = logging.getLogger(name)
        if not self._logger.isEnabledFor(logging.DEBUG):  # else TORCH_LOGS asked for it
            self._logger.setLevel(logging.DEBUG)
            self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def close(self) -> None:
        self._logger.removeHandler(self)
        super().close()


def graph_breaks(messages: list[str]) -> list[dict[str, Any]]:
    """`{reason, where, count}` of each place, from the messages of the graph_breaks artifact.
    `count`: how often it was compiled; `where`: file:line, None in a message without one."""
    found: dict[tuple[str | None, str], int] = {}
    for message in messages:
        match = BREAK.search(message)
        where = match["where"] if match else None
        reason = match["reason"].strip() if match else message.strip().splitlines()[0]
        if SKIPPED in reason:
            _, _, rest = message.partition("Graph break encountered:")
            cause = next((line.strip() for line in rest.splitlines() if line.strip()), reason)
            reason = f"{cause} (the whole function fell back to eager)"
        found[where, reason] = found.get((where, reason), 0) + 1
    return [{"reason": r, "where": w, "count": n} for (w, r), n in found.items()]


def _recompile(step: int, metrics: Any) -> dict[str, Any]:
    reason = str(metrics.recompile_reason).strip().splitlines()[0]
    return {
        "step": step,
        "reason": re.sub(r"^\d+/\d+: ", "", reason),
        "where": _place(metrics),
        "compile_s": (metrics.duration_us or 0) / 1e6,
    }


def _place(metrics: Any) -> str | None:
    if not metrics.co_filename:
        return None
    return f"{metrics.co_name} ({metrics.co_filename}:{metrics.co_firstlineno})"


def _hit_limit(metrics: Any) -> bool:
    return "recompile limit" in str(metrics.fail_reason or "").lower()


def _limit(metrics: list[Any]) -> int | None:
    """The recompile limit that the last compilation ran under, in the thread where it ran."""
    for one in reversed(metrics):
        if one.dynamo_config:
            limit: int | None = json.loads(one.dynamo_config).get("recompile_limit")
            return limit
    return None
