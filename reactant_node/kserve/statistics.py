"""What a server counted of each model's requests, by Triton's statistics extension: as values, on the wire, summed.

Apart from the codec, since the gateway sums the workers' statistics and never imports numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from reactant_node.errors import Internal
from reactant_node.kserve.parsing import parse
from reactant_node.kserve.pb import grpc_predict_v2_pb2 as pb


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and how long it took in all, in nanoseconds."""

    count: int = 0
    ns: int = 0

    def __add__(self, other: Duration) -> Duration:
        return Duration(self.count + other.count, self.ns + other.ns)


@dataclass(frozen=True, slots=True)
class RequestDurations:
    """The requests of one model, each counted once by how it ended; the parts are counted for successes alone.

    Attributes:
        success: from arrival to the encoded reply.
        fail: from arrival to the error.
        queue: from the queue's end to the front and onto the device.
        compute_input: reading the request, and joining it with others.
        compute_infer: the run. A run that served several requests counts in full for each.
        compute_output: giving each its rows, and writing the reply.
    """

    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()

    def __add__(self, other: RequestDurations) -> RequestDurations:
        return RequestDurations(
            self.success + other.success,
            self.fail + other.fail,
            self.queue + other.queue,
            self.compute_input + other.compute_input,
            self.compute_infer + other.compute_infer,
            self.compute_output + other.compute_output,
        )


@dataclass(frozen=True, slots=True)
class BatchDurations:
    """The executions of one size, each counted once: joining, the run, giving each request its rows."""

    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()

    def __add__(self, other: BatchDurations) -> BatchDurations:
        return BatchDurations(
            self.compute_input + other.compute_input,
            self.compute_infer + other.compute_infer,
            self.compute_output + other.compute_output,
        )


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """All that is counted of one model, cumulative.

    Attributes:
        name: the model's.
        version: the one that is served.
        last_inference_ms: when the newest execution ended, since the epoch; 0: there was none.
        inference_count: rows of the requests that succeeded.
        execution_count: executions that succeeded.
        requests: by how they ended.
        batches: by rows per execution.
    """

    name: str
    version: str
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    requests: RequestDurations = RequestDurations()
    batches: Mapping[int, BatchDurations] = field(default_factory=lambda: MappingProxyType({}))

    def __add__(self, other: ModelStatistics) -> ModelStatistics:
        """Both counts together, under this one's name and version."""
        sizes = sorted({*self.batches, *other.batches})
        none = BatchDurations()
        return ModelStatistics(
            self.name,
            self.version,
            max(self.last_inference_ms, other.last_inference_ms),
            self.inference_count + other.inference_count,
            self.execution_count + other.execution_count,
            self.requests + other.requests,
            {size: self.batches.get(size, none) + other.batches.get(size, none) for size in sizes},
        )


def sum_statistics(models: Iterable[ModelStatistics]) -> tuple[ModelStatistics, ...]:
    """One entry per name and version, sorted, out of those of many workers."""
    sums: dict[tuple[str, str], ModelStatistics] = {}
    for model in models:
        key = (model.name, model.version)
        sums[key] = sums[key] + model if key in sums else model
    return tuple(sums[key] for key in sorted(sums))


def encode_statistics(models: Iterable[ModelStatistics]) -> bytes:
    """A ModelStatistics reply."""
    return pb.ModelStatisticsResponse(model_stats=[_encode_model(model) for model in models]).SerializeToString()


def decode_statistics(reply: bytes) -> tuple[ModelStatistics, ...]:
    """The models of a ModelStatistics reply.

    Raises:
        Internal: the peer's reply is malformed.
    """
    return tuple(_decode_model(model) for model in parse(pb.ModelStatisticsResponse, reply, Internal).model_stats)


def _encode_model(model: ModelStatistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=model.last_inference_ms,
        inference_count=model.inference_count,
        execution_count=model.execution_count,
        inference_stats=_encode_requests(model.requests),
        batch_stats=[_encode_batch(size, batch) for size, batch in sorted(model.batches.items())],
    )


def _encode_requests(requests: RequestDurations) -> pb.InferStatistics:
    return pb.InferStatistics(
        success=_encode_duration(requests.success),
        fail=_encode_duration(requests.fail),
        queue=_encode_duration(requests.queue),
        compute_input=_encode_duration(requests.compute_input),
        compute_infer=_encode_duration(requests.compute_infer),
        compute_output=_encode_duration(requests.compute_output),
        cache_hit=pb.StatisticDuration(),  # Triton sends these also where there is no cache
        cache_miss=pb.StatisticDuration(),
    )


def _encode_batch(size: int, batch: BatchDurations) -> pb.InferBatchStatistics:
    return pb.InferBatchStatistics(
        batch_size=size,
        compute_input=_encode_duration(batch.compute_input),
        compute_infer=_encode_duration(batch.compute_infer),
        compute_output=_encode_duration(batch.compute_output),
    )


def _encode_duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


def _decode_model(message: pb.ModelStatistics) -> ModelStatistics:
    return ModelStatistics(
        message.name,
        message.version,
        message.last_inference,
        message.inference_count,
        message.execution_count,
        _decode_requests(message.inference_stats),
        {batch.batch_size: _decode_batch(batch) for batch in message.batch_stats},
    )


def _decode_requests(message: pb.InferStatistics) -> RequestDurations:
    return RequestDurations(
        success=_decode_duration(message.success),
        fail=_decode_duration(message.fail),
        queue=_decode_duration(message.queue),
        compute_input=_decode_duration(message.compute_input),
        compute_infer=_decode_duration(message.compute_infer),
        compute_output=_decode_duration(message.compute_output),
    )


def _decode_batch(message: pb.InferBatchStatistics) -> BatchDurations:
    return BatchDurations(
        _decode_duration(message.compute_input),
        _decode_duration(message.compute_infer),
        _decode_duration(message.compute_output),
    )


def _decode_duration(message: pb.StatisticDuration) -> Duration:
    return Duration(message.count, message.ns)
