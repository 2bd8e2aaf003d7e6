"""How stock clients call: tritonclient blocking and asyncio, grpcio, curl; what they cancel, compress and add.

Whether there is one worker or two, nothing here may differ.
"""

from __future__ import annotations

import asyncio
import queue
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

from tests.support.interop_wire import LIMIT_SECONDS, SERVICE, WireClient, WireTensor, infer_request
from tests.support.node import NodeProcess

pytestmark = pytest.mark.artifact

HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
CURL_SECONDS = "20"

LEFT = np.arange(16, dtype=np.int32).reshape(1, 16)
RIGHT = np.ones((1, 16), np.int32)


@pytest.fixture
def stock(node: NodeProcess) -> Iterator[triton.InferenceServerClient]:
    """The blocking client of tritonclient, of either node."""
    with triton.InferenceServerClient(node.grpc_target) as client:
        yield client


def simple_inputs(library: Any = triton) -> list[Any]:
    """INPUT0 and INPUT1."""
    inputs = [library.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    inputs[0].set_data_from_numpy(LEFT)
    inputs[1].set_data_from_numpy(RIGHT)
    return inputs


def slow_input() -> Any:
    """What `slow` takes."""
    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([3], np.float32))
    return tensor


def check_simple(result: Any) -> None:
    """Sum and difference."""
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), LEFT + RIGHT)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), LEFT - RIGHT)


