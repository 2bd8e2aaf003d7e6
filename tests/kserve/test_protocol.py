"""The generated messages are wire-compatible with the clients' and live beside them in one process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto
from tritonclient.grpc import model_config_pb2, service_pb2

from reactant_node.kserve.pb import grpc_predict_v2_pb2, health_pb2

PROTOS = Path(__file__).parents[2] / "protos"
OURS = "reactant_node.kserve.pb.grpc_predict_v2_pb2"
THEIRS = "tritonclient.grpc.service_pb2"

SUBSETS = tuple(
    f"inference.{message}"
    for message in ("ModelConfig", "ModelInput", "ModelOutput", "ModelVersionPolicy", "ModelDynamicBatching")
)
"""Messages that leave out fields of the client's, which are never filled here."""


def enum_facts(prefix: str, enum: EnumDescriptorProto) -> dict[str, object]:
    """Value name to number."""
    return {f"{prefix}.{enum.name}.{value.name}": value.number for value in enum.value}


def message_facts(prefix: str, message: DescriptorProto) -> dict[str, object]:
    """All that decides what a message looks like on the wire, by field path."""
    path = f"{prefix}.{message.name}"
    facts: dict[str, object] = {path: message.options.map_entry}
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        facts[f"{path}.{field.name}"] = (field.number, field.type, field.label, field.type_name, oneof)
    for nested in message.nested_type:
        facts |= message_facts(path, nested)
    for enum in message.enum_type:
        facts |= enum_facts(path, enum)
    return facts


def file_facts(module: Any) -> dict[str, object]:
    """The facts of every message, and of every method, of a generated module."""
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    facts: dict[str, object] = {}
    for message in file.message_type:
        facts |= message_facts(file.package, message)
    for enum in file.enum_type:
        facts |= enum_facts(file.package, enum)
    for service in file.service:
        for method in service.method:
            streaming = (method.client_streaming, method.server_streaming)
            facts[f"{file.package}.{service.name}/{method.name}"] = (method.input_type, method.output_type, streaming)
    return facts


def test_every_message_is_the_clients_message() -> None:
    """Each message, field, enum value and method has number, type, label and name as in Triton's client; none lacks."""
    ours, theirs = file_facts(grpc_predict_v2_pb2), file_facts(service_pb2) | file_facts(model_config_pb2)
    assert {path: theirs.get(path) for path in ours} == ours
    whole = (path for path, fact in ours.items() if isinstance(fact, bool) and not path.startswith(SUBSETS))
    messages = ("inference.DataType.", *(f"{path}." for path in whole))
    assert {path for path in theirs if path.startswith(messages)} - ours.keys() == set()


def test_health_is_the_standard_service() -> None:
    """Health messages have the bytes that gRPC's health protocol lays down."""
    states = health_pb2.HealthCheckResponse
    assert health_pb2.HealthCheckRequest(service="x").SerializeToString() == b"\x0a\x01x"
    assert dict(states.ServingStatus.items()) == {"UNKNOWN": 0, "SERVING": 1, "NOT_SERVING": 2, "SERVICE_UNKNOWN": 3}
    assert states(status=states.NOT_SERVING).SerializeToString() == b"\x08\x02"


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "theirs first"])
def test_lives_beside_another_library_of_the_same_protocol(order: tuple[str, str]) -> None:
    """A process may import both, in either order, and pass bytes from one to the other."""
    program = (
        "import importlib, sys\n"
        "a, b = map(importlib.import_module, sys.argv[1:])\n"
        "message = a.ModelInferRequest(model_name='m', raw_input_contents=[b'x']).SerializeToString()\n"
        "assert b.ModelInferRequest.FromString(message).raw_input_contents == [b'x']\n"
        "assert a.ModelInferRequest.DESCRIPTOR is not b.ModelInferRequest.DESCRIPTOR\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *order], capture_output=True, text=True, check=False, cwd=PROTOS.parent
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_generated_modules_are_those_of_the_protos() -> None:
    """The checked-in messages are what the .proto files compile to."""
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools")
    spec = importlib.util.spec_from_file_location("generate", PROTOS / "generate.py")
    assert protoc is not None
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for module in (grpc_predict_v2_pb2, health_pb2):
        assert Path(module.__file__ or "").read_text("utf-8") == generate.module_source(
            _compiled(generate, module.DESCRIPTOR.name)
        )


def _compiled(generate: Any, name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (file,) = generate.compile_protos([name], Path(folder))
        return file
