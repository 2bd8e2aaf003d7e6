"""A whole worker in one process: real parts but for the runtime and the wire, which are their doubles."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reactant_node.config.schema import EndpointsConfig, WorkerConfig
from reactant_node.errors import Unavailable
from reactant_node.kserve import metadata
from reactant_node.models.signature import ModelSignature, TensorSpec
from reactant_node.reports import Ready, Report
from reactant_node.runtime.fake import FakeModel, FakeRuntime
from reactant_node.runtime.interface import Runtime
from reactant_node.tensors import NamedTensor
from reactant_node.transport.interface import Address, Channel
from reactant_node.transport.memory import MemoryTransport
from reactant_node.worker.assembly import Worker
from tests.support.clock import ManualClock
from tests.support.wire_messages import raw_request, read_reply

LIMIT_SECONDS = 20.0

SIGNATURE = ModelSignature(
    inputs=(TensorSpec("x", "FP32", ("n", 2)),),
    outputs=(TensorSpec("double", "FP32", ("n", 2)), TensorSpec("triple", "FP32", ("n", 2))),
)


def multiples(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body of the model: x times two and three."""
    return {"double": arrays["x"] * 2, "triple": arrays["x"] * 3}


@dataclass
class Running:
    """A started worker and what it reported."""

    worker: Worker
    transport: MemoryTransport
    stop: asyncio.Event
    task: asyncio.Task[None]
    reports: list[Report] = field(default_factory=list)

    def ready(self) -> Ready | None:
        """The report that it serves."""
        return next((report for report in self.reports if isinstance(report, Ready)), None)

    def is_ready(self) -> bool:
        """It serves; fails where it has ended instead."""
        assert not self.task.done(), self.task
        return self.ready() is not None

    def queued(self) -> int:
        """Requests that wait for the device."""
        models = self.worker._dispatcher.statistics().scheduler.models
        return sum(model.queue_depth for model in models.values())

    def channel(self) -> Channel:
        """A client's channel to it."""
        ready = self.ready()
        assert ready is not None
        return self.transport.dial(Address("127.0.0.1", ready.grpc_port))

    async def infer(self, *, rows: int = 1, model: str = "m", **fields: Any) -> Any:
        """One inference of rows of ones."""
        tensor = NamedTensor("x", "FP32", np.ones((rows, 2), np.float32))
        request = raw_request(tensor, model=model, **fields)
        return read_reply(await self.channel().call(metadata.MODEL_INFER, request.SerializeToString()))

    async def index(self) -> dict[str, tuple[str, str]]:
        """State and reason of every model in the repository index."""
        reply = await self.channel().call(metadata.REPOSITORY_INDEX, metadata.encode_index_request())
        return {row.name: (row.state, row.reason) for row in metadata.decode_index(reply)}

    async def server_ready(self) -> bool:
        """What ServerReady says."""
        return metadata.decode_ready(await self.channel().call(metadata.SERVER_READY, b""))

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of an admin page."""
        ready = self.ready()
        assert ready is not None
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{ready.metrics_port}{path}")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_SECONDS) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def until(condition: Callable[[], object], what: str) -> None:
    """Return once the condition holds."""
    for _ in range(int(LIMIT_SECONDS / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"not within {LIMIT_SECONDS} s: {what}")


async def refused(channel: Channel) -> bool:
    """Whether a new call is answered UNAVAILABLE."""
    try:
        await channel.call(metadata.SERVER_LIVE, b"")
    except Unavailable:
        return True
    return False


def repository(folder: Path, *names: str) -> str:
    """Model folders that the fake runtime knows by name."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "model.onnx").write_bytes(b"the fake runtime does not read this")
    return str(folder)


def configured(folder: str, **changes: Any) -> WorkerConfig:
    """A worker on free ports."""
    config = WorkerConfig("worker0", "", 1, (folder,), endpoints=EndpointsConfig(port=0, metrics_port=0))
    return replace(config, **changes)


@asynccontextmanager
async def started(
    config: WorkerConfig,
    models: Mapping[str, FakeModel],
    *,
    clock: ManualClock | None = None,
    make_runtime: Callable[[], Runtime] | None = None,
    peer: str = "127.0.0.1",
) -> AsyncIterator[Running]:
    """A worker on the way; stopped at the end, and whatever ended it raised."""
    transport, stop, reports = MemoryTransport(peer), asyncio.Event(), list[Report]()
    worker = Worker(
        reports.append,
        config,
        LIMIT_SECONDS,
        make_runtime=make_runtime or (lambda: FakeRuntime(models)),
        transport=transport,
        clock=clock,
    )
    running = Running(worker, transport, stop, asyncio.create_task(worker.run(stop)), reports)
    try:
        yield running
    finally:
        stop.set()
        await asyncio.wait_for(running.task, LIMIT_SECONDS)


@asynccontextmanager
async def serving(config: WorkerConfig, models: Mapping[str, FakeModel], **options: Any) -> AsyncIterator[Running]:
    """A worker that is ready."""
    async with started(config, models, **options) as running:
        await until(running.is_ready, "the worker is ready")
        yield running
