"""What the supervisor is asked to keep alive: child processes, and components (threads) of the parent.

`launch.py` makes these; the supervisor knows nothing of workers, models or gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from reactant_node.reports import Ready


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child process.

    Attributes:
        name: prefix of its log lines, unique in the node.
        target: importable module-level function, called in the child as `target(report, *args)` where
            `report(Report)` may be called from any thread. It returns when asked to stop by SIGTERM, or raises a
            `NodeError`, which becomes the exit code and a `Failed` report.
        args: picklable values.
        environment: variables set (value) or removed (None) on top of the parent's.
        run_limit_seconds: a device run longer than this means that the child hangs; 0 is no limit.
    """

    name: str
    target: Callable[..., None]
    args: tuple[Any, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    run_limit_seconds: float = 0.0


class Component(Protocol):
    """A thread of the parent that the supervisor starts, watches, restarts and stops as a unit: the gateway.

    Every method is called from the supervisor's thread and returns at once, but for `stop`.
    """

    @property
    def name(self) -> str:
        """For log lines."""
        ...

    def start(self) -> None:
        """Start the thread; a failure to start (a port taken) raises `NodeError` here."""
        ...

    def failure(self, now_ns: int) -> str | None:
        """Why the component must be restarted (its thread ended, or its loop has not turned), or None."""
        ...

    def child_ready(self, name: str, ready: Ready) -> None:
        """A child serves, on these ports."""
        ...

    def child_gone(self, name: str) -> None:
        """A child died or is being stopped: nothing is sent to it from now on."""
        ...

    def begin_drain(self) -> None:
        """Turn unready and answer new calls UNAVAILABLE; finish those in flight."""
        ...

    def drained(self) -> bool:
        """No call is in flight any more."""
        ...

    def stop(self, timeout_seconds: float) -> bool:
        """Close, stop the loop, join; False where the thread did not end in time and was abandoned."""
        ...
