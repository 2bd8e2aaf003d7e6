"""ModelInfer's messages against tritonclient's classes, and every way in which a request may be wrong."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from reactant_node.dtypes import TABLE
from reactant_node.errors import Internal, InvalidArgument, NodeError, ResourceExhausted, Unimplemented
from reactant_node.kserve.codec import decode_infer, encode_reply
from reactant_node.tensors import InferReply, InferRequest, NamedTensor
from tests.support.wire_messages import add_input, framed, raw_request, read_reply, typed_request
from tests.support.wire_tensors import named_tensors, same

TYPED = [row.name for row in TABLE if row.contents]
X = NamedTensor("x", "FP32", np.array([1.5, 2.5], "<f4"))


def tensor_lists(tensors: st.SearchStrategy[NamedTensor]) -> st.SearchStrategy[list[NamedTensor]]:
    """A few tensors of different names."""
    return st.lists(tensors, max_size=4, unique_by=lambda tensor: tensor.name)


def decode(request: Any) -> InferRequest:
    """Decode a request message at time zero."""
    return decode_infer(request.SerializeToString(), now_ns=0)


def one_input(datatype: str, shape: list[int], raw: bytes | None = None, **typed: list[Any]) -> Any:
    """A request for model `m` with input `x`, of a given shape and data that need not agree."""
    request = service_pb2.ModelInferRequest(model_name="m")
    tensor = add_input(request, "x", datatype, shape, raw)
    for field, values in typed.items():
        getattr(tensor.contents, field).extend(values)
    return request


def refusal(request: Any, kind: type[NodeError] = InvalidArgument) -> str:
    """The message with which a request is refused."""
    with pytest.raises(kind) as caught:
        decode(request)
    assert type(caught.value) is kind
    return str(caught.value)


def reply_of(*outputs: NamedTensor) -> InferReply:
    """A reply of model `m`."""
    return InferReply("m", "1", "id", outputs)


@given(tensor_lists(named_tensors()))
def test_raw_inputs_arrive_bit_by_bit(tensors: list[NamedTensor]) -> None:
    """Raw tensors of every datatype and shape, scalars and empty ones included, arrive as they were sent."""
    decoded = decode(raw_request(*tensors))
    assert [same(*pair) for pair in zip(decoded.inputs, tensors, strict=True)] == [True] * len(tensors)
    assert all(tensor.data.ctypes.data % 16 == 0 for tensor in decoded.inputs)


@given(tensor_lists(named_tensors(typed=True)))
def test_typed_inputs_arrive_by_value(tensors: list[NamedTensor]) -> None:
    """Typed tensors arrive as they were sent; NaNs only as NaNs, since typed floats are values."""
    decoded = decode(typed_request(*tensors)).inputs
    for got, sent in zip(decoded, tensors, strict=True):
        assert (got.name, got.datatype, got.shape, got.data.dtype) == (
            sent.name,
            sent.datatype,
            sent.shape,
            sent.data.dtype,
        )
        if sent.data.dtype.kind == "f":
            np.testing.assert_array_equal(got.data, sent.data)
        else:
            assert got.data.tolist() == sent.data.tolist()


@given(tensor_lists(named_tensors()))
def test_outputs_leave_raw_and_in_order(tensors: list[NamedTensor]) -> None:
    """Every output has its raw entry, in order, whatever its datatype, shape and memory layout."""
    outputs = [NamedTensor(t.name, t.datatype, np.array(t.data, order="F")) for t in tensors]
    reply, read = read_reply(b"".join(encode_reply(reply_of(*outputs))))
    assert (reply.model_name, reply.model_version, reply.id) == ("m", "1", "id")
    assert [same(*pair) for pair in zip(read, tensors, strict=True)] == [True] * len(tensors)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(message: bytes) -> None:
    """No bytes whatever make the decoder raise anything but a NodeError."""
    with contextlib.suppress(NodeError):
        decode_infer(message, now_ns=0)


@given(
    datatype=st.sampled_from([row.name for row in TABLE] + ["FP8", "", "fp32"]),
    shape=st.lists(st.one_of(st.integers(-2, 5), st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63)])), max_size=70),
    raw=st.lists(st.binary(max_size=40), max_size=3),
    typed=st.dictionaries(
        st.sampled_from(["fp32_contents", "int_contents", "uint_contents"]), st.lists(st.integers(0, 300), max_size=5)
    ),
)
def test_any_claims_are_met_or_refused(
    datatype: str, shape: list[int], raw: list[bytes], typed: dict[str, list[int]]
) -> None:
    """A request whose parts contradict each other is refused as a NodeError, whatever they claim."""
    request = one_input(datatype, shape, None, **typed)
    request.raw_input_contents.extend(raw)
    try:
        (tensor,) = decode(request).inputs
    except NodeError:
        return
    assert tensor.shape == tuple(shape)


@given(st.data())
def test_a_damaged_request_is_a_request_or_refused(data: st.DataObject) -> None:
    """A well-formed message with a few bytes changed, or cut, is decoded or refused as a NodeError."""
    message = bytearray(raw_request(data.draw(named_tensors()), X, id="1").SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(message)))
    with contextlib.suppress(NodeError):
        decode_infer(bytes(message[:end]), now_ns=0)


def test_request_fields_are_kept() -> None:
    """Model, version, id and the names of the outputs arrive as the client wrote them."""
    request = raw_request(X, model="mod\u00e9l", model_version="3", id="r1")
    for name in "b", "a":
        request.outputs.add(name=name).parameters["binary_data"].bool_param = True
    request.parameters["sequence_id"].int64_param = 5
    decoded = decode(request)
    assert (decoded.model, decoded.version, decoded.id, decoded.outputs) == ("mod\u00e9l", "3", "r1", ("b", "a"))
    assert decoded.deadline_ns is None


def test_an_aligned_raw_input_is_read_in_place() -> None:
    """A numeric raw entry is a read-only view of the message where it lies as an array of its own would."""
    in_place = 0
    for padding in range(16):
        message = raw_request(NamedTensor("x", "INT8", np.arange(100, dtype=np.int8)), id="i" * padding)
        serialized = message.SerializeToString()
        (tensor,) = decode_infer(serialized, now_ns=0).inputs
        if np.shares_memory(tensor.data, np.frombuffer(serialized, np.uint8)):
            in_place += 1
            assert not tensor.data.flags.writeable
    assert in_place >= 1


def test_a_contiguous_output_is_sent_in_place() -> None:
    """The buffers of a reply hold a numeric array's own memory."""
    data = np.arange(12, dtype="<f4").reshape(3, 4)
    buffers = encode_reply(reply_of(NamedTensor("y", "FP32", data)))
    assert any(np.shares_memory(np.frombuffer(buffer, np.uint8), data) for buffer in buffers)


