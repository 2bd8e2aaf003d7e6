"""The one thread that owns the sessions and runs them, one execution at a time.

The transport loop hands a request over once, as a `Job`, and gets one answer back, by a future on its loop.
Requests wait in one queue, oldest first, bounded per model. Commands (loading a model) go before requests and
run on the same thread, so that nothing else ever touches a session: no lock is held around device work.

Ownership: the queue and the depths are shared under `_lock`; `_running` and the counters are written by the
dispatch thread alone and read by others as single references. A job is finished exactly once: whoever takes it
out of the queue (the thread to run it, `cancel`, `stop`) is the one who finishes it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from reactant_node.errors import DeadlineExceeded, Internal, NodeError, ResourceExhausted, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reactant_node.clock import Clock
    from reactant_node.runtime.interface import Session
    from reactant_node.tensors import NamedTensor

T = TypeVar("T")

QUEUE_WAITS_KEPT = 1024
"""Queue waits remembered per model for the quantile series (SCH-10)."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One execution to be made.

    Attributes:
        model: name, for queue bounds and counters.
        session: the session that was ready when the request was accepted.
        inputs: checked against the session's signature.
        outputs: names wanted, in order.
        rows: extent of the batch axis, 1 where there is none.
        deadline_ns: absolute, or None.
    """

    model: str
    session: Session
    inputs: tuple[NamedTensor, ...]
    outputs: tuple[str, ...]
    rows: int = 1
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """What the dispatch thread has done for one model, cumulative.

    Attributes:
        executions: runs on the device.
        requests: requests inside them.
        rows: batch-axis rows inside them.
        compute_ns: time on the device.
        queue_waits_ns: the newest waits from enqueueing to the start of the run.
    """

    executions: int = 0
    requests: int = 0
    rows: int = 0
    compute_ns: int = 0
    queue_waits_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DispatcherStatistics:
    """A snapshot.

    Attributes:
        queue_depths: waiting requests per model that has any.
        busy_since_ns: when the run on the device began, None when idle.
        loading: a command is running.
        counters: per model that ever ran.
    """

    queue_depths: Mapping[str, int]
    busy_since_ns: int | None
    loading: bool
    counters: Mapping[str, ModelCounters]


@dataclass(slots=True, eq=False)
class _Waiting:
    job: Job
    future: asyncio.Future[list[NamedTensor]]
    loop: asyncio.AbstractEventLoop
    enqueued_ns: int

    def finish(self, result: list[NamedTensor] | BaseException) -> None:
        """Complete the future on its loop; a loop that is closed has nobody waiting."""
        _call_soon(self.loop, _complete, self.future, result)


@dataclass(slots=True, eq=False)
class _Tally:
    executions: int = 0
    requests: int = 0
    rows: int = 0
    compute_ns: int = 0
    waits_ns: deque[int] = field(default_factory=lambda: deque(maxlen=QUEUE_WAITS_KEPT))

    def counters(self) -> ModelCounters:
        return ModelCounters(self.executions, self.requests, self.rows, self.compute_ns, tuple(self.waits_ns))


@dataclass(frozen=True, slots=True)
class _Running:
    waiting: _Waiting | None
    since_ns: int


class Dispatcher:
    """Owns the dispatch thread. `infer` and `call` are for the transport loop; see the module for who owns what."""

    def __init__(self, clock: Clock, *, max_queue_depth: int) -> None:
        self._clock = clock
        self._max_queue_depth = max_queue_depth
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[_Waiting] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._depths: dict[str, int] = {}
        self._tallies: dict[str, _Tally] = {}
        self._running: _Running | None = None
        self._closed_reason: str | None = None
        self._thread = threading.Thread(target=self._main, name="dispatch", daemon=True)

    def __repr__(self) -> str:
        busy = "running" if self._running else "idle"
        return f"<Dispatcher {self._closed_reason or busy}, {len(self._queue)} queued>"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def infer(self, job: Job) -> list[NamedTensor]:
        """Queue a request and wait for its outputs. Cancelling the caller takes it out of the queue.

        Raises:
            ResourceExhausted: the model's queue is full.
            DeadlineExceeded: its time was over before the device was free.
            Unavailable: the worker is stopping or being replaced.
            InvalidArgument, Internal: what the run raised.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(job, loop.create_future(), loop, self._clock.now_ns())
        self._enqueue(waiting)
        try:
            return await waiting.future
        except asyncio.CancelledError:
            self._withdraw(waiting)
            raise

    async def call(self, command: Callable[[], T]) -> T:
        """Run a command on the dispatch thread, before waiting requests; its result, or what it raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                outcome: T | BaseException = command()
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the command
                outcome = error
            _call_soon(loop, _complete, future, outcome)

        with self._wake:
            if self._closed_reason is not None:
                raise Unavailable(self._closed_reason)
            self._commands.append(run)
            self._wake.notify()
        return await future

    def abandon_run(self, reason: str) -> None:
        """Answer the caller of a run that is past its limit, and everybody behind it; accept nothing more.

        The run itself cannot be interrupted: the supervisor replaces this process.
        """
        running = self._running
        if running is not None and running.waiting is not None:
            running.waiting.finish(Internal(reason))
        self._close(reason)

    def stop(self, timeout_seconds: float) -> bool:
        """Answer what still waits UNAVAILABLE, end the thread; False where a run kept it from ending in time."""
        self._close("the worker is stopping")
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def statistics(self) -> DispatcherStatistics:
        """A snapshot, from any thread."""
        running = self._running
        with self._lock:
            depths = dict(self._depths)
            counters = {model: tally.counters() for model, tally in self._tallies.items()}
        return DispatcherStatistics(
            queue_depths=depths,
            busy_since_ns=running.since_ns if running is not None and running.waiting is not None else None,
            loading=running is not None and running.waiting is None,
            counters=counters,
        )

    def _enqueue(self, waiting: _Waiting) -> None:
        model = waiting.job.model
        with self._wake:
            if self._closed_reason is not None:
                raise Unavailable(self._closed_reason)
            depth = self._depths.get(model, 0)
            if depth >= self._max_queue_depth:
                raise ResourceExhausted(
                    f"model '{model}': {depth} requests are queued, the limit of scheduler.max_queue_depth; try later"
                )
            self._depths[model] = depth + 1
            self._queue.append(waiting)
            self._wake.notify()

    def _withdraw(self, waiting: _Waiting) -> None:
        with self._lock:
            try:
                self._queue.remove(waiting)
            except ValueError:
                return  # it is running, or done
            self._forget_depth(waiting.job.model)

    def _forget_depth(self, model: str) -> None:
        self._depths[model] -= 1
        if not self._depths[model]:
            del self._depths[model]

    def _close(self, reason: str) -> None:
        with self._wake:
            self._closed_reason = self._closed_reason or reason
            left, self._queue = self._queue, deque()
            self._depths.clear()
            self._wake.notify()
        for waiting in left:
            waiting.finish(Unavailable(reason))

    def _main(self) -> None:
        while (work := self._next()) is not None:
            if isinstance(work, _Waiting):
                self._execute(work)
            else:
                self._command(work)

    def _next(self) -> _Waiting | Callable[[], None] | None:
        with self._wake:
            while not self._commands and not self._queue:
                if self._closed_reason is not None:
                    return None
                self._wake.wait()
            if self._commands:
                return self._commands.popleft()
            waiting = self._queue.popleft()
            self._forget_depth(waiting.job.model)
            return waiting

    def _command(self, command: Callable[[], None]) -> None:
        self._running = _Running(None, self._clock.now_ns())
        command()
        self._running = None

    def _execute(self, waiting: _Waiting) -> None:
        job, started_ns = waiting.job, self._clock.now_ns()
        if waiting.future.done():
            return  # cancelled between leaving the queue and now
        if job.deadline_ns is not None and started_ns >= job.deadline_ns:
            waiting.finish(DeadlineExceeded(f"model '{job.model}': the deadline passed while the request was queued"))
            return
        self._running = _Running(waiting, started_ns)
        outcome = _run(job)
        self._running = None
        self._record(waiting, started_ns, self._clock.now_ns())
        waiting.finish(outcome)

    def _record(self, waiting: _Waiting, started_ns: int, ended_ns: int) -> None:
        with self._lock:
            tally = self._tallies.setdefault(waiting.job.model, _Tally())
            tally.executions += 1
            tally.requests += 1
            tally.rows += waiting.job.rows
            tally.compute_ns += ended_ns - started_ns
            tally.waits_ns.append(started_ns - waiting.enqueued_ns)


def _run(job: Job) -> list[NamedTensor] | BaseException:
    try:
        return job.session.run(job.inputs, job.outputs)
    except NodeError as error:
        return error
    except Exception as error:  # noqa: BLE001 - one request's failure must not end the dispatch thread
        internal = Internal(f"model '{job.model}': {type(error).__name__}: {error}")
        internal.__cause__ = error
        return internal


def _complete(future: asyncio.Future[Any], outcome: object) -> None:
    if future.done():
        return  # cancelled, or answered when its run was abandoned
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:  # the loop is closed: the process is ending and nobody waits
        return
