"""Each request is counted once, by its model, with its parts."""

from __future__ import annotations

from contextlib import suppress

import pytest

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import InvalidArgument
from reactant_node.kserve.statistics import BatchDurations, Duration, ModelStatistics, RequestDurations
from reactant_node.worker.statistics import ExecutionTimes, StatisticsRecorder
from tests.support.clock import ManualClock

S = NS_PER_SECOND
TIMES = ExecutionTimes(input_ns=5, infer_ns=70, output_ns=900)


class Day:
    """A time of day that a test sets, in milliseconds."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        """In nanoseconds."""
        return self.ms * 1_000_000


def recorder(clock: ManualClock, day: Day | None = None) -> StatisticsRecorder:
    """One that counts the model `m`."""
    made = StatisticsRecorder(clock, day or Day())
    made.add_model("m")
    return made


def test_a_success_is_its_total_and_its_parts() -> None:
    """Reading goes to the input, writing to the output, the wait to the queue, and a batch's run to each in it."""
    clock = ManualClock()
    counts = recorder(clock)
    with counts.measure() as request:
        request.found("m")
        clock.advance(1)
        request.queued()
        clock.advance(20)
        request.answered(rows=4, queue_ns=13 * S, times=ExecutionTimes(2 * S, 3 * S, 2 * S))
        clock.advance(300)

    assert counts.statistics("m", "7") == ModelStatistics(
        "m",
        "7",
        inference_count=4,
        requests=RequestDurations(
            success=Duration(1, 321 * S),
            queue=Duration(1, 13 * S),
            compute_input=Duration(1, 3 * S),
            compute_infer=Duration(1, 3 * S),
            compute_output=Duration(1, 302 * S),
        ),
    )


@pytest.mark.parametrize("answered", [False, True])
def test_a_failure_is_its_total_alone(*, answered: bool) -> None:
    """Also where only the writing of the reply failed."""
    clock = ManualClock()
    counts = recorder(clock)
    with suppress(InvalidArgument), counts.measure() as request:
        request.found("m")
        clock.advance(2)
        if answered:
            request.answered(1, 1, TIMES)
        raise InvalidArgument("a wrong shape")

    assert counts.statistics("m", "1") == ModelStatistics("m", "1", requests=RequestDurations(fail=Duration(1, 2 * S)))


def test_a_request_without_a_model_is_not_counted() -> None:
    """A name that only a client has said never takes a place."""
    counts = recorder(ManualClock())
    with suppress(InvalidArgument), counts.measure():
        raise InvalidArgument("malformed")
    assert counts.statistics("m", "1") == ModelStatistics("m", "1")
    assert repr(counts) == "<StatisticsRecorder 1 models>"


def test_executions_are_counted_by_size_and_tell_the_time_of_the_newest() -> None:
    """Once each, whatever number of requests they served."""
    day = Day()
    counts = recorder(ManualClock(), day)
    m = counts.counts_of("m")
    counts.record_execution(m, 8, TIMES)
    day.ms = 2_000
    counts.record_execution(m, 1, TIMES)
    counts.record_execution(m, 8, TIMES)

    assert counts.statistics("m", "1") == ModelStatistics(
        "m",
        "1",
        last_inference_ms=2_000,
        execution_count=3,
        batches={
            1: BatchDurations(Duration(1, 5), Duration(1, 70), Duration(1, 900)),
            8: BatchDurations(Duration(2, 10), Duration(2, 140), Duration(2, 1800)),
        },
    )


def test_clients_cannot_make_the_sizes_grow() -> None:
    """Sizes above 1024 share the next power of two; none is lost."""
    counts = recorder(ManualClock())
    for size in range(1000, 9000):
        counts.record_execution(counts.counts_of("m"), size, TIMES)
    batches = counts.statistics("m", "1").batches
    assert sorted(batches) == [*range(1000, 1025), 2048, 4096, 8192, 16384]
    assert sum(batch.compute_infer.count for batch in batches.values()) == 8000


def test_a_model_that_is_added_again_goes_on() -> None:
    """A new version of its graph is the same model."""
    counts = recorder(ManualClock())
    counts.record_failure(counts.counts_of("m"), 3)
    counts.add_model("m")
    counts.record_failure(counts.counts_of("m"), 4)
    assert counts.statistics("m", "1").requests.fail == Duration(2, 7)


def test_what_ends_after_its_model_was_removed_is_counted_nowhere() -> None:
    """Nothing is left behind, and a model of the same name begins anew."""
    counts = recorder(ManualClock())
    with counts.measure() as request:
        request.found("m")
        running = counts.counts_of("m")
        counts.remove_model("m")
        counts.record_execution(running, 1, TIMES)
        request.answered(1, 1, TIMES)
    counts.record_failure(counts.counts_of("m"), 1)
    assert repr(counts) == "<StatisticsRecorder 0 models>"
    counts.add_model("m")
    assert counts.statistics("m", "1") == ModelStatistics("m", "1")


def test_what_ends_after_its_model_was_renamed_is_counted_under_the_new_name() -> None:
    """The counts go on there, in place of those of a model that had the name."""
    counts = recorder(ManualClock())
    counts.add_model("new")
    counts.record_failure(counts.counts_of("new"), 9)
    counts.record_failure(counts.counts_of("m"), 1)
    with counts.measure() as request:
        request.found("m")
        running = counts.counts_of("m")
        counts.rename_model("m", "new")
        counts.record_execution(running, 1, TIMES)
        request.answered(1, 1, TIMES)
    renamed = counts.statistics("new", "1")
    assert (renamed.requests.success.count, renamed.requests.fail, renamed.execution_count) == (1, Duration(1, 1), 1)
    assert counts.statistics("m", "1") == ModelStatistics("m", "1")


def test_a_snapshot_does_not_change() -> None:
    """Readers hold what was, while counting goes on."""
    counts = recorder(ManualClock())
    m = counts.counts_of("m")
    counts.record_execution(m, 1, TIMES)
    before = counts.statistics("m", "1")
    counts.record_execution(m, 1, TIMES)
    assert before.execution_count == before.batches[1].compute_infer.count == 1