@pytest.mark.parametrize(("datatype", "shape"), [("FP32", [0, 4]), ("FP32", [2, 0]), ("BYTES", [0]), ("FP16", [0])])
def test_empty_tensors_need_no_data(datatype: str, shape: list[int]) -> None:
    """A tensor without elements may come as an empty raw entry, as empty typed contents, or as neither."""
    requests = [one_input(datatype, shape, b""), one_input(datatype, shape), one_input(datatype, shape)]
    requests[1].inputs[0].contents.SetInParent()
    for request in requests:
        (tensor,) = decode(request).inputs
        assert tensor.shape == tuple(shape)


@pytest.mark.parametrize(
    ("raw", "shape", "reason"),
    [
        (b"hello", [1], "length says 1819043176 bytes, 1 are left"),
        (framed([b"a", b"b"]), [3], "12 raw bytes; 3 BYTES elements|got 10 raw bytes"),
        (framed([b"a", b"b", b"c"]), [2], "5 raw bytes are left over"),
        (b"\xff\xff\xff\xff", [1], "length says 4294967295 bytes, 0 are left"),
        (b"\xff\xff\xff\xff" + bytes(8), [2], "length says 4294967295 bytes"),
        (framed([b"abcd", b""])[:-2], [2], "ends before its length"),
        (b"", [2**40], "1099511627776 BYTES elements take 4 each"),
        (framed([b"ok", b"\xff\xfe"]), [2], "element 1 is no UTF-8"),
    ],
)
def test_strings_that_do_not_add_up_are_refused(raw: bytes, shape: list[int], reason: str) -> None:
    """BYTES framing is checked element by element against what is there; the claimed length is never believed."""
    message = refusal(one_input("BYTES", shape, raw))
    assert message.startswith("model 'm': input 'x': ")
    assert any(part in message for part in reason.split("|"))


