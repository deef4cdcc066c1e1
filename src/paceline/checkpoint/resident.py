"""The most host memory that this process held while it saved."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

EVERY_S = 0.02


class Resident:
    """A context manager that may be entered again; not within itself."""

    def __init__(self) -> None:
        self.peak_gib: float | None = None
        self._process = psutil.Process()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Resident:
        self._over.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            now = self._process.memory_info().rss / 2**30
            self.peak_gib = max(self.peak_gib or 0.0, now)
            if self._over.wait(EVERY_S):
                return
