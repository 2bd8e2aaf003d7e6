"""A component of the parent under supervision: started, watched, restarted with backoff, given up in the end."""

from __future__ import annotations

import logging

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import NodeError
from reactant_node.supervisor.child import STABLE_SECONDS, backoff_seconds
from reactant_node.supervisor.spec import Component

START_ATTEMPTS = 3
"""A thread that is stuck keeps its port for as long as it is. It may come loose in a few seconds; if not, a new
process is the only way to serve again."""

STOP_SECONDS = 2.0
"""The supervisor waits here; longer, and it would be deaf."""

_log = logging.getLogger(__name__)


class WatchedComponent:
    """A component, and the count of its failures. The supervisor's loop's own."""

    def __init__(self, part: Component) -> None:
        self.part = part
        self._failures = 0
        self._failed_starts = 0
        self._started_ns = 0
        self._restart_ns: int | None = None

    def __repr__(self) -> str:
        state = "running" if self._restart_ns is None else "to be restarted"
        return f"<WatchedComponent {self.part.name} {state}, {self._failures} failures in a row>"

    def start(self, now_ns: int) -> None:
        """Start it.

        Raises:
            NodeError: as the component says.
        """
        self.part.start()
        self._started_ns, self._restart_ns, self._failed_starts = now_ns, None, 0

    def watch(self, now_ns: int) -> str | None:
        """Restart it where it failed and the time has come; why it cannot come back, or None."""
        if self._restart_ns is not None:
            return self._start_again(now_ns) if now_ns >= self._restart_ns else None
        if (reason := self.part.failure(now_ns)) is not None:
            self._replace(reason, now_ns)
        return None

    def _replace(self, reason: str, now_ns: int) -> None:
        name = self.part.name
        _log.error("%s failed: %s", name, reason)
        if not self.part.stop(STOP_SECONDS):
            _log.error("%s does not end; its ports may stay taken", name)
        if now_ns - self._started_ns >= STABLE_SECONDS * NS_PER_SECOND:
            self._failures = 0
        self._back_off(now_ns)

    def _start_again(self, now_ns: int) -> str | None:
        try:
            self.start(now_ns)
        except NodeError as error:
            self._failed_starts += 1
            if self._failed_starts >= START_ATTEMPTS:
                return f"{self.part.name} cannot be started again: {error}"
            _log.error("%s cannot be started: %s", self.part.name, error)
            self._back_off(now_ns)
        return None

    def _back_off(self, now_ns: int) -> None:
        self._failures += 1
        delay = backoff_seconds(self._failures)
        self._restart_ns = now_ns + round(delay * NS_PER_SECOND)
        _log.info("restarting %s in %g s", self.part.name, delay)
