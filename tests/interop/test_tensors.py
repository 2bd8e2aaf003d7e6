"""Tensors that servers are known to trip over, by one worker and through the gateway: B01 to B19 of the field reports.

Every answer is held bit for bit against what was sent, or against what the graph says.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.support.interop_models import REFUSED
from tests.support.interop_wire import (
    KSERVE_BY_ONNX,
    NUMPY_BY_KSERVE,
    WireClient,
    WireTensor,
    framed,
    infer_request,
    outputs_of,
    typed_request,
    unframed,
)

pytestmark = pytest.mark.artifact

DATATYPES = tuple(KSERVE_BY_ONNX.values())


def some(datatype: str, *shape: int) -> WireTensor:
    """A tensor `x` of any datatype with values that differ."""
    count = int(np.prod(shape))
    if datatype == "BYTES":
        return WireTensor("x", datatype, shape, framed(f"s{index}".encode() for index in range(count)))
    values = np.arange(count) % (2 if datatype == "BOOL" else 100)
    return WireTensor.of("x", datatype, values.reshape(shape))


def floats(*shape: int, name: str = "x") -> WireTensor:
    """An FP32 tensor with values that differ."""
    return WireTensor.of(name, "FP32", np.arange(np.prod(shape)).reshape(shape))


def echoed(client: WireClient, model: str, tensor: WireTensor) -> bool:
    """Whether a model that gives back its input as `y` does so, bit by bit."""
    return client.outputs(model, tensor) == (WireTensor("y", tensor.datatype, tensor.shape, tensor.raw),)


def refusal(client: WireClient, request: Any) -> str:
    """The text of an INVALID_ARGUMENT."""
    outcome = client.ask("ModelInfer", request)
    assert outcome.code == "INVALID_ARGUMENT", outcome
    return outcome.text


def metadata(client: WireClient, model: str) -> Any:
    """A model's metadata."""
    outcome = client.ask("ModelMetadata", pb.ModelMetadataRequest(name=model))
    assert outcome.code == "OK", outcome
    return pb.ModelMetadataResponse.FromString(outcome.reply)


def declared(tensors: Sequence[Any]) -> list[tuple[str, str, list[int]]]:
    """Name, datatype and shape of each."""
    return [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in tensors]


class TestStrings:
    """B01."""

    @pytest.mark.parametrize(
        ("raw", "count"),
        [
            (b"hello", 1),
            (framed([b"a", b"b"]), 3),
            (framed([b"a", b"b", b"c"]), 2),
            (b"\xff\xff\xff\xff", 1),
            (b"\xff\xff\xff\xffabcd", 1),
            (framed([b"a"]), 2**40),
        ],
        ids=["no length", "too few", "too many", "length of 4 GiB", "4 GiB and some data", "2**40 elements"],
    )
    def test_lengths_that_do_not_add_up_are_refused_at_once(self, client: WireClient, raw: bytes, count: int) -> None:
        """By the input's name, before the memory that is claimed is asked for."""
        assert "'x'" in refusal(client, infer_request("str_ident", WireTensor("x", "BYTES", (count,), raw)))

    STRINGS = (b"", b"a\0b", "gr\u00fc\u00df \U0001f600".encode(), b"x" * 300_000, b"\n", b"")

    def test_strings_come_back_byte_for_byte(self, client: WireClient) -> None:
        """Empty, with a NUL inside, beyond ASCII, 300 kB long."""
        assert echoed(client, "str_ident", WireTensor("x", "BYTES", (6,), framed(self.STRINGS)))

    def test_typed_strings_come_back_byte_for_byte(self, client: WireClient) -> None:
        """The same by bytes_contents; the reply is raw."""
        request = typed_request("str_ident", ("x", "BYTES", (6,), {"bytes_contents": list(self.STRINGS)}))
        (output,) = outputs_of(client.infer(request))
        assert unframed(output.raw) == list(self.STRINGS)

    @pytest.mark.parametrize("value", [b"\xff\xfe", b"\xed\xa0\x80", b"ok\xc3"])
    def test_bytes_that_are_no_utf8_are_refused_and_never_replaced(self, client: WireClient, value: bytes) -> None:
        """ONNX strings are UTF-8; raw and typed alike."""
        raw = infer_request("str_ident", WireTensor("x", "BYTES", (1,), framed([value])))
        typed = typed_request("str_ident", ("x", "BYTES", (1,), {"bytes_contents": [value]}))
        for request in (raw, typed):
            assert "UTF-8" in refusal(client, request)