def test_strings_of_any_content_arrive() -> None:
    """Empty strings, embedded NULs and long ones are values like any other, raw and typed."""
    values = ["", "a\0b\0", "\u00fcber", "x" * 300_000]
    tensor = NamedTensor("x", "BYTES", np.array(values, dtype=object))
    for request in (raw_request(tensor), typed_request(tensor)):
        assert decode(request).inputs[0].data.tolist() == values


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (one_input("FP32", [2, 2], bytes(15)), "got 15 raw bytes; shape [2, 2] of FP32 takes 16"),
        (one_input("FP32", [], b""), "got 0 raw bytes; shape [] of FP32 takes 4"),
        (one_input("BOOL", [3], b"\x00\x01\x02"), "a BOOL byte is neither 0 nor 1"),
        (one_input("FP32", [-1], bytes(4)), "shape [-1] has a negative extent"),
        (one_input("FP32", [-1, -4], bytes(16)), "negative extent"),
        (one_input("UINT8", [2**62, 4], b""), "overflows"),
        (one_input("FP32", [2**32, 2**32], b""), "overflows"),
        (one_input("FP32", [0, 2**62], b""), "overflows"),
        (one_input("UINT8", [1] * 65, b"\x00"), "a shape of 65 dimensions; at most 64"),
        (one_input("FP8", [1], b"\x00"), "datatype 'FP8' is unknown; use one of BOOL, UINT8"),
        (one_input("FP16", [2], fp32_contents=[1, 2]), "FP16 has no typed form; send it in raw_input_contents"),
        (one_input("BF16", [2], fp32_contents=[1, 2]), "BF16 has no typed form; send it in raw_input_contents"),
        (one_input("FP32", [2], int_contents=[1, 2]), "typed elements in int_contents; FP32 takes fp32_contents"),
        (one_input("INT32", [1], int_contents=[1], fp32_contents=[1]), "typed elements in fp32_contents"),
        (one_input("FP32", [2]), "got 0 typed elements; shape [2] takes 2"),
        (one_input("FP32", [2], fp32_contents=[1]), "got 1 typed elements; shape [2] takes 2"),
        (one_input("INT8", [2], int_contents=[-128, 128]), "128 is no INT8; use -128 to 127"),
        (one_input("UINT8", [1], uint_contents=[256]), "256 is no UINT8; use 0 to 255"),
        (one_input("INT16", [1], int_contents=[-32769]), "-32769 is no INT16"),
        (one_input("UINT16", [1], uint_contents=[65536]), "65536 is no UINT16"),
        (one_input("BYTES", [1], bytes_contents=[b"\xff"]), "element 0 is no UTF-8"),
        (one_input("FP32", [1], bytes(4), fp32_contents=[1]), "typed contents beside raw_input_contents"),
    ],
)
def test_a_tensor_that_does_not_add_up_names_model_and_input(request_: Any, reason: str) -> None:
    """Data, datatype and shape of an input have to agree; the refusal names model, input and what was found."""
    message = refusal(request_)
    assert message.startswith("model 'm': input 'x': ")
    assert reason in message


def test_raw_and_typed_are_not_mixed() -> None:
    """One typed and one raw input in a request are refused, naming the typed one."""
    request = one_input("FP32", [1], fp32_contents=[1])
    add_input(request, "y", "FP32", [1], bytes(4))
    assert "input 'x': typed contents beside raw_input_contents" in refusal(request)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (1, "1 raw_input_contents entries for 2 inputs: input 'y' has no data"),
        (3, "3 raw_input_contents entries for 2"),
    ],
)
def test_raw_entries_are_one_for_each_input(entries: int, reason: str) -> None:
    """Fewer raw entries than inputs, and more, are refused: nobody's data are ignored."""
    request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4)] * entries)
    for name in "x", "y":
        add_input(request, name, "FP32", [1])
    assert reason in refusal(request)


def test_names_are_given_once() -> None:
    """An input or output that is named twice is refused."""
    assert "model 'm': input 'x' is named twice" in refusal(raw_request(X, X))
    request = raw_request(X)
    for _ in range(2):
        request.outputs.add(name="y")
    assert "model 'm': output 'y' is named twice" in refusal(request)


@pytest.mark.parametrize("parameter", ["shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"])
def test_shared_memory_is_refused_by_name(parameter: str) -> None:
    """A tensor that is to be found, or put, in a region is refused, never read from the message instead."""
    request = raw_request(X)
    request.inputs[0].parameters[parameter].string_param = "region"
    assert f"model 'm': input 'x': parameter {parameter}: " in refusal(request, Unimplemented)
    request = raw_request(X)
    request.outputs.add(name="y").parameters[parameter].int64_param = 0
    assert f"model 'm': output 'y': parameter {parameter}: " in refusal(request, Unimplemented)


