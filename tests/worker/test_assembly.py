"""A worker starts, answers, sheds, counts and drains: all of it in one process, over the doubles."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reactant_node.clock import NS_PER_SECOND
from reactant_node.config.schema import EndpointsConfig, SchedulerConfig
from reactant_node.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NodeError,
    NotFound,
    ResourceExhausted,
    RuntimeUnavailable,
    Unavailable,
    Unimplemented,
)
from reactant_node.kserve import metadata
from reactant_node.reports import Heartbeat, Loading, Ready, Report
from reactant_node.runtime.fake import FakeModel
from reactant_node.runtime.interface import Runtime
from tests.support.clock import ManualClock
from tests.support.worker import (
    LIMIT_SECONDS,
    SIGNATURE,
    configured,
    multiples,
    refused,
    repository,
    serving,
    started,
    until,
)


def refusing(_: Mapping[str, Any]) -> Mapping[str, Any]:
    """A body that blames its input."""
    raise InvalidArgument("index 7 is out of range")


def failing(_: Mapping[str, Any]) -> Mapping[str, Any]:
    """A body that fails by itself."""
    raise Internal("the device is gone")


def impossible(_: Mapping[str, Any]) -> Mapping[str, Any]:
    """A body that breaks the runtime's own promise: not an error it may raise."""
    raise ZeroDivisionError


def test_it_loads_everything_and_only_then_listens_and_says_so(tmp_path: Path) -> None:
    """Progress is reported per model; Ready comes last and names the ports that were bound."""

    async def scenario() -> list[Report]:
        models = {"m": FakeModel(SIGNATURE, multiples), "bad": FakeModel(SIGNATURE, multiples, load_error="no such op")}
        async with serving(configured(repository(tmp_path, "bad", "m")), models) as running:
            return [report for report in running.reports if not isinstance(report, Heartbeat)]

    reports = asyncio.run(scenario())

    assert reports[:2] == [Loading(1, 2), Loading(2, 2)]
    assert isinstance(reports[2], Ready)
    assert reports[2].grpc_port > 0
    assert reports[2].metrics_port > 0


def test_a_reply_has_the_outputs_asked_for_in_their_order_and_the_requests_id(tmp_path: Path) -> None:
    """Without a wish, all outputs come in the graph's order."""

    async def scenario() -> None:
        async with serving(configured(repository(tmp_path, "m")), {"m": FakeModel(SIGNATURE, multiples)}) as running:
            reply, outputs = await running.infer(id="seven")
            assert (reply.id, reply.model_name, reply.model_version) == ("seven", "m", "1")
            assert [(it.name, it.data.tolist()) for it in outputs] == [("double", [[2, 2]]), ("triple", [[3, 3]])]
            _, outputs = await running.infer(outputs=[{"name": "triple"}])
            assert [it.name for it in outputs] == ["triple"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "nobody"}, NotFound),
        ({"model": "bad"}, NotFound),
        ({"model": ""}, NotFound),
        ({"model_version": "2"}, NotFound),
        ({"model_version": "abc"}, InvalidArgument),
        ({"outputs": [{"name": "quadruple"}]}, InvalidArgument),
        ({"model": "refusing"}, InvalidArgument),
        ({"model": "crashing"}, Internal),
    ],
)
def test_what_is_wrong_with_a_request_is_its_status(
    tmp_path: Path, fields: dict[str, Any], expected: type[NodeError]
) -> None:
    """Unknown and refused models are NOT_FOUND, the client's mistakes INVALID_ARGUMENT, a failing run INTERNAL."""

    async def scenario() -> None:
        models = {
            "m": FakeModel(SIGNATURE, multiples),
            "bad": FakeModel(SIGNATURE, multiples, load_error="no such op"),
            "refusing": FakeModel(SIGNATURE, refusing),
            "crashing": FakeModel(SIGNATURE, failing),
        }
        async with serving(configured(repository(tmp_path, *models)), models) as running:
            with pytest.raises(expected):
                await running.infer(**fields)
            await running.infer()

    asyncio.run(scenario())


