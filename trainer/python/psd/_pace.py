"""The rate at which a trainer with local steps trains, reported to the daemon."""

from __future__ import annotations

import time

from .client import Client

_REPORT_INTERVAL_S = 0.5


class Pace:
    """Reports samples per second, and tokens per second if they are known, at most twice a second. Each is the mean
    since the previous report, including the time of exchanges. Used by one thread, the client's."""

    def __init__(self, client: Client):
        self._client = client
        self._since = time.monotonic()
        self._samples = 0
        self._tokens: int | None = None

    def stepped(self, samples: int, tokens: int | None, progress: int) -> None:
        """Counts a step of `samples` samples and `tokens` tokens; None: unknown. `progress`: the run's steps, the step
        of the report."""
        self._samples += samples
        if tokens is not None:
            self._tokens = (self._tokens or 0) + tokens
        seconds = time.monotonic() - self._since
        if seconds < _REPORT_INTERVAL_S:
            return
        values = {"samples_per_second": self._samples / seconds}
        if self._tokens is not None:
            values["tokens_per_second"] = self._tokens / seconds
        self._client.report(values, step=progress)
        self._since += seconds
        self._samples, self._tokens = 0, None
