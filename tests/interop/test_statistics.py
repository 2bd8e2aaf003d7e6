"""What perf_analyzer asks of a server, in its order, by the client library that it is built on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, model_config_pb2
from tritonclient.utils import InferenceServerException

from tests.support.node import ROOT, start_node

MODEL, ROWS, REQUESTS, CALLERS = "simple", 4, 60, 6
PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
LIMIT_SECONDS = 60.0


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "gateway of two workers"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of a node that serves the models of the demo."""
    arguments = ("--demo", "--backend", "cpu", "--workers", str(request.param))
    command = (sys.executable, "-m", "reactant_node")
    with start_node(tmp_path_factory.mktemp("node"), *arguments, command=command, cwd=ROOT) as node:
        node.wait_ready()
        with InferenceServerClient(node.grpc_target) as client:
            yield client
        assert node.stop() == 0


def infer(client: Any, width: int = 16) -> None:
    """One request of several rows: the model adds and subtracts."""
    inputs = []
    for name in ("INPUT0", "INPUT1"):
        tensor = InferInput(name, [ROWS, width], "INT32")
        tensor.set_data_from_numpy(np.ones((ROWS, width), np.int32))
        inputs.append(tensor)
    client.infer(MODEL, inputs, client_timeout=LIMIT_SECONDS)


def statistics(client: Any) -> Any:
    """The model's counts now."""
    (model,) = client.get_inference_statistics(MODEL).model_stats
    return model


def test_what_is_asked_before_a_measurement_fits_together(client: Any) -> None:
    """Extensions, shapes and the configuration are there, and the configuration agrees with the metadata."""
    assert {"statistics", "model_configuration"} <= {*client.get_server_metadata().extensions}
    described = client.get_model_metadata(MODEL)
    config = client.get_model_config(MODEL).config
    assert (config.name, config.max_batch_size > 0) == (described.name, True)
    for tensors, configured in ((described.inputs, config.input), (described.outputs, config.output)):
        assert [tensor.name for tensor in tensors] == [tensor.name for tensor in configured]
        assert [list(tensor.shape) for tensor in tensors] == [[-1, *tensor.dims] for tensor in configured]
        names = [model_config_pb2.DataType.Name(tensor.data_type) for tensor in configured]
        assert names == [f"TYPE_{tensor.datatype}" for tensor in tensors]


def test_the_difference_of_two_answers_is_what_was_sent_in_between(client: Any) -> None:
    """Every request, every row, and an execution for each batch; the parts are no longer than the whole."""
    before = statistics(client)
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(lambda _: infer(client), range(REQUESTS)))
    with pytest.raises(InferenceServerException, match="INVALID_ARGUMENT"):
        infer(client, width=15)
    after = statistics(client)

    def grown(name: str) -> tuple[int, int]:
        first, second = (getattr(model.inference_stats, name) for model in (before, after))
        return second.count - first.count, second.ns - first.ns

    assert [grown(name)[0] for name in ("success", *PARTS)] == [REQUESTS] * 5
    assert grown("fail")[0] == 1
    assert grown("success")[1] >= sum(grown(name)[1] for name in PARTS) > 0
    assert after.inference_count - before.inference_count == REQUESTS * ROWS
    assert after.last_inference > before.last_inference
    sizes = {batch.batch_size: batch.compute_infer.count for batch in after.batch_stats}
    assert sum(sizes.values()) == after.execution_count
    assert sum(size * count for size, count in sizes.items()) == after.inference_count
    assert 0 < after.execution_count - before.execution_count <= REQUESTS


def test_without_a_name_every_model_is_counted(client: Any) -> None:
    """As far as it is ready; an unknown one is NOT_FOUND, as everywhere."""
    names = [model.name for model in client.get_inference_statistics().model_stats]
    assert sorted(names) == sorted(model.name for model in client.get_model_repository_index().models)
    for ask in (client.get_inference_statistics, client.get_model_config):
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            ask("nobody")
