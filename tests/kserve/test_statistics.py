"""Statistics as values: on the wire as Triton's clients read them, and summed without loss."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from reactant_node.errors import Internal
from reactant_node.kserve.statistics import (
    BatchDurations,
    Duration,
    ModelStatistics,
    RequestDurations,
    decode_statistics,
    encode_statistics,
    sum_statistics,
)

UINT64 = 2**64 - 1

REQUESTS = RequestDurations(*(Duration(number, 10 * number) for number in range(1, 7)))
BATCH = BatchDurations(*(Duration(number, 10 * number) for number in range(7, 10)))

durations = st.builds(Duration, st.integers(0, 2**40), st.integers(0, 2**40))
models = st.builds(
    ModelStatistics,
    name=st.sampled_from("ab"),
    version=st.sampled_from("12"),
    last_inference_ms=st.integers(0, 2**45),
    inference_count=st.integers(0, 2**40),
    execution_count=st.integers(0, 2**40),
    requests=st.builds(RequestDurations, *[durations] * 6),
    batches=st.dictionaries(st.integers(0, 4), st.builds(BatchDurations, *[durations] * 3), max_size=3),
)


def test_a_client_reads_each_count_in_its_place() -> None:
    """Every field is where Triton's client looks for it, up to the largest number there is."""
    model = ModelStatistics("m", "3", 1_700_000_000_123, UINT64, 5, REQUESTS, {8: BATCH, 1: BATCH})

    reply = service_pb2.ModelStatisticsResponse.FromString(encode_statistics([model]))

    (row,) = reply.model_stats
    assert (row.name, row.version, row.last_inference) == ("m", "3", 1_700_000_000_123)
    assert (row.inference_count, row.execution_count) == (UINT64, 5)
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    stats = [getattr(row.inference_stats, name) for name in names]
    assert [(it.count, it.ns) for it in stats] == [*((number, 10 * number) for number in range(1, 7)), (0, 0), (0, 0)]
    assert all(row.inference_stats.HasField(name) for name in names)
    assert [batch.batch_size for batch in row.batch_stats] == [1, 8]
    for batch in row.batch_stats:
        parts = [getattr(batch, name) for name in names[3:6]]
        assert [(it.count, it.ns) for it in parts] == [(7, 70), (8, 80), (9, 90)]


@given(st.lists(models))
def test_what_was_encoded_is_decoded(rows: Sequence[ModelStatistics]) -> None:
    """Nothing is lost between a worker and the gateway."""
    assert decode_statistics(encode_statistics(rows)) == tuple(rows)


@given(st.lists(models), st.randoms())
def test_sums_do_not_depend_on_who_comes_first(rows: list[ModelStatistics], random: object) -> None:
    """One entry per name and version, whatever the order of the workers; zeros add nothing."""
    shuffled = [*rows, *(ModelStatistics(row.name, row.version) for row in rows)]
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    sums = sum_statistics(rows)

    assert sum_statistics(shuffled) == sums
    assert [(row.name, row.version) for row in sums] == sorted({(row.name, row.version) for row in rows})
    assert sum(row.requests.queue.ns for row in sums) == sum(row.requests.queue.ns for row in rows)
    in_batches = [sum(b.compute_infer.count for row in them for b in row.batches.values()) for them in (sums, rows)]
    assert in_batches[0] == in_batches[1]


def test_the_newest_inference_is_not_summed() -> None:
    """Of two times of day the later one stays."""
    older, newer = ModelStatistics("m", "1", 5), ModelStatistics("m", "1", 8)
    assert sum_statistics([newer, older]) == (newer,)


def test_a_malformed_reply_is_no_fault_of_the_caller() -> None:
    """It is INTERNAL."""
    with pytest.raises(Internal, match="malformed protobuf message"):
        decode_statistics(b"\xff")