class TestBlocking:
    """tritonclient.grpc."""

    def test_everything_asked_before_and_in_an_inference(self, stock: triton.InferenceServerClient) -> None:
        """Liveness, readiness, metadata, index, an inference with version, id and chosen outputs."""
        assert stock.is_server_live()
        assert stock.is_server_ready()
        assert stock.is_model_ready("simple")
        assert not stock.is_model_ready("nobody")
        assert stock.get_server_metadata().name == "ReactantServer"
        assert stock.get_model_metadata("simple").name == "simple"
        assert {row.name: row.state for row in stock.get_model_repository_index().models}["simple"] == "READY"
        outputs = [triton.InferRequestedOutput("OUTPUT1")]
        result = stock.infer("simple", simple_inputs(), model_version="1", outputs=outputs, request_id="r-1")
        response = result.get_response()
        assert (response.id, response.model_name, response.model_version) == ("r-1", "simple", "1")
        assert result.as_numpy("OUTPUT0") is None
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), LEFT - RIGHT)

    def test_strings_by_the_clients_own_conversions(self, stock: triton.InferenceServerClient) -> None:
        """An object array of bytes."""
        text = triton.InferInput("x", [2], "BYTES")
        text.set_data_from_numpy(np.array([b"one", "zw\u00f6lf".encode()], dtype=object))
        assert stock.infer("str_ident", [text]).as_numpy("y").tolist() == [b"one", "zw\u00f6lf".encode()]

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed_requests(self, stock: triton.InferenceServerClient, algorithm: str) -> None:
        """By gzip and by deflate."""
        check_simple(stock.infer("simple", simple_inputs(), compression_algorithm=algorithm))

    def test_headers_of_the_caller_do_no_harm(self, stock: triton.InferenceServerClient) -> None:
        """Text, binary, and a token of 16 kB."""
        headers = {"authorization": "Bearer " + "t" * 16_384, "x-trace": "abc", "trace-bin": b"\0\xff"}
        check_simple(stock.infer("simple", simple_inputs(), headers=headers))

    def test_parameters_that_nobody_knows_do_no_harm(self, stock: triton.InferenceServerClient) -> None:
        """Of any kind; sequence and priority, as the client sends them by itself, too."""
        parameters = {"a": "text", "b": 7, "c": True}
        check_simple(stock.infer("simple", simple_inputs(), parameters=parameters, priority=3, timeout=1_000_000))

    def test_a_request_out_of_time_ends_and_the_node_is_well(self, stock: triton.InferenceServerClient) -> None:
        """DEADLINE_EXCEEDED; the run that was begun is nobody's, and the next is answered."""
        with pytest.raises(triton.InferenceServerException) as raised:
            stock.infer("slow", [slow_input()], client_timeout=0.02)
        assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        check_simple(stock.infer("simple", simple_inputs(), client_timeout=LIMIT_SECONDS))
        assert stock.infer("slow", [slow_input()], client_timeout=LIMIT_SECONDS).as_numpy("y").tolist() == [3]

    def test_a_cancelled_request_ends_and_the_node_is_well(self, stock: triton.InferenceServerClient) -> None:
        """Its callback hears of it, those behind it are answered."""
        ended: queue.Queue[Any] = queue.Queue()
        calls = [
            stock.async_infer("slow", [slow_input()], callback=lambda result, error: ended.put((result, error)))
            for _ in range(6)
        ]
        for call in calls[1:]:
            call.cancel()
        outcomes = [ended.get(timeout=LIMIT_SECONDS) for _ in calls]
        cancelled = [error for _, error in outcomes if error is not None]
        assert [error.status() for error in cancelled] == ["StatusCode.CANCELLED"] * 5
        check_simple(stock.infer("simple", simple_inputs(), client_timeout=LIMIT_SECONDS))

    def test_many_clients_at_once_each_get_their_own(self, node: NodeProcess) -> None:
        """Eight connections, forty calls each, by answers that only the caller can expect."""

        def run(caller: int) -> None:
            with triton.InferenceServerClient(node.grpc_target) as client:
                for number in range(40):
                    tensor = triton.InferInput("x", [1, 4], "FP32")
                    values = np.full((1, 4), caller * 1000 + number, np.float32)
                    tensor.set_data_from_numpy(values)
                    result = client.infer("add1", [tensor], request_id=f"{caller}.{number}")
                    assert result.get_response().id == f"{caller}.{number}"
                    np.testing.assert_array_equal(result.as_numpy("y"), values + 1)

        with ThreadPoolExecutor(8) as callers:
            list(callers.map(run, range(8)))

    @pytest.mark.parametrize(
        "call",
        [
            lambda client: client.get_system_shared_memory_status(),
            lambda client: client.get_trace_settings(),
            lambda client: client.get_log_settings(),
        ],
        ids=["shared memory", "trace", "log"],
    )
    def test_what_is_not_served_says_so(self, stock: triton.InferenceServerClient, call: Any) -> None:
        """UNIMPLEMENTED, with the method's name."""
        with pytest.raises(triton.InferenceServerException, match=SERVICE) as raised:
            call(stock)
        assert raised.value.status() == "StatusCode.UNIMPLEMENTED"

    def test_a_stream_is_refused_and_not_left_hanging(self, stock: triton.InferenceServerClient) -> None:
        """ModelStreamInfer is not served."""
        ended: queue.Queue[Any] = queue.Queue()
        stock.start_stream(lambda result, error: ended.put((result, error)))
        with suppress(triton.InferenceServerException):  # where the refusal has come before the request
            stock.async_stream_infer("simple", simple_inputs())
        result, error = ended.get(timeout=LIMIT_SECONDS)
        assert result is None
        assert error.status() == "StatusCode.UNIMPLEMENTED"
        stock.stop_stream()


class TestAsyncio:
    """tritonclient.grpc.aio."""

    def test_calls_at_once_on_one_loop(self, node: NodeProcess) -> None:
        """Metadata, then thirty inferences together."""

        async def run() -> None:
            async with triton_aio.InferenceServerClient(node.grpc_target) as client:
                assert await client.is_server_ready()
                assert (await client.get_model_metadata("simple")).name == "simple"
                results = await asyncio.gather(*(client.infer("simple", simple_inputs(triton_aio)) for _ in range(30)))
                for result in results:
                    check_simple(result)

        asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))

    def test_a_cancelled_task_leaves_the_node_well(self, node: NodeProcess) -> None:
        """The call ends with its task."""

        async def run() -> None:
            async with triton_aio.InferenceServerClient(node.grpc_target) as client:
                task = asyncio.create_task(client.infer("slow", [slow_input()]))
                await asyncio.sleep(0.01)  # that the call be on its way; right as well if it is not
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                check_simple(await client.infer("simple", simple_inputs(triton_aio)))

        asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