def test_questions_about_server_and_models_are_answered(tmp_path: Path) -> None:
    """Readiness, metadata and the index, each from the one state the worker has."""

    async def scenario() -> None:
        models = {"m": FakeModel(SIGNATURE, multiples), "bad": FakeModel(SIGNATURE, multiples, load_error="no such op")}
        async with serving(configured(repository(tmp_path, *models)), models) as running:
            call = running.channel().call
            assert metadata.decode_ready(await call(metadata.SERVER_READY, b""))
            for model, ready in (("m", True), ("bad", False), ("nobody", False)):
                query = metadata.encode_model_query(metadata.ModelQuery(model, ""))
                assert metadata.decode_ready(await call(metadata.MODEL_READY, query)) is ready
            index = metadata.decode_index(await call(metadata.REPOSITORY_INDEX, metadata.encode_index_request()))
            assert [(row.name, row.state, row.reason) for row in sorted(index, key=lambda row: row.name)] == [
                ("bad", "UNAVAILABLE", "no such op"),
                ("m", "READY", ""),
            ]
            ready_only = metadata.encode_index_request(ready_only=True)
            assert [row.name for row in metadata.decode_index(await call(metadata.REPOSITORY_INDEX, ready_only))] == [
                "m"
            ]
            with pytest.raises(NotFound, match="no such op"):
                await call(metadata.MODEL_METADATA, metadata.encode_model_query(metadata.ModelQuery("bad", "")))
            with pytest.raises(NotFound, match="unknown service"):
                await call(metadata.HEALTH_CHECK, b"\x0a\x01x")
            with pytest.raises(Unimplemented):
                await call("/inference.GRPCInferenceService/NoSuchMethod", b"")

    asyncio.run(scenario())


def test_above_the_cap_inferences_are_shed_at_once_and_questions_are_not(tmp_path: Path) -> None:
    """`endpoints.max_concurrent_requests` counts ModelInfer calls; a shed one is RESOURCE_EXHAUSTED."""

    async def scenario() -> None:
        model = FakeModel(SIGNATURE, multiples, gate=threading.Event())
        assert model.gate is not None
        model.gate.set()  # the probe at load runs too
        endpoints = EndpointsConfig(port=0, metrics_port=0, max_concurrent_requests=2)
        async with serving(configured(repository(tmp_path, "m"), endpoints=endpoints), {"m": model}) as running:
            model.gate.clear()
            model.entered.clear()
            held = [asyncio.create_task(running.infer())]
            await until(model.entered.is_set, "a run is on the device")
            held.append(asyncio.create_task(running.infer()))
            await until(running.queued, "the second waits")
            with pytest.raises(ResourceExhausted, match="max_concurrent_requests"):
                await running.infer()
            assert metadata.decode_ready(await running.channel().call(metadata.SERVER_READY, b""))
            model.gate.set()
            await asyncio.gather(*held)
            await running.infer()

    asyncio.run(scenario())


def test_a_drain_finishes_what_is_in_flight_and_refuses_what_comes(tmp_path: Path) -> None:
    """After the signal the call on the device and the queued one are answered; a newcomer is UNAVAILABLE."""

    async def scenario() -> None:
        model = FakeModel(SIGNATURE, multiples, gate=threading.Event())
        assert model.gate is not None
        model.gate.set()
        async with serving(configured(repository(tmp_path, "m")), {"m": model}) as running:
            model.gate.clear()
            model.entered.clear()
            held = [asyncio.create_task(running.infer(rows=1))]
            await until(model.entered.is_set, "a run is on the device")
            held.append(asyncio.create_task(running.infer(rows=2)))
            await until(running.queued, "the second waits")
            channel = running.channel()
            running.stop.set()

            for _ in range(1000):
                if await refused(channel):
                    break
            else:
                pytest.fail("a newcomer is still served")
            status, body = await running.get("/readyz")
            assert (status, "draining" in body) == (503, True)
            model.gate.set()
            replies = await asyncio.gather(*held)
            assert [outputs[0].data.shape for _, outputs in replies] == [(1, 2), (2, 2)]

    asyncio.run(scenario())


def test_a_run_past_its_limit_is_reported_and_its_callers_answered(tmp_path: Path) -> None:
    """The heartbeat says since when the device is busy; past the limit the caller gets INTERNAL, readiness goes."""

    async def scenario() -> None:
        clock = ManualClock()
        model = FakeModel(SIGNATURE, multiples, gate=threading.Event())
        assert model.gate is not None
        model.gate.set()
        config = configured(repository(tmp_path, "m"), scheduler=SchedulerConfig(dispatch_timeout_seconds=5))
        async with started(config, {"m": model}, clock=clock) as running:
            await until(running.is_ready, "the worker is ready")
            model.gate.clear()
            model.entered.clear()
            stuck = asyncio.create_task(running.infer())
            await until(model.entered.is_set, "a run is on the device")
            busy = Heartbeat(busy_since_ns=clock.now_ns())
            await until(lambda: busy in running.reports, "a heartbeat says busy")
            clock.advance(6)
            with pytest.raises(Internal, match="dispatch_timeout_seconds"):
                await stuck
            assert (await running.get("/readyz"))[0] == 503
            with pytest.raises(Unavailable):
                await running.infer()
            model.gate.set()

    asyncio.run(scenario())


