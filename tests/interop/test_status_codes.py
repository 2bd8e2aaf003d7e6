"""The gRPC code of everything a client can get wrong, the same from a sole worker as through the gateway.

The table follows what Triton was seen to answer, since its clients are ours; where we differ, the row says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from tests.support.interop_wire import (
    SERVICE,
    Outcome,
    WireClient,
    WireTensor,
    framed,
    infer_request,
    typed_request,
)
from tests.support.node import NodeProcess

pytestmark = pytest.mark.artifact

Call = Callable[[WireClient], Outcome]

NOT_SERVED = "an extension that this server does not have, and whose absence its clients are told by this code"

LEFT = WireTensor.of("INPUT0", "INT32", np.ones((1, 16)))
RIGHT = WireTensor.of("INPUT1", "INT32", np.ones((1, 16)))
ROWS = np.ones((1, 4))


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of case.

    Attributes:
        name: of the case.
        triton: Triton's code, empty where it was not looked at.
        ours: the code of every variant.
        variants: what is sent.
        why: where the two differ.
        says: a part of the status text, and of every variant's.
    """

    name: str
    triton: str
    ours: str
    variants: Mapping[str, Call]
    why: str = ""
    says: str = ""


def ask(method: str, request: Message, reply: Any = None, **expected: object) -> Call:
    """A call of the inference service, whose reply, where there is one, has these fields."""

    def call(client: WireClient) -> Outcome:
        outcome = client.ask(method, request)
        if outcome.code == "OK" and reply is not None:
            message = reply.FromString(outcome.reply)
            assert {name: getattr(message, name) for name in expected} == expected
        return outcome

    return call


def infer(model: str, *tensors: WireTensor, **fields: Any) -> Call:
    """An inference with raw contents."""
    return ask("ModelInfer", infer_request(model, *tensors, **fields))


def simple(*tensors: WireTensor, **fields: Any) -> Call:
    """An inference of `simple`: INPUT0, INPUT1 INT32 [n,16]."""
    return infer("simple", *tensors, **fields)


def typed(*contents: dict[str, Any], datatype: str = "INT32", raws: tuple[bytes, ...] = ()) -> Call:
    """An inference of `simple` with typed contents for its two inputs, and raw entries besides."""
    inputs = [(f"INPUT{index}", datatype, (1, 16), values) for index, values in enumerate(contents)]
    request = typed_request("simple", *inputs)
    request.raw_input_contents.extend(raws)
    return ask("ModelInfer", request)


def floats(model: str, *shape: int, name: str = "x") -> Call:
    """An inference with one FP32 input."""
    return infer(model, WireTensor.of(name, "FP32", np.ones(shape)))


def ready(model: str, version: str = "", *, is_ready: bool = False) -> Call:
    """A question of readiness."""
    return ask("ModelReady", pb.ModelReadyRequest(name=model, version=version), pb.ModelReadyResponse, ready=is_ready)


def resized(size: int) -> WireTensor:
    """INPUT0 with so many bytes of data for its 64."""
    return WireTensor("INPUT0", "INT32", (1, 16), bytes(size))


def shaped(*shape: int) -> WireTensor:
    """INPUT0 in another shape."""
    return WireTensor.of("INPUT0", "INT32", np.ones(shape))


def strings(raw: bytes, count: int) -> Call:
    """An inference of `str_ident` with these bytes for so many elements."""
    return infer("str_ident", WireTensor("x", "BYTES", (count,), raw))


def message(method: str, content: bytes) -> Call:
    """A call with a message of these bytes, to a full path."""
    return lambda client: client.call(method, content)


def sixteen(count: int) -> dict[str, Any]:
    """Typed contents of so many elements where 16 are due."""
    return {"int_contents": [1] * count}


def with_region(**parameters: int | str) -> Call:
    """An inference of `simple` whose first input is said to lie in a shared-memory region."""
    request = infer_request("simple", RIGHT)
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=(1, 16))
    for name, value in parameters.items():
        field = "string_param" if isinstance(value, str) else "int64_param"
        setattr(tensor.parameters[name], field, value)
    return ask("ModelInfer", request)


HALF = {"fp32_contents": [1.0]}
ONE = (1, 1)

