"""Models that are loaded and unloaded by request: explicit mode, a whole worker over the doubles."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reactant_node.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NodeError,
    NotFound,
    PermissionDenied,
    Unavailable,
    Unimplemented,
)
from reactant_node.kserve import repository_control
from reactant_node.kserve.pb import grpc_predict_v2_pb2 as pb
from reactant_node.runtime.fake import FakeModel, FakeRuntime
from tests.support.worker import SIGNATURE, Running, configured, multiples, repository, serving, until

NAMES = ("a", "b", "c")


class Stage:
    """A worker in explicit mode over a repository of three models, and its client."""

    def __init__(self, running: Running, runtime: FakeRuntime, models: dict[str, FakeModel]) -> None:
        self.running, self.runtime, self.models = running, runtime, models

    async def load(self, name: str) -> None:
        """RepositoryModelLoad."""
        await self.running.channel().call(repository_control.LOAD, repository_control.encode_load(name))

    async def unload(self, name: str) -> None:
        """RepositoryModelUnload."""
        await self.running.channel().call(repository_control.UNLOAD, repository_control.encode_unload(name))

    async def ready(self) -> list[str]:
        """Names of the models that are READY."""
        return [name for name, (state, _) in (await self.running.index()).items() if state == "READY"]


@asynccontextmanager
async def explicit(tmp_path: Path, include: Sequence[str] = (), **options: Any) -> AsyncIterator[Stage]:
    """Serving."""
    mode = options.pop("mode", "explicit")
    root = repository(tmp_path / "models", *NAMES)
    config = configured(root, model_control_mode=mode, models_include=tuple(include))
    models = {name: FakeModel(SIGNATURE, multiples) for name in NAMES}
    runtime = FakeRuntime(models)
    async with serving(config, models, make_runtime=lambda: runtime, **options) as running:
        yield Stage(running, runtime, models)


@pytest.mark.parametrize(
    ("include", "loaded"),
    [((), []), (("b",), ["b"]), (("b", "nobody"), ["b"]), (("*",), list(NAMES)), (("a", "*"), list(NAMES))],
    ids=["none", "one", "one that is not there", "all", "all and one"],
)
def test_what_is_named_is_loaded_at_the_start_and_the_rest_waits(
    tmp_path: Path, include: Sequence[str], loaded: list[str]
) -> None:
    """The worker is ready, with or without a model; every model of the repository is in the index."""

    async def scenario() -> None:
        async with explicit(tmp_path, include) as stage:
            assert await stage.running.server_ready()
            index = await stage.running.index()
            assert index == {name: ("READY", "") if name in loaded else ("UNAVAILABLE", "unloaded") for name in NAMES}
            assert len(stage.runtime.sessions) == len(loaded)

    asyncio.run(scenario())


def test_a_model_is_loaded_unloaded_and_loaded_again(tmp_path: Path) -> None:
    """It answers in between, and is UNAVAILABLE otherwise; asking twice for the same is no error and no work."""

    async def scenario() -> None:
        async with explicit(tmp_path) as stage:
            with pytest.raises(Unavailable, match="RepositoryModelLoad"):
                await stage.running.infer(model="a")
            for _ in range(2):
                await stage.load("a")
            await stage.running.infer(model="a")
            assert len(stage.runtime.sessions) == 1
            for _ in range(2):
                await stage.unload("a")
            assert await stage.ready() == []
            with pytest.raises(Unavailable):
                await stage.running.infer(model="a")
            await until(lambda: stage.runtime.sessions[0].closed, "the session is closed")
            await stage.load("a")
            await stage.running.infer(model="a")
            assert await stage.running.server_ready()

    asyncio.run(scenario())


def test_a_folder_that_changed_or_came_later_is_loaded_when_it_is_asked_for(tmp_path: Path) -> None:
    """And not before: nobody watches."""

    async def scenario() -> None:
        async with explicit(tmp_path, ["a"]) as stage:
            repository(tmp_path / "models", "late")
            stage.models["late"] = FakeModel(SIGNATURE, multiples)
            (tmp_path / "models/a/model.onnx").write_text("another")
            await stage.load("late")
            await stage.running.infer(model="late")
            assert len(stage.runtime.sessions) == 2
            await stage.load("a")
            assert len(stage.runtime.sessions) == 3
            await stage.running.infer(model="a")

    asyncio.run(scenario())


def test_what_cannot_be_loaded_says_why_each_time_it_is_asked_for(tmp_path: Path) -> None:
    """INTERNAL, as Triton answers; what was served before still is."""

    async def scenario() -> None:
        async with explicit(tmp_path, ["a"]) as stage:
            for name in ("a", "b"):
                stage.models[name] = FakeModel(SIGNATURE, multiples, load_error="no such operator")
            (tmp_path / "models/a/model.onnx").write_text("broken")
            for name in ("a", "b", "a", "b"):
                with pytest.raises(Internal, match=f"model '{name}': .*no such operator"):
                    await stage.load(name)
            assert await stage.ready() == ["a"]
            await stage.running.infer(model="a")
            stage.models["b"] = FakeModel(SIGNATURE, multiples)
            await stage.load("b")
            await stage.running.infer(model="b")

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["nobody", "", "..", "../models/a", "a/", ".", "a\0", "lost+found"])
def test_a_name_that_the_repository_does_not_hold_is_not_found(tmp_path: Path, name: str) -> None:
    """Names are looked up, never made part of a path."""

    async def scenario() -> None:
        async with explicit(tmp_path) as stage:
            for call in (stage.load, stage.unload):
                with pytest.raises(NotFound):
                    await call(name)
            assert stage.runtime.sessions == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (pb.RepositoryModelLoadRequest(model_name="a", repository_name="/models"), Unimplemented),
        (
            pb.RepositoryModelLoadRequest(
                model_name="a", parameters={"config": pb.ModelRepositoryParameter(string_param="{}")}
            ),
            Unimplemented,
        ),
    ],
)
def test_what_a_load_may_carry_in_triton_is_refused(tmp_path: Path, message: Any, expected: type[NodeError]) -> None:
    """A model is what its folder holds; a message that is none is the client's mistake."""

    async def scenario() -> None:
        async with explicit(tmp_path) as stage:
            call = stage.running.channel().call
            with pytest.raises(expected):
                await call(repository_control.LOAD, message.SerializeToString())
            with pytest.raises(InvalidArgument, match="malformed"):
                await call(repository_control.LOAD, b"\xff")
            request = pb.RepositoryModelUnloadRequest(
                model_name="a", parameters={"unload_dependents": pb.ModelRepositoryParameter(bool_param=True)}
            )
            await call(repository_control.UNLOAD, request.SerializeToString())

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_in_other_modes_the_repository_decides(tmp_path: Path, mode: str) -> None:
    """FAILED_PRECONDITION, with the mode and the way out."""

    async def scenario() -> None:
        async with explicit(tmp_path, mode=mode) as stage:
            for call in (stage.load, stage.unload):
                with pytest.raises(FailedPrecondition, match=f"model_control_mode is {mode}.* explicit"):
                    await call("a")
            assert await stage.ready() == list(NAMES)

    asyncio.run(scenario())


