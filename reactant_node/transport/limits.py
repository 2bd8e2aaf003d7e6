"""What a call may take: bytes each way, and time. The same for every transport."""

from __future__ import annotations

import time
from collections.abc import Sequence

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import DeadlineExceeded, ResourceExhausted
from reactant_node.transport.interface import Buffer


def checked_request(message: Buffer, limit_bytes: int) -> bytes:
    """A message that is about to be sent, as bytes.

    Raises:
        ResourceExhausted: it is larger than the limit.
    """
    size = memoryview(message).nbytes
    if size > limit_bytes:
        raise ResourceExhausted(f"the request has {size} bytes; the limit is {limit_bytes} (grpc.max_send_msg_bytes)")
    return bytes(message)


def joined_reply(buffers: Sequence[Buffer], limit_bytes: int) -> bytes:
    """A handler's buffers as one message.

    Raises:
        ResourceExhausted: it would be larger than the limit; found before anything is copied.
    """
    size = sum(memoryview(buffer).nbytes for buffer in buffers)
    if size > limit_bytes:
        raise ResourceExhausted(f"the reply has {size} bytes; the limit is {limit_bytes} (grpc.max_send_msg_bytes)")
    return b"".join(buffers)


def remaining_seconds(deadline_ns: int | None) -> float | None:
    """Seconds from now to a deadline on the monotonic clock; None where there is none.

    Raises:
        DeadlineExceeded: it has passed.
    """
    if deadline_ns is None:
        return None
    remaining_ns = deadline_ns - time.monotonic_ns()
    if remaining_ns <= 0:
        raise DeadlineExceeded("the time for the call was over before it was sent")
    return remaining_ns / NS_PER_SECOND