TABLE = (
    Row(
        "model ready",
        "OK",
        "OK",
        {"": ready("simple", is_ready=True), "version 1": ready("simple", "1", is_ready=True)},
    ),
    Row("model ready unknown", "OK", "OK", {"unknown model": ready("nobody")}),
    Row("model ready unknown version", "OK", "OK", {"version 99": ready("simple", "99")}),
    Row("model ready broken", "OK", "OK", {"broken model": ready("broken")}),
    Row("infer broken", "NOT_FOUND", "NOT_FOUND", {"": floats("broken", 1)}, says="Protobuf parsing failed"),
    Row(
        "model metadata unknown",
        "NOT_FOUND",
        "NOT_FOUND",
        {"": ask("ModelMetadata", pb.ModelMetadataRequest(name="nobody"))},
        says="nobody",
    ),
    Row(
        "model metadata unknown version",
        "NOT_FOUND",
        "NOT_FOUND",
        {"": ask("ModelMetadata", pb.ModelMetadataRequest(name="simple", version="99"))},
        says="'99'",
    ),
    Row(
        "infer typed fp16",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {"": ask("ModelInfer", typed_request("ident_FP16", ("x", "FP16", ONE, HALF)))},
        says="raw_input_contents",
    ),
    Row(
        "infer typed bf16",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {"": ask("ModelInfer", typed_request("ident_BF16", ("x", "BF16", ONE, HALF)))},
        says="raw_input_contents",
    ),
    Row(
        "infer fixed batch wrong",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {f"{rows} rows": floats("fixed4", rows, 3) for rows in (1, 3, 8)},
        says="[4,3]",
    ),
    Row(
        "infer unbatched wrong shape",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {str(shape): floats("fixed4", *shape) for shape in ((2, 4), (1, 3, 4), (4, 5))},
        says="[4,3]",
    ),
    Row(
        "unknown output",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {"": simple(LEFT, RIGHT, outputs=["OUTPUT0", "OUTPUT9"])},
        says="'OUTPUT9'",
    ),
    Row(
        "duplicate output",
        "OK",
        "INVALID_ARGUMENT",
        {"": simple(LEFT, RIGHT, outputs=["OUTPUT0", "OUTPUT0"])},
        why="Triton answers once, which a client that reads by position misreads",
        says="'OUTPUT0'",
    ),
    Row("unknown model", "NOT_FOUND", "NOT_FOUND", {"": infer("nobody", LEFT, RIGHT)}, says="'nobody'"),
    Row("empty model name", "NOT_FOUND", "NOT_FOUND", {"": infer("", LEFT, RIGHT), "empty message": infer("")}),
    Row("unknown version", "NOT_FOUND", "NOT_FOUND", {"": simple(LEFT, RIGHT, model_version="2")}, says="'2'"),
    Row(
        "malformed version",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {
            version[:20]: simple(LEFT, RIGHT, model_version=version)
            for version in ("abc", "99999999999999999999", "9" * 5000, "-5", "1.0", " 1", "\u0661")
        },
        says="version",
    ),
    Row("missing input", "INVALID_ARGUMENT", "INVALID_ARGUMENT", {"": simple(LEFT)}, says="'INPUT1'"),
    Row("no inputs", "INVALID_ARGUMENT", "INVALID_ARGUMENT", {"": simple()}, says="'INPUT0'"),
    Row(
        "extra input",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {"": simple(LEFT, RIGHT, WireTensor.of("INPUT2", "INT32", np.ones((1, 16))))},
        says="'INPUT2'",
    ),
    Row(
        "duplicate input",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {"three inputs": simple(LEFT, RIGHT, LEFT), "INPUT0 twice": simple(LEFT, LEFT)},
        says="'INPUT0'",
    ),
    Row(
        "wrong dtype",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {
            name: simple(WireTensor("INPUT0", name, (1, 16), bytes(64)), RIGHT)
            for name in ("FP32", "UINT32", "INT33", "int32", "")
        },
        says="'INPUT0'",
    ),
    Row(
        "wrong rank",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {str(shape): simple(shaped(*shape), RIGHT) for shape in ((16,), (1, 16, 1), (1, 1, 16), ())},
        says="[n,16]",
    ),
    Row(
        "wrong fixed dim",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {str(shape): simple(shaped(*shape), RIGHT) for shape in ((1, 15), (1, 17), (16, 1))},
        says="[n,16]",
    ),
    Row(
        "impossible shape",
        "",
        "INVALID_ARGUMENT",
        {
            str(shape): simple(WireTensor("INPUT0", "INT32", shape, bytes(64)), RIGHT)
            for shape in ((-1, 16), (2**62, 16), (2**32, 2**32), (0, 2**63 - 1), (1,) * 65)
        },
        says="'INPUT0'",
    ),
    Row(
        "inputs disagree about their rows",
        "",
        "INVALID_ARGUMENT",
        {"2 and 3": simple(shaped(2, 16), WireTensor.of("INPUT1", "INT32", np.ones((3, 16))))},
    ),
    Row(
        "byte size short",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {f"{size} bytes": simple(resized(size), RIGHT) for size in (0, 1, 60, 63)},
        says="'INPUT0'",
    ),
    Row(
        "byte size long",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {f"{size} bytes": simple(resized(size), RIGHT) for size in (65, 68, 128)},
        says="'INPUT0'",
    ),
    Row(
        "raw count mismatch",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {"one buffer for two inputs": typed({}, {}, raws=(bytes(64),))},
        says="'INPUT1'",
    ),
    Row(
        "raw count mismatch, too many",
        "OK",
        "INVALID_ARGUMENT",
        {"three buffers for two inputs": typed({}, {}, raws=(bytes(64),) * 3)},
        why="nobody's data is silently ignored",
        says="3 raw_input_contents entries for 2 inputs",
    ),
    Row("no data", "INVALID_ARGUMENT", "INVALID_ARGUMENT", {"": typed({}, {})}, says="'INPUT0'"),
    Row(
        "raw and typed same input",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {
            "both": typed(sixteen(16), sixteen(16), raws=(bytes(64),) * 2),
            "one each": typed(sixteen(16), {}, raws=(bytes(64),)),
        },
        says="'INPUT0'",
    ),
    Row(
        "typed wrong field",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {
            field: typed({field: [value] * 16}, sixteen(16))
            for field, value in (("fp32_contents", 1.0), ("int64_contents", 1), ("bytes_contents", b"1"))
        }
        | {"two fields": typed({"int_contents": [1] * 16, "uint_contents": [1]}, sixteen(16))},
        says="'INPUT0'",
    ),
    Row(
        "typed count mismatch",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {f"{count} of 16 elements": typed(sixteen(count), sixteen(16)) for count in (0, 15, 17, 32)},
        says="'INPUT0'",
    ),
    Row(
        "typed value out of range",
        "",
        "INVALID_ARGUMENT",
        {
            f"{value} as {datatype}": ask(
                "ModelInfer", typed_request(f"ident_{datatype}", ("x", datatype, ONE, {field: [value]}))
            )
            for datatype, field, value in (
                ("INT8", "int_contents", 128),
                ("INT16", "int_contents", -(2**15) - 1),
                ("UINT8", "uint_contents", 256),
                ("UINT16", "uint_contents", 2**16),
            )
        },
        says="'x'",
    ),
    Row(
        "bool byte neither 0 nor 1",
        "",
        "INVALID_ARGUMENT",
        {"2": infer("ident_BOOL", WireTensor("x", "BOOL", ONE, b"\2"))},
        says="'x'",
    ),
    Row("batch over max", "INVALID_ARGUMENT", "INVALID_ARGUMENT", {"9 of 8": floats("add1_batch8", 9, 4)}, says="8"),
    Row("batch at max", "OK", "OK", {"8 of 8": floats("add1_batch8", 8, 4)}),
    Row(
        "bytes malformed",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        {
            "cut prefix": strings(b"\1\0", 1),
            "length past the end": strings(b"\6\0\0\0hello", 1),
            "length 2**32-1": strings(b"\xff\xff\xff\xffhello", 1),
            "one element short": strings(framed([b"a", b"b"]), 3),
            "one element over": strings(framed([b"a", b"b", b"c"]), 2),
        },
        says="'x'",
    ),
    Row(
        "zero rows",
        "INVALID_ARGUMENT",
        "OK",
        {"[0, 4]": floats("add1", 0, 4), "[0, 3] of two axes": floats("ident_FP32", 0, 3)},
        why="an empty batch is a batch: the graph computes it, and pipelines have them",
    ),
    Row("zero columns", "OK", "OK", {"[3, 0] of two axes": floats("ident_FP32", 3, 0)}),
    Row(
        "runtime error",
        "INTERNAL",
        "INVALID_ARGUMENT",
        {"index out of range": infer("abort_if", WireTensor.of("x", "INT64", [99]))},
        why="ONNX Runtime blames the input, and to send it again changes nothing",
    ),
    Row(
        "runtime error reshape",
        "INTERNAL",
        "INVALID_ARGUMENT",
        {
            "6 elements as [4]": infer(
                "reshape", WireTensor.of("x", "FP32", np.ones((2, 3))), WireTensor.of("shape", "INT64", [4])
            )
        },
        why="as above",
    ),
    Row("runtime error serves on", "", "OK", {"index in range": infer("abort_if", WireTensor.of("x", "INT64", [1]))}),
    Row(
        "negative size asked of the graph",
        "",
        "INVALID_ARGUMENT",
        {"-1": infer("expand", WireTensor.of("size", "INT64", [-1]))},
    ),
    Row("grpc health", "OK", "OK", {"service ''": message("/grpc.health.v1.Health/Check", b"")}),
    Row(
        "grpc health by service",
        "OK",
        "OK",
        {
            "inference.GRPCInferenceService": message(
                "/grpc.health.v1.Health/Check", b"\x0a\x1e" + SERVICE[1:-1].encode()
            )
        },
    ),
    Row(
        "grpc health unknown service",
        "OK",
        "NOT_FOUND",
        {"unknown service": message("/grpc.health.v1.Health/Check", b"\x0a\x06nobody")},
        why="so says the health protocol",
        says="nobody",
    ),
    Row(
        "malformed protobuf",
        "INTERNAL",
        "INVALID_ARGUMENT",
        {
            "0xff bytes": message(SERVICE + "ModelInfer", b"\xff" * 16),
            "cut": message(SERVICE + "ModelInfer", infer_request("simple", LEFT, RIGHT).SerializeToString()[:-5]),
            "text": message(SERVICE + "ModelInfer", b'{"model_name": "simple"}'),
            "bad utf-8 name": message(SERVICE + "ModelInfer", b"\x0a\x02\xff\xfe"),
            "bad utf-8 input name": message(SERVICE + "ModelInfer", b"\x0a\x06simple\x2a\x04\x0a\x02\xff\xfe"),
            "metadata": message(SERVICE + "ModelMetadata", b"\xff" * 16),
            "ready": message(SERVICE + "ModelReady", b"\xff" * 16),
            "index": message(SERVICE + "RepositoryIndex", b"\xff" * 16),
            "health": message("/grpc.health.v1.Health/Check", b"\xff" * 16),
        },
        why="what is wrong is what was sent",
        says="malformed",
    ),
    Row(
        "method not found",
        "UNIMPLEMENTED",
        "UNIMPLEMENTED",
        {path: message(path, b"") for path in (SERVICE + "NoSuchMethod", "/no.such.Service/Method", "/x", "/")},
    ),
    Row(
        "grpc reflection",
        "UNIMPLEMENTED",
        "UNIMPLEMENTED",
        {"": message("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"")},
    ),
    Row(
        "model config",
        "NOT_FOUND",
        "NOT_FOUND",
        {"unknown model": ask("ModelConfig", pb.ModelConfigRequest(name="nobody"))},
    ),
    Row(
        "statistics",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        {"unknown model": ask("ModelStatistics", pb.ModelStatisticsRequest(name="nobody"))},
        why="an unknown model is NOT_FOUND whatever is asked of it",
    ),
    Row(
        "shared memory",
        "NOT_FOUND",
        "UNIMPLEMENTED",
        {
            "status": ask("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="nobody")),
            "register": ask("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="r", key="/k")),
            "unregister": ask("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name="r")),
            "cuda status": ask("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
            "input": with_region(shared_memory_region="nobody", shared_memory_byte_size=64),
        },
        why=NOT_SERVED,
    ),
    Row(
        "stream",
        "OK",
        "UNIMPLEMENTED",
        {"": message(SERVICE + "ModelStreamInfer", infer_request("simple", LEFT, RIGHT).SerializeToString())},
        why=NOT_SERVED,
    ),
)


@pytest.fixture(scope="module")
def clients(one_worker: NodeProcess, two_workers: NodeProcess) -> Iterator[tuple[WireClient, WireClient]]:
    """Of both nodes."""
    with WireClient(one_worker.grpc_target) as direct, WireClient(two_workers.grpc_target) as gateway:
        yield direct, gateway


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_each_mistake_has_its_code(row: Row, clients: tuple[WireClient, WireClient]) -> None:
    """The one of the table, with a text that names what is wrong, alike from a sole worker and through the gateway.

    The model beside it serves on.
    """
    for variant, call in row.variants.items():
        for outcome in (call(client) for client in clients):
            assert outcome.code == row.ours, (variant, outcome)
            assert row.says in outcome.text, (variant, outcome)
            assert bool(outcome.text) == (row.ours != "OK"), (variant, outcome)
    for client in clients:
        (total, difference) = client.outputs("simple", LEFT, RIGHT)
        assert (total.array == 2).all()
        assert (difference.array == 0).all()


def test_every_difference_from_triton_has_its_reason() -> None:
    """And no row has a reason for nothing."""
    assert [row.name for row in TABLE if bool(row.why) != (row.triton not in ("", row.ours))] == []