class TestEmptyAndScalar:
    """B02."""

    @pytest.mark.parametrize("datatype", DATATYPES)
    @pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
    def test_an_empty_tensor_is_a_tensor(self, client: WireClient, datatype: str, shape: tuple[int, ...]) -> None:
        """It returns in its shape, with an empty buffer at its place."""
        assert echoed(client, f"ident_{datatype}", WireTensor("x", datatype, shape, b""))

    @pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
    def test_empty_typed_contents_are_an_empty_tensor(self, client: WireClient, shape: tuple[int, ...]) -> None:
        """`contents` set, nothing in it."""
        reply = client.infer(typed_request("ident_FP32", ("x", "FP32", shape, {})))
        assert outputs_of(reply) == (WireTensor("y", "FP32", shape, b""),)

    def test_an_empty_list_of_strings_returns(self, client: WireClient) -> None:
        """BYTES of shape [0]."""
        assert echoed(client, "str_ident", WireTensor("x", "BYTES", (0,), b""))

    @pytest.mark.parametrize("datatype", DATATYPES)
    def test_a_scalar_travels_with_an_empty_shape(self, client: WireClient, datatype: str) -> None:
        """In the request, the reply and the metadata."""
        assert echoed(client, f"scalar_{datatype}", some(datatype))
        found = metadata(client, f"scalar_{datatype}")
        assert declared(found.inputs) == [("x", datatype, [])]
        assert declared(found.outputs) == [("y", datatype, [])]

    def test_a_scalar_output_of_a_vector(self, client: WireClient) -> None:
        """ReduceSum to rank 0; the sum of nothing is 0."""
        assert client.outputs("flat", floats(4)) == (WireTensor.of("y", "FP32", np.float32(6)),)
        assert client.outputs("flat", floats(0)) == (WireTensor.of("y", "FP32", np.float32(0)),)

    def test_an_output_whose_length_is_in_the_data_may_be_empty(self, client: WireClient) -> None:
        """NonZero of zeros has the shape [2,0]."""
        zeros = WireTensor.of("x", "FP32", np.zeros((3, 2)))
        assert client.outputs("nonzero", zeros) == (WireTensor("y", "INT64", (2, 0), b""),)
        ones = WireTensor.of("x", "FP32", np.ones((1, 2)))
        assert client.outputs("nonzero", ones) == (WireTensor.of("y", "INT64", [[0, 0], [0, 1]]),)

    def test_an_empty_request_neither_spoils_its_neighbours_nor_vanishes(self, client: WireClient) -> None:
        """[0,4] among many [1,4], at the same time."""
        rows = (0, 1, 1) * 10
        with ThreadPoolExecutor(len(rows)) as callers:
            replies = list(callers.map(lambda count: client.outputs("add1", floats(count, 4)), rows))
        assert replies == [(WireTensor.of("y", "FP32", floats(count, 4).array + 1),) for count in rows]


class TestHalves:
    """B04."""

    FP16 = np.array([[0x7E01, 0xFE00, 0x7C00, 0xFC00, 0x0001, 0x8000, 0x3C00]], "<u2")
    """Two NaNs of different bits, both infinities, a subnormal, minus zero, one."""

    BF16 = np.array([[0x3F80, 0x4048, 0xC048, 0x7F80, 0x0000, 0x8000]], "<u2")
    """1.0, 3.14 truncated and its negative, infinity, both zeros."""

    @pytest.mark.parametrize(("datatype", "bits"), [("FP16", FP16), ("BF16", BF16)])
    def test_sixteen_bits_come_back_bit_for_bit(self, client: WireClient, datatype: str, bits: Any) -> None:
        """Raw, both ways."""
        assert echoed(client, f"ident_{datatype}", WireTensor("x", datatype, bits.shape, bits.tobytes()))

    @pytest.mark.parametrize("datatype", ["FP16", "BF16"])
    @pytest.mark.parametrize(
        "contents", [{"fp32_contents": [1.0]}, {"uint_contents": [1]}, {"bytes_contents": [b"ab"]}]
    )
    def test_they_have_no_typed_form(self, client: WireClient, datatype: str, contents: dict[str, Any]) -> None:
        """Each field is refused, with the way out."""
        request = typed_request(f"ident_{datatype}", ("x", datatype, (1, 1), contents))
        assert "raw_input_contents" in refusal(client, request)

    def test_all_outputs_of_a_reply_are_raw(self, client: WireClient) -> None:
        """FP16 beside FP32, though the latter has a typed form and the request used none."""
        half = WireTensor("x", "FP16", self.FP16.shape, self.FP16.tobytes())
        single = half.raw and np.frombuffer(half.raw, "<f2").astype("<f4").reshape(half.shape)
        reply = client.outputs("half_and_single", half)
        assert reply[0] == WireTensor("half", "FP16", half.shape, half.raw)
        np.testing.assert_array_equal(reply[1].array, single)

    def test_a_typed_request_is_answered_raw(self, client: WireClient) -> None:
        """As `outputs_of` asserts."""
        contents = {"fp32_contents": [0.5, float("nan"), float("inf"), -0.0]}
        reply = client.infer(typed_request("ident_FP32", ("x", "FP32", (2, 2), contents)))
        assert outputs_of(reply)[0].raw == struct.pack("<4f", *contents["fp32_contents"])