def test_classification_is_refused_by_name() -> None:
    """An output asked for as ranked classes is refused; zero classes mean an ordinary output."""
    request = raw_request(X)
    request.outputs.add(name="y").parameters["classification"].int64_param = 3
    assert "output 'y': parameter classification" in refusal(request, Unimplemented)
    request.outputs[0].parameters["classification"].int64_param = 0
    assert decode(request).outputs == ("y",)


@pytest.mark.parametrize(
    ("timeout_ns", "transport_ns", "expected"),
    [
        (None, None, None),
        (None, 70, 70),
        (50, None, 150),
        (50, 120, 120),
        (50, 200, 150),
        (0, 200, 200),
        (-5, None, None),
        (2**63 - 1, None, 2**63 - 1),
    ],
)
def test_the_earlier_deadline_holds(timeout_ns: int | None, transport_ns: int | None, expected: int | None) -> None:
    """The request's own time limit counts from arrival, saturates, and never prolongs the transport's deadline."""
    request = raw_request(X)
    if timeout_ns is not None:
        request.parameters["reactant_timeout_ns"].int64_param = timeout_ns
    decoded = decode_infer(request.SerializeToString(), now_ns=100, deadline_ns=transport_ns)
    assert decoded.deadline_ns == expected


def test_a_time_limit_is_an_integer() -> None:
    """A time limit of another kind is refused, not ignored."""
    request = raw_request(X)
    request.parameters["reactant_timeout_ns"].string_param = "50"
    assert "model 'm': parameter reactant_timeout_ns" in refusal(request)


@pytest.mark.parametrize(
    "message", [b"\xff\xff", raw_request(X).SerializeToString()[:-1], b"plain text", b"\x0a\x01\xff"]
)
def test_malformed_bytes_are_invalid_argument(message: bytes) -> None:
    """Bytes that are no ModelInferRequest blame the sender."""
    with pytest.raises(InvalidArgument, match="malformed protobuf message"):
        decode_infer(message, now_ns=0)


def test_fields_in_any_order_are_one_request() -> None:
    """Raw entries before, between and after the inputs pair with them by position, as protobuf allows."""
    head = raw_request(model="m").SerializeToString()
    inputs = [service_pb2.ModelInferRequest(), service_pb2.ModelInferRequest()]
    for message, name in zip(inputs, "xy", strict=True):
        add_input(message, name, "UINT8", [1])
    first, second = (message.SerializeToString() for message in inputs)
    decoded = decode_infer(b"\x3a\x01\x05" + first + head + b"\x3a\x01\x06" + second, now_ns=0)
    assert [(tensor.name, tensor.data.tolist()) for tensor in decoded.inputs] == [("x", [5]), ("y", [6])]


def test_a_reply_over_the_limit_is_refused_before_it_is_made() -> None:
    """The limit counts the whole message; at the limit it passes, one byte less refuses it by name."""
    reply = reply_of(
        NamedTensor("y", "FP32", np.zeros(100, "<f4")), NamedTensor("z", "BYTES", np.array(["abc"], object))
    )
    size = len(b"".join(encode_reply(reply)))
    assert sum(map(len, encode_reply(reply, limit_bytes=size))) == size
    with pytest.raises(
        ResourceExhausted, match=f"takes {size} bytes; the limit is {size - 1} .grpc.max_send_msg_bytes"
    ):
        encode_reply(reply, limit_bytes=size - 1)


def test_a_reply_over_2_gib_is_refused_whatever_the_limit() -> None:
    """Protobuf's own limit holds above any configured one; nothing of that size is allocated to find out."""
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (2**31,), (1,), writeable=False)
    with pytest.raises(ResourceExhausted, match="a protobuf message holds at most 2147483647"):
        encode_reply(reply_of(NamedTensor("y", "UINT8", huge)), limit_bytes=2**40)


def test_a_string_that_is_no_text_is_our_failure() -> None:
    """An output string that UTF-8 cannot write is INTERNAL, naming model and output."""
    with pytest.raises(Internal, match="model 'm': output 'y': a string of the result is no UTF-8"):
        encode_reply(reply_of(NamedTensor("y", "BYTES", np.array(["\udc80"], dtype=object))))


def test_bytes_framing_is_little_endian() -> None:
    """A BYTES output is each string behind its length in four bytes, least significant first."""
    reply, _ = read_reply(
        b"".join(encode_reply(reply_of(NamedTensor("y", "BYTES", np.array(["ab", ""], dtype=object)))))
    )
    assert reply.raw_output_contents[0] == struct.pack("<I", 2) + b"ab" + struct.pack("<I", 0)