class TestGrpc:
    """grpcio alone."""

    def test_the_health_protocol_answers(self, client: WireClient) -> None:
        """For the server as a whole and for the inference service."""
        for service in (b"", SERVICE[1:-1].encode()):
            request = b"\x0a" + bytes([len(service)]) + service if service else b""
            outcome = client.call(HEALTH, request)
            assert (outcome.code, outcome.reply) == ("OK", SERVING)

    @pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
    def test_compression_of_a_message_that_is_worth_it(self, client: WireClient, algorithm: grpc.Compression) -> None:
        """A megabyte of zeros, there and back."""
        tensor = WireTensor("x", "FP32", (512, 512), bytes(4 * 512 * 512))
        reply = client.infer(infer_request("ident_FP32", tensor), compression=algorithm)
        assert reply.raw_output_contents[0] == tensor.raw

    def test_a_time_limit_among_the_parameters_is_kept_by_the_server(self, client: WireClient) -> None:
        """A nanosecond is over before any model has the device; no clock but the server's is asked."""
        request = infer_request("simple", *(WireTensor.of(f"INPUT{index}", "INT32", LEFT) for index in (0, 1)))
        request.parameters["reactant_timeout_ns"].int64_param = 1
        outcome = client.ask("ModelInfer", request)
        assert outcome.code == "DEADLINE_EXCEEDED", outcome
        assert "'simple'" in outcome.text

    def test_a_call_without_a_message_is_refused(self, node: NodeProcess) -> None:
        """A client that ends its side before it has sent any gets an answer and no silence; the node is well."""
        request = infer_request("simple", *(WireTensor.of(f"INPUT{index}", "INT32", LEFT) for index in (0, 1)))
        with grpc.insecure_channel(node.grpc_target) as channel:
            stream = channel.stream_unary(SERVICE + "ModelInfer", None, None)
            with pytest.raises(grpc.RpcError) as raised:
                stream(iter(()), timeout=LIMIT_SECONDS)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with WireClient(node.grpc_target) as client:
            assert client.infer(request).model_name == "simple"


class TestCurl:
    """What is no gRPC client, on the gRPC port. Skipped where there is no curl that speaks HTTP/2."""

    @pytest.fixture(autouse=True)
    def _needs_curl(self) -> None:
        try:
            version = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True)  # noqa: S607
        except OSError:
            pytest.skip("no curl")
        if "HTTP2" not in version.stdout:
            pytest.skip("this curl has no HTTP/2")

    @staticmethod
    def _curl(node: NodeProcess, *arguments: str, body: bytes = b"") -> tuple[int, str]:
        """Exit code, and what came back, headers included; `@-` among the arguments stands for the body."""
        url = f"http://{node.grpc_target}/inference.GRPCInferenceService/ServerLive"
        command = ["curl", "-sS", "-i", "-m", CURL_SECONDS, "--http2-prior-knowledge", *arguments, url]
        done = subprocess.run(command, input=body, capture_output=True, check=False)
        return done.returncode, done.stdout.decode("latin-1")

    def test_a_grpc_call_by_hand(self, node: NodeProcess) -> None:
        """Five bytes of framing for an empty message: 200, grpc-status 0."""
        headers = ("-H", "content-type: application/grpc", "-H", "te: trailers")
        code, text = self._curl(node, *headers, "--data-binary", "@-", body=bytes(5))
        assert code == 0
        assert text.startswith("HTTP/2 200")
        assert "\0\0\0\0\2\x08\1" in text
        assert "grpc-status: 0\r\n" in text

    @pytest.mark.parametrize(
        "arguments",
        [
            ("-H", "content-type: application/json", "-H", "te: trailers", "-d", "{}"),
            ("-H", "content-type: text/html", "-d", "x"),
            ("-X", "GET"),
            ("-X", "PUT", "-H", "content-type: application/grpc", "-d", "x"),
        ],
        ids=["json", "html", "get", "put"],
    )
    def test_what_is_no_grpc_is_answered_or_reset_and_the_node_is_well(
        self, node: NodeProcess, arguments: tuple[str, ...]
    ) -> None:
        """An error of HTTP or of gRPC, before curl's time is over; never a success."""
        code, text = self._curl(node, *arguments)
        assert code != 28, "curl waited in vain"
        assert "grpc-status: 0" not in text
        with triton.InferenceServerClient(node.grpc_target) as client:
            check_simple(client.infer("simple", simple_inputs()))