class TestRawAndTyped:
    """B05; what is refused is in the table of status codes."""

    @pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("FP16", "BF16")])
    def test_typed_and_raw_mean_the_same(self, client: WireClient, datatype: str) -> None:
        """For every datatype that has both forms."""
        tensor = some(datatype, 2, 3)
        field = {"BOOL": "bool", "BYTES": "bytes", "FP32": "fp32", "FP64": "fp64", "INT64": "int64", "UINT64": "uint64"}
        name = field.get(datatype, "uint" if datatype.startswith("U") else "int") + "_contents"
        values = unframed(tensor.raw) if datatype == "BYTES" else tensor.array.reshape(-1).tolist()
        reply = client.infer(typed_request(f"ident_{datatype}", ("x", datatype, (2, 3), {name: values})))
        assert outputs_of(reply) == client.outputs(f"ident_{datatype}", tensor)
        assert outputs_of(reply)[0].raw == tensor.raw

    def test_raw_entries_belong_to_inputs_in_the_order_of_the_request(self, client: WireClient) -> None:
        """Whatever the graph's order."""
        left, right = floats(1, 2, name="left"), floats(1, 5, name="right")
        expected = (WireTensor.of("y", "FP32", np.concatenate([left.array, right.array], axis=1)),)
        assert client.outputs("two_widths", left, right) == expected
        assert client.outputs("two_widths", right, left) == expected

    def test_outputs_come_in_the_order_asked_for(self, client: WireClient) -> None:
        """One, both, both the other way round, or all in the graph's order."""
        x = floats(1, 4)
        whole = {"A": WireTensor("A", "FP32", x.shape, x.raw), "B": WireTensor.of("B", "FP32", x.array * 2)}
        for names in (["B"], ["A"], ["B", "A"], ["A", "B"], []):
            reply = outputs_of(client.infer(infer_request("two_out", x, outputs=names)))
            assert reply == tuple(whole[name] for name in names or ("A", "B"))

    @pytest.mark.parametrize("datatype", NUMPY_BY_KSERVE)
    def test_the_result_does_not_depend_on_where_the_data_lie_in_the_message(
        self, client: WireClient, datatype: str
    ) -> None:
        """A request's id moves what comes after it by any number of bytes."""
        tensor = some(datatype, 3, 5)
        for length in range(9):
            assert client.outputs(f"ident_{datatype}", tensor, id="i" * length)[0].raw == tensor.raw

    def test_the_last_bits_of_a_sum_do_not_depend_on_it_either(self, client: WireClient) -> None:
        """ONNX Runtime's vectorized sums add in another order where data begin at an odd address."""
        values = np.random.default_rng(3).uniform(-1, 1, (64, 61)).astype(np.float32)
        replies = {client.outputs("norm", WireTensor.of("x", "FP32", values), id="i" * length) for length in range(16)}
        assert len(replies) == 1


