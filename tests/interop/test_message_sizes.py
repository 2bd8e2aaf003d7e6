"""Messages beyond the 4 MB that gRPC's own defaults stop at, in and out, and what happens at the node's limit (B42).

With two workers every message passes the gateway's hop twice.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from tests.support.interop_wire import (
    SERVICE,
    Outcome,
    WireClient,
    WireTensor,
    infer_request,
    outputs_of,
    typed_request,
)

pytestmark = pytest.mark.artifact

MEGABYTE = 1_000_000
LIMIT_BYTES = 512 * 1024 * 1024
"""The node's default, both ways."""

SIZES = (3_900_000, 4_100_000, 64 * MEGABYTE)


def floats(size: int) -> WireTensor:
    """So many bytes of FP32."""
    row = np.arange(size // 4, dtype=np.float32).reshape(1, -1)
    return WireTensor("x", "FP32", row.shape, row.tobytes())


def expanded(client: WireClient, size: int) -> Outcome:
    """The answer of `expand`, asked for so many bytes of zeros."""
    return client.ask("ModelInfer", infer_request("expand", WireTensor.of("size", "INT64", [size // 4])))


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_any_size_pass_both_ways(client: WireClient, size: int) -> None:
    """Raw, byte for byte."""
    tensor = floats(size)
    assert client.outputs("ident_FP32", tensor)[0].raw == tensor.raw


@pytest.mark.parametrize("size", SIZES)
def test_a_large_reply_to_a_small_request(client: WireClient, size: int) -> None:
    """The output's size is an input's value."""
    reply = client.outputs("expand", WireTensor.of("size", "INT64", [size // 4]))
    assert reply == (WireTensor("y", "FP32", (size // 4,), bytes(size)),)


def test_large_typed_contents(client: WireClient) -> None:
    """4.1 MB of fp32_contents, answered raw."""
    tensor = floats(4_100_000)
    values = tensor.array.reshape(-1)
    reply = client.infer(typed_request("ident_FP32", ("x", "FP32", tensor.shape, {"fp32_contents": values})))
    assert outputs_of(reply)[0].raw == tensor.raw


def test_a_large_compressed_message(client: WireClient) -> None:
    """16 MB of zeros by gzip, which are few bytes on the wire."""
    tensor = WireTensor("x", "FP32", (1, 4 * MEGABYTE), bytes(16 * MEGABYTE))
    reply = client.infer(infer_request("ident_FP32", tensor), compression=grpc.Compression.Gzip)
    assert outputs_of(reply)[0].raw == tensor.raw


def test_large_strings(client: WireClient) -> None:
    """One BYTES element of 5 MB."""
    text = b"\x40\x4b\x4c\x00" + b"s" * 5 * MEGABYTE
    assert client.outputs("str_ident", WireTensor("x", "BYTES", (1,), text))[0].raw == text


def test_large_messages_at_once(client: WireClient) -> None:
    """Six callers with 16 MB each; everybody gets their own back."""
    tensors = [WireTensor.of("x", "FP32", np.full((1, 4 * MEGABYTE), index)) for index in range(6)]
    with ThreadPoolExecutor(len(tensors)) as callers:
        replies = list(callers.map(lambda tensor: client.outputs("ident_FP32", tensor)[0].raw, tensors))
    assert replies == [tensor.raw for tensor in tensors]


def test_a_request_over_the_limit_is_refused_with_the_limit(client: WireClient) -> None:
    """RESOURCE_EXHAUSTED that names the number; the node is well."""
    outcome = client.call(SERVICE + "ModelInfer", bytes(LIMIT_BYTES + 1))
    assert outcome.code == "RESOURCE_EXHAUSTED", outcome
    assert str(LIMIT_BYTES) in outcome.text
    assert expanded(client, 4).code == "OK"


@pytest.mark.parametrize("size", [LIMIT_BYTES, 2_254_857_832], ids=["512 MiB", "2.1 GiB"])
def test_a_reply_over_the_limit_is_refused_with_the_limit(client: WireClient, size: int) -> None:
    """Before it is serialized: the data alone are as large as the limit, or larger than any protobuf message may be."""
    outcome = expanded(client, size)
    assert outcome.code == "RESOURCE_EXHAUSTED", outcome
    assert "limit is 536870912" in outcome.text or "at most 2147483647" in outcome.text
    assert expanded(client, 4).code == "OK"
