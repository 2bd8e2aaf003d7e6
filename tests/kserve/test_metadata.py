"""The messages without tensors, against tritonclient's classes."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2

from reactant_node.errors import Internal, InvalidArgument
from reactant_node.kserve import metadata
from reactant_node.kserve.metadata import IndexEntry, ModelQuery
from reactant_node.models.signature import ModelSignature, TensorSpec


def test_liveness_and_readiness() -> None:
    """The three yes-or-no replies say what they were told, and can be read again."""
    for answer in True, False:
        assert service_pb2.ServerLiveResponse.FromString(metadata.encode_live(answer)).live is answer
        assert service_pb2.ServerReadyResponse.FromString(metadata.encode_ready(answer)).ready is answer
        assert service_pb2.ModelReadyResponse.FromString(metadata.encode_ready(answer)).ready is answer
        assert metadata.decode_ready(metadata.encode_ready(answer)) is answer


def test_server_metadata() -> None:
    """Name, version and extensions are the server's."""
    reply = service_pb2.ServerMetadataResponse.FromString(metadata.encode_server_metadata("s", "0.1", ["a", "b"]))
    assert (reply.name, reply.version, list(reply.extensions)) == ("s", "0.1", ["a", "b"])


@pytest.mark.parametrize(
    "kind",
    [
        service_pb2.ModelReadyRequest,
        service_pb2.ModelMetadataRequest,
        service_pb2.ModelConfigRequest,
        service_pb2.ModelStatisticsRequest,
    ],
)
def test_model_queries(kind: type) -> None:
    """Whatever is asked about a model is asked by name and version, in one form."""
    message = kind(name="m", version="2").SerializeToString()
    assert metadata.decode_model_query(message) == ModelQuery("m", "2")
    assert metadata.encode_model_query(ModelQuery("m", "2")) == message


def test_model_metadata_shapes() -> None:
    """Symbolic and unnamed extents are -1, a scalar has none, and an undeclared rank is one extent of -1."""
    signature = ModelSignature(
        inputs=(TensorSpec("x", "FP32", ("batch", 3, None)), TensorSpec("s", "BYTES", ())),
        outputs=(TensorSpec("y", "BF16", None),),
    )
    message = metadata.encode_model_metadata("m", ["1"], "cpu", signature)
    reply = service_pb2.ModelMetadataResponse.FromString(message)
    assert (reply.name, list(reply.versions), reply.platform) == ("m", ["1"], "cpu")
    assert [(t.name, t.datatype, list(t.shape)) for t in reply.inputs] == [
        ("x", "FP32", [-1, 3, -1]),
        ("s", "BYTES", []),
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in reply.outputs] == [("y", "BF16", [-1])]


def test_repository_index() -> None:
    """Rows are kept, in order; a reason that quotes an undecodable file name is still sent."""
    rows = (IndexEntry("a", "1", "READY"), IndexEntry("b", "", "UNAVAILABLE", "no \udc80 here"))
    message = metadata.encode_index(rows)
    assert metadata.decode_index(message) == (rows[0], IndexEntry("b", "", "UNAVAILABLE", "no ? here"))
    reply = service_pb2.RepositoryIndexResponse.FromString(message)
    first = reply.models[0]
    assert (first.name, first.version, first.state, first.reason) == ("a", "1", "READY", "")


def test_repository_index_filter() -> None:
    """A request may ask for ready models only; the repository's name in it is ignored."""
    assert metadata.decode_index_request(metadata.encode_index_request()) is False
    assert metadata.decode_index_request(metadata.encode_index_request(ready_only=True)) is True
    message = service_pb2.RepositoryIndexRequest(repository_name="other", ready=True).SerializeToString()
    assert metadata.decode_index_request(message) is True


def test_health() -> None:
    """A health check names a service, and is told SERVING or NOT_SERVING."""
    assert metadata.decode_health_request(b"") == ""
    assert metadata.decode_health_request(b"\x0a\x01x") == "x"
    assert metadata.encode_health(serving=True) == b"\x08\x01"
    assert metadata.encode_health(serving=False) == b"\x08\x02"


@pytest.mark.parametrize(
    "decode", [metadata.decode_model_query, metadata.decode_index_request, metadata.decode_health_request]
)
def test_a_malformed_request_blames_the_sender(decode: object) -> None:
    """Requests that do not parse are INVALID_ARGUMENT."""
    assert callable(decode)
    with pytest.raises(InvalidArgument, match="malformed protobuf message"):
        decode(b"\xff")


@pytest.mark.parametrize("decode", [metadata.decode_ready, metadata.decode_index])
def test_a_malformed_reply_is_no_fault_of_the_caller(decode: object) -> None:
    """Replies of a peer that do not parse are INTERNAL."""
    assert callable(decode)
    with pytest.raises(Internal, match="malformed protobuf message"):
        decode(b"\xff")
