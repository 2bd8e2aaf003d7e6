"""What a worker counts of each model's requests and executions, defined as in Triton's statistics extension.

A request that was directed to a model this worker serves is counted once, when its answer is ready: as a success with
its parts, or as a failure with its total alone, whatever the reason (a wrong shape, a full queue, a passed deadline, a
client that went away, a failed run). A request that no model can be found for is counted nowhere here.

A success has these times, which are what it took but for handing it from thread to thread:

    compute_input | queue | compute_input | compute_infer | compute_output | compute_output
    read, checked |       | joined        | the run       | split          | written

What an execution took counts in full for every request in it, and once for its batch size. Only executions that
succeeded are counted; a request that was run again by itself, since its batch failed, has waited until that run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from reactant_node.clock import Clock
from reactant_node.kserve.statistics import BatchDurations, Duration, ModelStatistics, RequestDurations
from reactant_node.scheduling.model_state import counted_size

NS_PER_MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class ExecutionTimes:
    """How long the parts of one execution took: joining the inputs, the run, splitting the outputs."""

    input_ns: int
    infer_ns: int
    output_ns: int


@dataclass(slots=True)
class _BatchCounts:
    executions: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def snapshot(self) -> BatchDurations:
        count = self.executions
        return BatchDurations(
            Duration(count, self.input_ns), Duration(count, self.infer_ns), Duration(count, self.output_ns)
        )


@dataclass(slots=True, eq=False)
class ModelCounts:
    """The counts of one model. They belong to the recorder; for everybody else they are a place to record at."""

    successes: int = 0
    failures: int = 0
    rows: int = 0
    success_ns: int = 0
    fail_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    last_inference_ms: int = 0
    batches: dict[int, _BatchCounts] = field(default_factory=dict)

    def snapshot(self, model: str, version: str) -> ModelStatistics:
        """Frozen."""
        count = self.successes
        return ModelStatistics(
            name=model,
            version=version,
            last_inference_ms=self.last_inference_ms,
            inference_count=self.rows,
            execution_count=sum(batch.executions for batch in self.batches.values()),
            requests=RequestDurations(
                success=Duration(count, self.success_ns),
                fail=Duration(self.failures, self.fail_ns),
                queue=Duration(count, self.queue_ns),
                compute_input=Duration(count, self.input_ns),
                compute_infer=Duration(count, self.infer_ns),
                compute_output=Duration(count, self.output_ns),
            ),
            batches={size: batch.snapshot() for size, batch in self.batches.items()},
        )


class RequestMeasurement:
    """One request while it is answered: a context manager that counts it when it ends, if a model was found for it."""

    __slots__ = ("_counts", "_outcome", "_queued_ns", "_recorder", "_started_ns")

    def __init__(self, recorder: StatisticsRecorder) -> None:
        self._recorder = recorder
        self._started_ns = self._queued_ns = recorder.clock.now_ns()
        self._counts: ModelCounts | None = None
        self._outcome: _Outcome | None = None

    def __enter__(self) -> Self:
        return self

    def found(self, model: str) -> None:
        """It is for this model, which is served."""
        self._counts = self._recorder.counts_of(model)

    def queued(self) -> None:
        """It was read and checked, and is handed over."""
        self._queued_ns = self._recorder.clock.now_ns()

    def answered(self, rows: int, queue_ns: int, times: ExecutionTimes) -> None:
        """Its outputs are there, to be written."""
        self._outcome = _Outcome(rows, queue_ns, times, self._recorder.clock.now_ns())

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self._counts is None:
            return
        now_ns, outcome = self._recorder.clock.now_ns(), self._outcome
        if error is not None or outcome is None:
            self._recorder.record_failure(self._counts, now_ns - self._started_ns)
            return
        times = ExecutionTimes(
            self._queued_ns - self._started_ns + outcome.times.input_ns,
            outcome.times.infer_ns,
            outcome.times.output_ns + now_ns - outcome.answered_ns,
        )
        total_ns = now_ns - self._started_ns
        self._recorder.record_success(self._counts, outcome.rows, total_ns, outcome.queue_ns, times)


@dataclass(frozen=True, slots=True)
class _Outcome:
    rows: int
    queue_ns: int
    times: ExecutionTimes
    answered_ns: int


class StatisticsRecorder:
    """Counts. Written by the transport loop (requests) and the dispatch thread (executions), under one lock.

    Who begins something takes its model's `ModelCounts` with it and records there at the end: so it is counted once
    also where the model was renamed in between, and leaves nothing behind where it was removed.

    Args:
        clock: monotonic.
        epoch_ns: the time of day.
    """

    def __init__(self, clock: Clock, epoch_ns: Callable[[], int] = time.time_ns) -> None:
        self.clock = clock
        self._epoch_ns = epoch_ns
        self._lock = threading.Lock()
        self._models: dict[str, ModelCounts] = {}

    def __repr__(self) -> str:
        return f"<StatisticsRecorder {len(self._models)} models>"

    def add_model(self, name: str) -> None:
        """Count a model from now on; the counts of one that is there go on."""
        with self._lock:
            self._models.setdefault(name, ModelCounts())

    def remove_model(self, name: str) -> None:
        """Forget a model and its counts."""
        with self._lock:
            self._models.pop(name, None)

    def rename_model(self, old: str, new: str) -> None:
        """Go on counting under another name, in place of a model that had it."""
        with self._lock:
            self._models[new] = self._models.pop(old, ModelCounts())

    def measure(self) -> RequestMeasurement:
        """A context manager around the answering of one request, which begins now."""
        return RequestMeasurement(self)

    def counts_of(self, model: str) -> ModelCounts:
        """Where to record what begins now; nobody reads it where the model is not counted."""
        with self._lock:
            return self._models.get(model) or ModelCounts()

    def record_success(
        self, counts: ModelCounts, rows: int, total_ns: int, queue_ns: int, times: ExecutionTimes
    ) -> None:
        """A request was answered."""
        with self._lock:
            counts.successes += 1
            counts.rows += rows
            counts.success_ns += total_ns
            counts.queue_ns += queue_ns
            counts.input_ns += times.input_ns
            counts.infer_ns += times.infer_ns
            counts.output_ns += times.output_ns

    def record_failure(self, counts: ModelCounts, total_ns: int) -> None:
        """A request came to nothing."""
        with self._lock:
            counts.failures += 1
            counts.fail_ns += total_ns

    def record_execution(self, counts: ModelCounts, batch_size: int, times: ExecutionTimes) -> None:
        """An execution succeeded, just now."""
        with self._lock:
            counts.last_inference_ms = self._epoch_ns() // NS_PER_MILLISECOND
            batch = counts.batches.setdefault(counted_size(batch_size), _BatchCounts())
            batch.executions += 1
            batch.input_ns += times.input_ns
            batch.infer_ns += times.infer_ns
            batch.output_ns += times.output_ns

    def statistics(self, model: str, version: str) -> ModelStatistics:
        """A snapshot of one model, from any thread; all zeros where it is not counted."""
        with self._lock:
            return self._models.get(model, ModelCounts()).snapshot(model, version)
