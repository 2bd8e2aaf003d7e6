"""The messages that load and unload models by request, as Triton's model repository extension defines them."""

from __future__ import annotations

from collections.abc import Iterable

from reactant_node.errors import InvalidArgument, Unimplemented
from reactant_node.kserve.parsing import parse
from reactant_node.kserve.pb import grpc_predict_v2_pb2 as pb

LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
UNLOAD = "/inference.GRPCInferenceService/RepositoryModelUnload"

LOADED = pb.RepositoryModelLoadResponse().SerializeToString()
UNLOADED = pb.RepositoryModelUnloadResponse().SerializeToString()
"""The replies, which say nothing but that it was done."""


def encode_load(model: str) -> bytes:
    """A RepositoryModelLoad request."""
    return pb.RepositoryModelLoadRequest(model_name=model).SerializeToString()


def encode_unload(model: str) -> bytes:
    """A RepositoryModelUnload request."""
    return pb.RepositoryModelUnloadRequest(model_name=model).SerializeToString()


def decode_load(request: bytes) -> str:
    """The model that a RepositoryModelLoad request names.

    Raises:
        InvalidArgument: the request is malformed.
        Unimplemented: it names a repository, or brings a configuration or files of its own.
    """
    message = parse(pb.RepositoryModelLoadRequest, request, InvalidArgument)
    _check("RepositoryModelLoad", message.repository_name, message.parameters, accepted=())
    return message.model_name


def decode_unload(request: bytes) -> str:
    """The model that a RepositoryModelUnload request names. Raises as `decode_load`."""
    message = parse(pb.RepositoryModelUnloadRequest, request, InvalidArgument)
    _check("RepositoryModelUnload", message.repository_name, message.parameters, accepted=("unload_dependents",))
    return message.model_name


def _check(method: str, repository: str, parameters: Iterable[str], accepted: tuple[str, ...]) -> None:
    if repository:
        raise Unimplemented(f"{method}: repository_name is {repository!r}; leave it empty: repositories have no names")
    for key in parameters:
        if key not in accepted:
            raise Unimplemented(f"{method}: parameter {key!r} is not served: a model is what its folder holds")
