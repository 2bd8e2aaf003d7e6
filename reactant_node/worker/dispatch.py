"""The one thread that owns the sessions and runs them, one execution at a time.

The transport loop hands a request over once, as a `Job`, and gets one answer back, by a future on its loop. What runs
next, and which requests share an execution, is the scheduler's decision (`scheduling/`); this thread asks it whenever
the device is free, runs the batch, and gives each caller its own rows. Commands (loading a model) go before requests
and run on the same thread, so that nothing else ever runs or closes a session: no lock is held around device work.

One bad request never spoils its neighbours: when a joined run fails, its members run once each, by themselves.

Ownership: the scheduler, the commands and the tallies are guarded by `_lock`; `_running` is written by the dispatch
thread alone and read as one reference; which sessions are in use belongs to the transport loop. A request is finished
exactly once: whoever takes it out of the scheduler (the thread to run it or to tell that it is late, a caller that
goes away, `remove_model`, `_close`) is the one who finishes it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reactant_node.clock import NS_PER_SECOND, Clock
from reactant_node.config.schema import SchedulerConfig
from reactant_node.errors import DeadlineExceeded, Internal, NodeError, ResourceExhausted, Unavailable
from reactant_node.runtime.interface import Session
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.scheduling.model_state import Batch
from reactant_node.scheduling.queues import Ticket
from reactant_node.scheduling.scheduler import Scheduler, SchedulerSnapshot
from reactant_node.tensors import NamedTensor
from reactant_node.worker.batch import Answers, Job, run_together
from reactant_node.worker.statistics import ExecutionTimes, StatisticsRecorder

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a request gets.

    Attributes:
        outputs: those it asked for, in its order.
        queue_ns: from its arrival to the start of the execution that served it.
        times: that execution's.
    """

    outputs: list[NamedTensor]
    queue_ns: int
    times: ExecutionTimes


Outcome = Answer | BaseException


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
    enqueued_ns: int
    future: asyncio.Future[Answer]
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
        self._users: Counter[Session] = Counter()
        self._retired: set[Session] = set()
        self._counters: dict[str, ModelCounters] = {}
        self.recorder = StatisticsRecorder(clock)
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
        self.recorder.add_model(name)

    def replace_model(self, name: str, limits: BatchLimits) -> None:
        """A model has another session now; what is queued stays, for the one it came for."""
        with self._wake:
            self._scheduler.replace_model(name, limits)
            self._wake.notify()

    def rename_model(self, old: str, new: str) -> None:
        """A model goes on under another name, in place of the one that had it; what is queued for either stays."""
        with self._wake:
            left = self._scheduler.remove_model(new) if new in self._scheduler else ()
            self._scheduler.rename_model(old, new)
            refused = [(ticket, error) for ticket in left if (error := self._requeued(new, ticket)) is not None]
            self._wake.notify()
        self.recorder.rename_model(old, new)
        for ticket, error in refused:
            ticket.payload.finish(error)

    def remove_model(self, name: str) -> None:
        """Accept no more requests for a model; those that wait are answered UNAVAILABLE."""
        with self._lock:
            left = self._scheduler.remove_model(name)
        self.recorder.remove_model(name)
        for ticket in left:
            ticket.payload.finish(Unavailable(f"model '{name}' was unloaded while the request was queued"))

    def retire(self, session: Session) -> None:
        """Close a session after its last request. From the loop that calls `infer`, once per session."""
        self._retired.add(session)
        self._close_unused(session)

    def limits(self, name: str) -> BatchLimits:
        """What is joined of a model's requests; see `Scheduler.limits`."""
        with self._lock:
            return self._scheduler.limits(name)

    async def infer(self, job: Job) -> Answer:
        """Queue a request and wait for its answer. Cancelling the caller takes it out of the queue.

        Raises:
            ResourceExhausted: the model's queue is full.
            DeadlineExceeded: its time was over before the device was free.
            Unavailable: the worker is stopping or being replaced.
            InvalidArgument, Internal: what the run raised.
        """
        loop = asyncio.get_running_loop()
        now_ns = self._clock.now_ns()
        waiting = _Waiting(job, now_ns, loop.create_future(), loop)
        ticket = Ticket(waiting, now_ns, job.rows, job.variant, job.deadline_ns)
        with self._wake:
            if self._closed_reason is not None:
                raise Unavailable(self._closed_reason)
            self._scheduler.enqueue(job.model, ticket)
            self._wake.notify()
        self._users[job.session] += 1
        try:
            return await waiting.future
        except asyncio.CancelledError:
            with self._lock:
                self._scheduler.withdraw(ticket)
            raise
        finally:
            self._users[job.session] -= 1
            self._close_unused(job.session)

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

    def _requeued(self, name: str, ticket: Ticket[_Waiting]) -> ResourceExhausted | None:
        try:
            self._scheduler.enqueue(name, ticket)
        except ResourceExhausted as error:
            return error
        return None

    def _close_unused(self, session: Session) -> None:
        """On the dispatch thread, so that what is on the device ends before; whoever waited for it may be gone."""
        if self._users[session]:
            return
        del self._users[session]
        if session in self._retired:
            self._retired.remove(session)
            with self._wake:
                self._commands.append(session.close)
                self._wake.notify()

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
        started_ns, counts = self._clock.now_ns(), self.recorder.counts_of(model)
        self._running = _Running(members, started_ns)
        result = self._run_together([member.job for member in members], batch_size)
        self._running = None
        ended_ns, failed = self._clock.now_ns(), isinstance(result, BaseException)
        with self._lock:
            before = self._counters.get(model, ModelCounters())
            self._counters[model] = ModelCounters(before.executions + 1, before.compute_ns + ended_ns - started_ns)
            self._scheduler.record(model, batch_size, ended_ns - started_ns, ended_ns, succeeded=not failed)
        if isinstance(result, BaseException):
            return [result] * len(members)
        answers, times = result
        self.recorder.record_execution(counts, batch_size, times)
        return [
            Answer(outputs, started_ns - member.enqueued_ns, times)
            for member, outputs in zip(members, answers, strict=True)
        ]

    def _run_together(self, jobs: Sequence[Job], batch_size: int) -> tuple[Answers, ExecutionTimes] | BaseException:
        try:
            return run_together(jobs, batch_size, self._clock)
        except NodeError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the dispatch thread
            internal = Internal(f"model '{jobs[0].model}': {type(error).__name__}: {error}")
            internal.__cause__ = error
            return internal


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
