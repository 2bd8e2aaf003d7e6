"""The KServe messages without tensors: liveness, readiness, what the server and its models are.

Kept apart from `codec.py` because the gateway, in the parent process, speaks these and never imports numpy. Each
message has an encoder, for whoever sends it, and a decoder where somebody reads it (requests of ServerLive, ServerReady
and ServerMetadata are empty); requests that do not parse are the sender's fault
(`InvalidArgument`), replies that do not parse are the peer's (`Internal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reactant_node.errors import Internal, InvalidArgument
from reactant_node.kserve.parsing import parse
from reactant_node.kserve.pb import grpc_predict_v2_pb2 as pb
from reactant_node.kserve.pb import health_pb2
from reactant_node.models.signature import Dimension, ModelSignature, TensorSpec

_INFERENCE = "/inference.GRPCInferenceService/"
SERVER_LIVE = _INFERENCE + "ServerLive"
SERVER_READY = _INFERENCE + "ServerReady"
SERVER_METADATA = _INFERENCE + "ServerMetadata"
MODEL_READY = _INFERENCE + "ModelReady"
MODEL_METADATA = _INFERENCE + "ModelMetadata"
MODEL_CONFIG = _INFERENCE + "ModelConfig"
MODEL_STATISTICS = _INFERENCE + "ModelStatistics"
MODEL_INFER = _INFERENCE + "ModelInfer"
REPOSITORY_INDEX = _INFERENCE + "RepositoryIndex"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

INFERENCE_SERVICE = "inference.GRPCInferenceService"
"""The name a health check asks for, besides the empty one."""

_ANY_EXTENT = -1


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """Which model a ModelReady, ModelMetadata, ModelConfig or ModelStatistics request names; version may be empty."""

    model: str
    version: str


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One row of a repository index. `reason` says why a model is not READY, and is empty where it is."""

    name: str
    version: str
    state: str
    reason: str = ""


def encode_live(live: bool) -> bytes:
    """A ServerLive reply."""
    return pb.ServerLiveResponse(live=live).SerializeToString()


def encode_ready(ready: bool) -> bytes:
    """A ServerReady or ModelReady reply: the two are laid out alike."""
    return pb.ServerReadyResponse(ready=ready).SerializeToString()


def decode_ready(reply: bytes) -> bool:
    """The answer of ServerReady or ModelReady.

    Raises:
        Internal: the peer's reply is malformed.
    """
    return parse(pb.ServerReadyResponse, reply, Internal).ready


def encode_server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """A ServerMetadata reply."""
    return pb.ServerMetadataResponse(name=name, version=version, extensions=extensions).SerializeToString()


def encode_model_query(query: ModelQuery) -> bytes:
    """A request about one model: those of all `ModelQuery` methods are laid out alike."""
    return pb.ModelReadyRequest(name=query.model, version=query.version).SerializeToString()


def decode_model_query(request: bytes) -> ModelQuery:
    """What a request about one model asks for: those of all `ModelQuery` methods are laid out alike.

    Raises:
        InvalidArgument: the request is malformed.
    """
    message = parse(pb.ModelReadyRequest, request, InvalidArgument)
    return ModelQuery(message.name, message.version)


def encode_model_metadata(name: str, versions: Sequence[str], platform: str, signature: ModelSignature) -> bytes:
    """A ModelMetadata reply.

    Symbolic and unnamed extents are -1 and a scalar has no extents. The protocol cannot say that a graph declares
    no rank at all: such a tensor has the one extent -1.
    """
    reply = pb.ModelMetadataResponse(name=name, versions=versions, platform=platform)
    for spec in signature.inputs:
        reply.inputs.add(name=spec.name, datatype=spec.datatype, shape=wire_shape(spec))
    for spec in signature.outputs:
        reply.outputs.add(name=spec.name, datatype=spec.datatype, shape=wire_shape(spec))
    return reply.SerializeToString()


def encode_index_request(*, ready_only: bool = False) -> bytes:
    """A RepositoryIndex request."""
    return pb.RepositoryIndexRequest(ready=ready_only).SerializeToString()


def decode_index_request(request: bytes) -> bool:
    """Whether a RepositoryIndex request asks for ready models only. The repository's name in it is ignored.

    Raises:
        InvalidArgument: the request is malformed.
    """
    return parse(pb.RepositoryIndexRequest, request, InvalidArgument).ready


def encode_index(entries: Sequence[IndexEntry]) -> bytes:
    """A RepositoryIndex reply."""
    reply = pb.RepositoryIndexResponse()
    for entry in entries:
        # A reason may quote a file name that is no UTF-8, which Python writes with surrogates and protobuf refuses.
        reason = entry.reason.encode("utf-8", "replace").decode("utf-8")
        reply.models.add(name=entry.name, version=entry.version, state=entry.state, reason=reason)
    return reply.SerializeToString()


def decode_index(reply: bytes) -> tuple[IndexEntry, ...]:
    """The rows of a RepositoryIndex reply.

    Raises:
        Internal: the peer's reply is malformed.
    """
    rows = parse(pb.RepositoryIndexResponse, reply, Internal).models
    return tuple(IndexEntry(row.name, row.version, row.state, row.reason) for row in rows)


def decode_health_request(request: bytes) -> str:
    """The service a health check asks about; empty is the server as a whole.

    Raises:
        InvalidArgument: the request is malformed.
    """
    return parse(health_pb2.HealthCheckRequest, request, InvalidArgument).service


def encode_health(serving: bool) -> bytes:
    """A health check's reply."""
    states = health_pb2.HealthCheckResponse
    return states(status=states.SERVING if serving else states.NOT_SERVING).SerializeToString()


def wire_shape(spec: TensorSpec) -> list[int]:
    """Extents as the protocol writes them: see `encode_model_metadata`."""
    shape: tuple[Dimension, ...] = (None,) if spec.shape is None else spec.shape
    return [extent if isinstance(extent, int) else _ANY_EXTENT for extent in shape]
