"""The one error tree, and what a process's exit code means.

Every error that may cross a border (a thread, a process, the wire) is a `NodeError`. The class carries the
gRPC status and whether trying again helps; the message names what was found, what is accepted and the way out.
There is no subclass without a distinct reaction of whoever catches it. Foreign exceptions are translated where
their library is imported, with the cause chained.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar


class StatusCode(enum.IntEnum):
    """gRPC status codes, as the gRPC specification numbers them."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class ExitCode(enum.IntEnum):
    """What a process says by its exit code: children to the supervisor, the node to its caller.

    The supervisor's reaction: `OK` was asked for; `CONFIG` is never restarted and stops the node; `BOOT` is
    restarted within a small budget of its own; anything else backs off and restarts. 78 is EX_CONFIG of
    sysexits.h, so that systemd's RestartPreventExitStatus can tell it from a crash.
    """

    OK = 0
    FAILURE = 1
    USAGE = 2
    BOOT = 3
    CONFIG = 78


class NodeError(Exception):
    """Root of the tree. Never raised itself; `status` and `retryable` are the class's."""

    status: ClassVar[StatusCode] = StatusCode.INTERNAL
    retryable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        """The sentence for the caller, without the class name."""
        return str(self)


class InvalidArgument(NodeError):
    """The request is wrong in itself: sending it again changes nothing."""

    status = StatusCode.INVALID_ARGUMENT


class NotFound(NodeError):
    """No such model, version or region here; another replica may have it."""

    status = StatusCode.NOT_FOUND


class AlreadyExists(NodeError):
    """The name is taken."""

    status = StatusCode.ALREADY_EXISTS


class FailedPrecondition(NodeError):
    """Not in this state or mode; the caller has to change something first."""

    status = StatusCode.FAILED_PRECONDITION


class PermissionDenied(NodeError):
    """The caller may not do this from where it is."""

    status = StatusCode.PERMISSION_DENIED


class ResourceExhausted(NodeError):
    """A queue, a concurrency cap or a message limit is reached; later, or smaller, may work."""

    status = StatusCode.RESOURCE_EXHAUSTED
    retryable = True


class Unavailable(NodeError):
    """Not able to serve now: loading, draining, or a peer that is gone. Another replica, or a moment, helps."""

    status = StatusCode.UNAVAILABLE
    retryable = True


class ConnectionLost(Unavailable):
    """The peer went away while it had the call: it may have run it, or died of it."""


class DeadlineExceeded(NodeError):
    """The caller's time is over."""

    status = StatusCode.DEADLINE_EXCEEDED


class Cancelled(NodeError):
    """The caller went away."""

    status = StatusCode.CANCELLED


class Unimplemented(NodeError):
    """The method does not exist here."""

    status = StatusCode.UNIMPLEMENTED


class Internal(NodeError):
    """Our fault, or the model's: the request was acceptable and the run failed."""

    status = StatusCode.INTERNAL


class ModelLoadError(NodeError):
    """A model cannot be served; the message says why in one line. Never takes other models down.

    A request for it is answered NOT_FOUND, as Triton does, with the reason.
    """

    status = StatusCode.NOT_FOUND


class RuntimeUnavailable(NodeError):
    """The worker's runtime or device cannot be used at all (a missing library, no CUDA provider).

    Ends the process with `ExitCode.BOOT`.
    """

    status = StatusCode.UNAVAILABLE


class AddressInUse(NodeError):
    """A port that this process has to listen on is taken; the message names address and configuration key."""

    status = StatusCode.UNAVAILABLE


class ConfigError(NodeError):
    """What the operator wrote is wrong: every problem at once, so that files are mended in one go.

    Ends the process with `ExitCode.CONFIG`, without a traceback.

    Attributes:
        problems: one sentence each, `key.path: got X; use Y`.
    """

    status = StatusCode.FAILED_PRECONDITION

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


BY_STATUS: dict[StatusCode, type[NodeError]] = {
    cls.status: cls
    for cls in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        PermissionDenied,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        Unimplemented,
        Internal,
    )
}
"""The class to raise for a status a peer answered; statuses not listed are `Internal`."""


def from_status(status: StatusCode, message: str) -> NodeError:
    """The error for a status and message that came from a peer."""
    return BY_STATUS.get(status, Internal)(message)
