"""The one thread that owns the sessions and runs them, one execution at a time.

The transport loop hands a request over once, as a `Job`, and gets one answer back, by a future on its loop. What runs
next, and which requests share an execution, is the scheduler's decision (`scheduling/`); this thread asks it whenever
the device is free, runs the batch, and gives each caller its own rows. Commands (loading a model) go before requests
and run on the same thread, so that nothing else ever touches a session: no lock is held around device work.

One bad request never spoils its neighbours: when a joined run fails, its members run once each, by themselves.

Ownership: the scheduler, the commands and the tallies are guarded by `_lock`; `_running` is written by the dispatch
thread alone and read as one reference. A request is finished exactly once: whoever takes it out of the scheduler (the
thread to run it or to tell that it is late, a caller that goes away, `_close`) is the one who finishes it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reactant_node.clock import NS_PER_SECOND, Clock
from reactant_node.config.schema import SchedulerConfig
from reactant_node.errors import DeadlineExceeded, Internal, NodeError, Unavailable
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.scheduling.model_state import Batch
from reactant_node.scheduling.queues import Ticket
from reactant_node.scheduling.scheduler import Scheduler, SchedulerSnapshot
from reactant_node.tensors import NamedTensor
from reactant_node.worker.batch import Job, run_together

T = TypeVar("T")

Outcome = list[NamedTensor] | BaseException


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """What the device has done for one model, cumulative.

    Attributes:
        executions: runs, failed ones included.
        compute_ns: their time.
    """

    executions: int = 0
    compute_ns: int = 0


@dataclass(frozen=True, slots=True)
class DispatcherStatistics:
    """A snapshot.

    Attributes:
        scheduler: queues, waits, costs and batches.
        counters: per model that ever ran.
        busy_since_ns: when the run on the device began, None when idle.
        loading: a command is running.
    """

    scheduler: SchedulerSnapshot
    counters: Mapping[str, ModelCounters]
    busy_since_ns: int | None
    loading: bool


@dataclass(slots=True, eq=False)
class _Waiting:
    job: Job
    future: asyncio.Future[list[NamedTensor]]
    loop: asyncio.AbstractEventLoop

    def finish(self, outcome: Outcome) -> None:
        """Complete the future on its loop; a loop that is closed has nobody waiting."""
        _call_soon(self.loop, _complete, self.future, outcome)


@dataclass(frozen=True, slots=True)
class _Running:
    """What is on the device: requests, or a command where there are none."""

    members: tuple[_Waiting, ...]
    since_ns: int


class Dispatcher:
    """Owns the dispatch thread. `infer` and `call` are for the transport loop; see the module for who owns what."""

    def __init__(self, clock: Clock, config: SchedulerConfig) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._scheduler: Scheduler[_Waiting] = Scheduler(config)
        self._commands: deque[Callable[[], None]] = deque()
        self._counters: dict[str, ModelCounters] = {}
        self._running: _Running | None = None
        self._closed_reason: str | None = None
        self._thread = threading.Thread(target=self._main, name="dispatch", daemon=True)

    def __repr__(self) -> str:
        busy = "running" if self._running else "idle"
        return f"<Dispatcher {self._closed_reason or busy}, {self._scheduler!r}>"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add_model(self, name: str, limits: BatchLimits) -> None:
        """Accept requests for a model; see `Scheduler.add_model`."""
        with self._lock:
            self._scheduler.add_model(name, limits)

    async def infer(self, job: Job) -> list[NamedTensor]:
        """Queue a request and wait for its outputs. Cancelling the caller takes it out of the queue.

        Raises:
            ResourceExhausted: the model's queue is full.
            DeadlineExceeded: its time was over before the device was free.
            Unavailable: the worker is stopping or being replaced.
            InvalidArgument, Internal: what the run raised.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(job, loop.create_future(), loop)
        ticket = Ticket(waiting, self._clock.now_ns(), job.rows, job.variant, job.deadline_ns)
        with self._wake:
            if self._closed_reason is not None:
                raise Unavailable(self._closed_reason)
            self._scheduler.enqueue(job.model, ticket)
            self._wake.notify()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            with self._lock:
                self._scheduler.withdraw(ticket)
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
        """Answer the callers of a run that is past its limit, and everybody behind it; accept nothing more.

        The run itself cannot be interrupted: the supervisor replaces this process.
        """
        running = self._running
        for waiting in running.members if running is not None else ():
            waiting.finish(Internal(reason))
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
            return DispatcherStatistics(
                scheduler=self._scheduler.statistics(self._clock.now_ns()),
                counters=dict(self._counters),
                busy_since_ns=running.since_ns if running is not None and running.members else None,
                loading=running is not None and not running.members,
            )

    def _close(self, reason: str) -> None:
        with self._wake:
            self._closed_reason = self._closed_reason or reason
            left = self._scheduler.drain()
            self._wake.notify()
        for ticket in left:
            ticket.payload.finish(Unavailable(reason))

    def _main(self) -> None:
        while (work := self._next()) is not None:
            if isinstance(work, Batch):
                self._execute(work)
            else:
                self._running = _Running((), self._clock.now_ns())
                work()
                self._running = None

    def _next(self) -> Batch[_Waiting] | Callable[[], None] | None:
        """The next thing to do; waits for it. None: there is nothing more to come."""
        while True:
            with self._wake:
                if self._commands:
                    return self._commands.popleft()
                plan = self._scheduler.plan_dispatch(self._clock.now_ns())
                if plan.batch is None and not plan.expired:
                    if self._closed_reason is not None:
                        return None
                    self._wake.wait(self._seconds_until(plan.wake_ns))
            for ticket in plan.expired:
                ticket.payload.finish(_late(ticket.payload.job.model))
            if plan.batch is not None:
                return plan.batch

    def _seconds_until(self, wake_ns: int | None) -> float | None:
        return None if wake_ns is None else max(0, wake_ns - self._clock.now_ns()) / NS_PER_SECOND

    def _execute(self, batch: Batch[_Waiting]) -> None:
        """Run a batch and answer its members; where it fails as a whole, run them one by one."""
        members = tuple(ticket.payload for ticket in batch.tickets)
        outcomes = self._run(batch.model, members, batch.batch_size)
        if len(members) > 1 and isinstance(outcomes[0], BaseException):
            outcomes = [self._run(batch.model, (member,), member.job.rows)[0] for member in members]
        for member, outcome in zip(members, outcomes, strict=True):
            member.finish(outcome)

    def _run(self, model: str, members: tuple[_Waiting, ...], batch_size: int) -> Sequence[Outcome]:
        """One execution: an answer per member, or one error for all of them."""
        started_ns = self._clock.now_ns()
        self._running = _Running(members, started_ns)
        outcomes = _answers([member.job for member in members], batch_size)
        self._running = None
        ended_ns = self._clock.now_ns()
        with self._lock:
            before = self._counters.get(model, ModelCounters())
            self._counters[model] = ModelCounters(before.executions + 1, before.compute_ns + ended_ns - started_ns)
            succeeded = not isinstance(outcomes[0], BaseException)
            self._scheduler.record(model, batch_size, ended_ns - started_ns, ended_ns, succeeded=succeeded)
        return outcomes


def _answers(jobs: Sequence[Job], batch_size: int) -> Sequence[Outcome]:
    try:
        return run_together(jobs, batch_size)
    except NodeError as error:
        return [error] * len(jobs)
    except Exception as error:  # noqa: BLE001 - one request's failure must not end the dispatch thread
        internal = Internal(f"model '{jobs[0].model}': {type(error).__name__}: {error}")
        internal.__cause__ = error
        return [internal] * len(jobs)


def _late(model: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"model '{model}': the deadline passed while the request was queued")


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