class TestSignatures:
    """B08 and B19."""

    def test_what_cannot_be_served_is_refused_with_its_reason_and_alone(self, client: WireClient) -> None:
        """Sequences, optionals, complex numbers, contradictory files: listed with one line; all the others serve."""
        index = client.index()
        unavailable = {name: row.reason for name, row in index.items() if row.state != "READY"}
        assert unavailable.keys() == REFUSED.keys()
        for name, pattern in REFUSED.items():
            assert re.search(pattern, unavailable[name]), unavailable[name]
            assert "\n" not in unavailable[name]
            outcome = client.ask("ModelInfer", infer_request(name, floats(1, 4)))
            assert outcome.code == "NOT_FOUND"
            assert unavailable[name] in outcome.text

    @pytest.mark.parametrize("model", ["weights_listed_ir3", "weights_listed_ir8"])
    def test_initializers_listed_as_inputs_are_no_inputs(self, client: WireClient, model: str) -> None:
        """Metadata lists the real input alone, and it alone is sent."""
        assert declared(metadata(client, model).inputs) == [("x", "FP32", [-1, 4])]
        x = floats(2, 4)
        assert client.outputs(model, x) == (WireTensor.of("y", "FP32", x.array + np.arange(1, 5)),)
        weights = floats(4, name="w")
        assert "'w'" in refusal(client, infer_request(model, x, weights))

    def test_a_fixed_first_dimension_is_served_as_the_graph_says(self, client: WireClient) -> None:
        """No file beside it, no batch: [1,3] takes one row, [4,3] four, and what sums over them sums over all."""
        assert client.outputs("fixed1", floats(1, 3)) == (WireTensor.of("y", "FP32", floats(1, 3).array * 2),)
        assert client.outputs("fixed4", floats(4, 3)) == (WireTensor.of("y", "FP32", floats(4, 3).array * 2),)
        assert client.outputs("sum4", floats(4, 3)) == (WireTensor.of("y", "FP32", floats(4, 3).array.sum(axis=0)),)
        for model, rows in (("fixed1", 2), ("fixed4", 1), ("fixed4", 5), ("sum4", 3)):
            assert "'x'" in refusal(client, infer_request(model, floats(rows, 3)))

    def test_a_declared_batch_limit_holds(self, client: WireClient) -> None:
        """max_batch_size 8 takes 1 to 8 rows; 0 declares no limit."""
        for rows in (1, 8):
            assert client.outputs("add1_batch8", floats(rows, 4))[0].shape == (rows, 4)
        assert "at most 8" in refusal(client, infer_request("add1_batch8", floats(9, 4)))
        assert client.outputs("add1_batch0", floats(9, 4))[0].shape == (9, 4)

    def test_metadata_say_what_the_graph_says(self, client: WireClient) -> None:
        """Any extent is -1; several inputs keep their order."""
        found = metadata(client, "two_widths")
        assert declared(found.inputs) == [("left", "FP32", [-1, -1]), ("right", "FP32", [-1, -1])]
        assert declared(found.outputs) == [("y", "FP32", [-1, -1])]
        assert list(found.versions) == ["1"]


class TestShapesAtOnce:
    """B16, without batching: nobody is given what is another's."""

    def test_requests_of_many_shapes_and_types_at_once_each_get_their_own(self, client: WireClient) -> None:
        """Widths 3, 5 and 7, FP32 and FP64, strings of many lengths, and a second input that alone differs."""
        tasks: list[tuple[str, tuple[WireTensor, ...], tuple[WireTensor, ...]]] = []
        for index in range(30):
            width = (3, 5, 7)[index % 3]
            for datatype in ("FP32", "FP64"):
                values = np.full((1, width), index)
                tasks.append(_identity(f"ident_{datatype}", WireTensor.of("x", datatype, values)))
            tasks.append(_identity("str_ident", WireTensor("x", "BYTES", (1,), framed([b"s" * index]))))
            left, right = floats(1, 2, name="left"), WireTensor.of("right", "FP32", np.full((1, width), index))
            joined = np.concatenate([left.array, right.array], axis=1)
            tasks.append(("two_widths", (left, right), (WireTensor.of("y", "FP32", joined),)))
        with ThreadPoolExecutor(30) as callers:
            replies = list(callers.map(lambda task: client.outputs(task[0], *task[1]), tasks))
        assert replies == [task[2] for task in tasks]


def _identity(model: str, tensor: WireTensor) -> tuple[str, tuple[WireTensor, ...], tuple[WireTensor, ...]]:
    return model, (tensor,), (WireTensor("y", tensor.datatype, tensor.shape, tensor.raw),)