@pytest.mark.parametrize("peer", ["10.0.0.7", "2001:db8::1", "::ffff:10.0.0.7", ""])
def test_another_machine_may_not_change_what_is_served(tmp_path: Path, peer: str) -> None:
    """PERMISSION_DENIED, whatever the mode and the name."""

    async def scenario() -> None:
        async with explicit(tmp_path, ["a"], peer=peer) as stage:
            for call in (stage.load, stage.unload):
                with pytest.raises(PermissionDenied, match="programs on this machine"):
                    await call("a")
            assert await stage.ready() == ["a"]

    asyncio.run(scenario())


def test_a_load_goes_on_when_its_client_goes_away_and_the_next_waits_its_turn(tmp_path: Path) -> None:
    """A session is never lost half-way."""

    async def scenario() -> None:
        async with explicit(tmp_path) as stage:
            gate = threading.Event()
            stage.models["a"] = FakeModel(SIGNATURE, multiples, load_gate=gate)
            gone = asyncio.create_task(stage.load("a"))
            for _ in range(4000):
                if (await stage.running.index())["a"][0] == "LOADING":
                    break
                await asyncio.sleep(0.005)
            gone.cancel()
            unload = asyncio.create_task(stage.unload("a"))
            await asyncio.sleep(0.05)
            assert not unload.done()
            gate.set()
            await unload
            await until(lambda: [it.closed for it in stage.runtime.sessions] == [True], "loaded, and unloaded")

    asyncio.run(scenario())