def test_every_inference_is_counted_once_by_how_it_ended(tmp_path: Path) -> None:
    """The totals per status add up to the calls made; a model that only a client named is no label."""

    async def scenario() -> str:
        models = {"m": FakeModel(SIGNATURE, multiples), "refusing": FakeModel(SIGNATURE, refusing)}
        async with serving(configured(repository(tmp_path, *models)), models) as running:
            for _ in range(3):
                await running.infer(rows=2)
            for model in ("nobody", "nobody-else", "refusing"):
                with pytest.raises(NodeError):
                    await running.infer(model=model)
            return (await running.get("/metrics"))[1]

    text = asyncio.run(scenario())
    samples = {
        (sample.name, sample.labels.get("model"), sample.labels.get("status")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("worker_")
    }

    counted = {key[1:]: value for key, value in samples.items() if key[0] == "worker_requests_total"}
    assert counted == {("m", "OK"): 3, ("", "NOT_FOUND"): 2, ("refusing", "INVALID_ARGUMENT"): 1}
    assert samples["worker_rows_served_total", "m", None] == 6
    assert samples["worker_models_loaded", None, None] == 2
    assert not re.search(r"nobody", text)
    assert all('worker="worker0"' in line for line in text.splitlines() if not line.startswith("#"))


def test_a_model_whose_loading_fails_in_an_unforeseen_way_takes_no_other_down(tmp_path: Path) -> None:
    """Whatever loading raises is that model's reason, and the rest is served."""

    async def scenario() -> None:
        models = {"m": FakeModel(SIGNATURE, multiples), "odd": FakeModel(SIGNATURE, impossible)}
        async with serving(configured(repository(tmp_path, *models)), models) as running:
            await running.infer()
            with pytest.raises(NotFound, match="ZeroDivisionError"):
                await running.infer(model="odd")

    asyncio.run(scenario())


def test_an_empty_repository_is_served_and_not_ready(tmp_path: Path) -> None:
    """Nothing to serve is said, and is no reason to end."""

    async def scenario() -> None:
        async with serving(configured(repository(tmp_path)), {}) as running:
            report = running.ready()
            assert report is not None
            assert report.not_ready == "the model repository holds no model"
            assert await running.get("/readyz") == (503, "not ready: the model repository holds no model\n")
            assert (await running.get("/healthz"))[0] == 200
            assert not metadata.decode_ready(await running.channel().call(metadata.SERVER_READY, b""))

    asyncio.run(scenario())


def test_a_runtime_that_does_not_come_ends_the_worker(tmp_path: Path) -> None:
    """The error leaves `run`, for the process to end with its exit code."""

    def unavailable() -> Runtime:
        raise RuntimeUnavailable("libcudnn.so.9 cannot be loaded")

    async def scenario() -> None:
        async with started(configured(repository(tmp_path)), {}, make_runtime=unavailable):
            pass

    with pytest.raises(RuntimeUnavailable, match="libcudnn"):
        asyncio.run(scenario())


def test_a_request_whose_time_is_over_is_not_run(tmp_path: Path) -> None:
    """The request's own relative budget counts from its arrival, and is looked at when the device is free."""

    async def scenario() -> None:
        clock = ManualClock()
        model = FakeModel(SIGNATURE, multiples, gate=threading.Event())
        assert model.gate is not None
        model.gate.set()
        async with started(configured(repository(tmp_path, "m")), {"m": model}, clock=clock) as running:
            await until(running.is_ready, "the worker is ready")
            model.gate.clear()
            model.entered.clear()
            first = asyncio.create_task(running.infer())
            await until(model.entered.is_set, "a run is on the device")
            late = asyncio.create_task(
                running.infer(parameters={"reactant_timeout_ns": {"int64_param": NS_PER_SECOND}})
            )
            await until(running.queued, "the second waits")
            clock.advance(2)
            model.gate.set()
            with pytest.raises(DeadlineExceeded):
                await late
            await first

    asyncio.run(scenario())


def test_a_stop_does_not_wait_for_a_model_that_is_being_loaded(tmp_path: Path) -> None:
    """Nobody has been promised anything yet; the load ends with the process."""
    entered, release = threading.Event(), threading.Event()

    def endless(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        entered.set()
        release.wait(LIMIT_SECONDS)
        return multiples(arrays)

    async def scenario() -> None:
        config = configured(repository(tmp_path, "m"))
        async with started(config, {"m": FakeModel(SIGNATURE, endless)}) as running:
            await until(entered.is_set, "the model is being loaded")
            running.stop.set()
            await asyncio.wait_for(asyncio.shield(running.task), LIMIT_SECONDS / 2)
            assert running.ready() is None
            release.set()

    asyncio.run(scenario())
