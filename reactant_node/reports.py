"""What a child process tells its supervisor, over a pair of sockets: frozen values, one per message.

Children report, supervisors judge. A child sends `Loading` while it starts, `Ready` once it listens and can
serve, `Heartbeat` at least every `HEARTBEAT_INTERVAL_SECONDS` from its first moment to its last, and `Failed`
with the reason in one line before it exits by itself. The end of either side's socket means that its process is
gone: without its parent a child ends at once.
"""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEAT_INTERVAL_SECONDS = 1.0
"""Often enough that a stopped worker is found in seconds, rare enough to cost nothing."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of the start set: `done` of `total` models have been loaded or refused."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The child serves.

    Attributes:
        grpc_port: the port really bound (the configuration may say 0: any free one).
        metrics_port: likewise; 0 where there is no metrics listener.
        not_ready: it listens and can answer, and why it has nothing to run yet; empty where it has.
    """

    grpc_port: int
    metrics_port: int
    not_ready: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Still here.

    Attributes:
        busy_since_ns: monotonic time at which the run that is on the device now began; None when idle.
        loading: a model is being loaded, which can hold the interpreter for long: silence is no sign of a hang.
    """

    busy_since_ns: int | None = None
    loading: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The child is about to exit by itself, and this is why, in one line."""

    reason: str


Report = Loading | Ready | Heartbeat | Failed
