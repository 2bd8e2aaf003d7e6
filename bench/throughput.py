"""How much of a model's own speed reaches clients: `make bench` prints rows per second beside the ceiling.

One CPU worker with one compute thread serves a stack of matrix products, whose weights are read once per run however
many rows it has; so a run of 32 rows costs little more than a run of one. The ceiling is the same model in a bare ONNX
Runtime loop in a process of its own, at the best batch size, in the same minute. Clients are one process of
coroutines over one grpcio channel, each with its next call as soon as the last is answered. Coalescing is turned off
by `scheduler.models.stack.max_batch_size: 1`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import numpy as np
import yaml
from onnx import helper
from tritonclient.grpc import service_pb2

from tests.support.models import build, constant, value, write_model
from tests.support.node import start_node

SIZE = 1536
LAYERS = 4
CALLERS = (1, 4, 16, 64)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
SECONDS = 5.0
WARM_SECONDS = 1.0
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory(prefix="bench-throughput-") as folder:
        scratch = Path(folder)
        path = write_model(scratch / "models" / "stack", stack())
        bare = json.loads(subprocess.check_output([sys.executable, "-m", "bench.throughput", "bare", str(path)]))
        ceiling = max(bare.values())
        print(
            "bare ONNX Runtime, one thread: "
            + ", ".join(f"{size}: {rate:.0f}" for size, rate in bare.items())
            + " rows/s"
        )
        print(f"{'callers':>8} {'coalescing':>11} {'off':>7} {'gain':>6} {'of the ceiling':>15}")
        joined, single = (rates(scratch, limit) for limit in (None, 1))
        for callers in CALLERS:
            on, off = joined[callers], single[callers]
            print(f"{callers:>8} {on:>11.0f} {off:>7.0f} {on / off:>5.1f}x {on / ceiling:>14.0%}")


def stack() -> object:
    """A stack of products of SIZE by SIZE weights, FP32 [n, SIZE]."""
    random = np.random.default_rng(7)
    weights = [
        constant(f"w{layer}", (random.standard_normal((SIZE, SIZE)) / SIZE**0.5).astype(np.float32))
        for layer in range(LAYERS)
    ]
    names = ["x", *(f"h{layer}" for layer in range(1, LAYERS)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(LAYERS)]
    return build(nodes, [value("x", "FP32", ("n", SIZE))], [value("y", "FP32", ("n", SIZE))], weights)


def bare_rates(path: str) -> dict[int, float]:
    """Rows per second of the model alone, by batch size."""
    import onnxruntime as ort  # noqa: PLC0415 - only the process that measures it

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return {size: _loop(session, np.ones((size, SIZE), np.float32)) for size in BATCHES}


def _loop(session: object, rows: object) -> float:
    runs, began = 0, time.monotonic()
    while time.monotonic() - began < WARM_SECONDS:
        session.run(None, {"x": rows})  # type: ignore[attr-defined]
        runs += 1
    return runs * len(rows) / (time.monotonic() - began)  # type: ignore[arg-type]


def rates(scratch: Path, limit: int | None) -> dict[int, float]:
    """Rows per second through the node, by number of callers."""
    policy = {} if limit is None else {"stack": {"max_batch_size": limit}}
    config = scratch / "node.yaml"
    document = {"model_repo": str(scratch / "models"), "global": {"scheduler": {"models": policy}}}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    threads = {"REACTANT_WORKER_THREADS": "1"}
    with start_node(scratch, "--config", str(config), "--backend", "cpu", environment=threads) as node:
        target = node.wait_ready().grpc_target
        measured = {callers: asyncio.run(_drive(target, callers)) for callers in CALLERS}
        node.stop()
    return measured


async def _drive(target: str, callers: int) -> float:
    request = service_pb2.ModelInferRequest(model_name="stack")
    request.inputs.add(name="x", datatype="FP32", shape=[1, SIZE])
    request.raw_input_contents.append(np.ones((1, SIZE), np.float32).tobytes())
    message = request.SerializeToString()
    answered = 0

    async def caller(until: float) -> None:
        nonlocal answered
        while time.monotonic() < until:
            await call(message)
            answered += 1

    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_unary(METHOD, request_serializer=None, response_deserializer=None)
        until = time.monotonic() + WARM_SECONDS
        await asyncio.gather(*(caller(until) for _ in range(callers)))
        answered, began = 0, time.monotonic()
        await asyncio.gather(*(caller(began + SECONDS) for _ in range(callers)))
        return answered / (time.monotonic() - began)


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        print(json.dumps(bare_rates(sys.argv[2])))
    else:
        main()
