"""The model set follows the repository while the worker serves: a whole worker over the doubles, real folders."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reactant_node.config.schema import WorkerConfig
from reactant_node.errors import NotFound, Unavailable
from reactant_node.models import observation
from reactant_node.reports import Heartbeat
from reactant_node.runtime.fake import FakeModel, FakeRuntime
from reactant_node.worker import watcher
from tests.support.worker import SIGNATURE, Running, configured, repository, serving, started, until

POLL_SECONDS = 0.02


def times(factor: float) -> FakeModel:
    """A model of both outputs x times the factor."""
    return FakeModel(SIGNATURE, lambda arrays: {"double": arrays["x"] * factor, "triple": arrays["x"] * factor})


@contextmanager
def counted_polls() -> Iterator[Callable[[], int]]:
    """A function that says how many looks watchers have taken since."""
    real, count = observation.observe, [0]

    def observe(*arguments: Any) -> Any:
        count[0] += 1
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watcher, "observe", observe)
        yield lambda: count[0]


@dataclass
class Stage:
    """A serving worker, its repository, and the runtime's models, to be changed along with the files."""

    running: Running
    root: Path
    models: dict[str, FakeModel]
    runtime: FakeRuntime

    async def factor(self, model: str = "m", rows: int = 1) -> float:
        """What the model multiplies by: one number for all rows and outputs of one request."""
        _, outputs = await self.running.infer(model=model, rows=rows)
        (factor,) = {float(value) for output in outputs for value in output.data.flat}
        return factor

    async def serves(self, factor: float, model: str = "m") -> None:
        """Return once it does."""
        for _ in range(4000):
            if await self.factor(model) == factor:
                return
            await asyncio.sleep(0.005)
        pytest.fail(f"{model} does not come to multiply by {factor}")

    async def state(self, model: str, state: str) -> str:
        """Return the reason once the model is in that state."""
        for _ in range(4000):
            found = (await self.running.index()).get(model, ("", ""))
            if found[0] == state:
                return found[1]
            await asyncio.sleep(0.005)
        pytest.fail(f"{model} does not come to be {state or 'gone'}")

    def replace(self, factor: float, model: str = "m") -> None:
        """Another model in place of the file, by rename."""
        self.models[model] = times(factor)
        new = self.root.parent / "new.onnx"
        new.write_text(f"{factor}")
        new.replace(self.root / model / "model.onnx")

    def open_sessions(self) -> int:
        """Sessions that were made and not closed."""
        return sum(not session.closed for session in self.runtime.sessions)

    async def held(self, model: str = "m") -> tuple[threading.Event, asyncio.Task[float]]:
        """Hold the runs of the session that serves a model, until the event is set; and the first call held so."""
        gate = threading.Event()
        session = next(it for it in reversed(self.runtime.sessions) if it._model is self.models[model])
        session._model = FakeModel(SIGNATURE, session._model.body, gate)
        call = asyncio.create_task(self.factor(model))
        await until(session._model.entered.is_set, "a run is on the device")
        return gate, call

    async def queue(self, *models: str) -> list[asyncio.Task[float]]:
        """One call of each, behind the run that is held."""
        before = self.running.queued()
        calls = [asyncio.create_task(self.factor(model)) for model in models]
        await until(lambda: self.running.queued() == before + len(models), "they wait")
        return calls


def config(root: Path, **changes: Any) -> WorkerConfig:
    """A worker that polls all the time."""
    return configured(str(root), **{"model_poll_seconds": POLL_SECONDS, **changes})


@asynccontextmanager
async def staged(tmp_path: Path, models: Mapping[str, float], **changes: Any) -> AsyncIterator[Stage]:
    """A worker that serves models which multiply by their factors."""
    root = tmp_path / "models"
    root.mkdir(exist_ok=True)
    repository(root, *models)
    fakes = {name: times(factor) for name, factor in models.items()}
    runtime = FakeRuntime(fakes)
    async with serving(config(root, **changes), fakes, make_runtime=lambda: runtime) as running:
        yield Stage(running, root, fakes, runtime)


def add(stage: Stage, name: str, model: FakeModel) -> None:
    """A complete folder, moved in."""
    stage.models[name] = model
    repository(stage.root.parent / "elsewhere", name)
    (stage.root.parent / "elsewhere" / name).rename(stage.root / name)


def test_models_replaced_under_load_fail_nobody_and_every_answer_is_of_one_version(tmp_path: Path) -> None:
    """Fifty swaps below callers in a loop; each answer wholly old or new, and no session but the last stays open."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1, "other": 7}) as stage:
            done = asyncio.Event()

            async def call() -> int:
                newest, calls = 0.0, 0
                while not done.is_set():
                    factor = await stage.factor(rows=3)
                    assert factor >= newest
                    newest, calls = factor, calls + 1
                return calls

            callers = [asyncio.create_task(call()) for _ in range(4)]
            for factor in range(2, 52):
                stage.replace(factor)
                await stage.serves(factor)
            done.set()
            assert min(await asyncio.gather(*callers)) > 0
            assert await stage.factor("other") == 7
            await until(lambda: stage.open_sessions() == 2, "the sessions that were replaced are closed")
            assert len(stage.runtime.sessions) == 52

    asyncio.run(scenario())


def test_requests_that_were_queued_before_a_swap_get_what_they_came_for(tmp_path: Path) -> None:
    """They run on the session they hold, which is closed after the last of them."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            gate, running = await stage.held()
            queued = await stage.queue("m", "m")
            stage.replace(5)
            # The probe of the new session waits for the device, too: the gate opens when it is in line.
            await until(lambda: len(stage.runtime.sessions) == 2, "the new session is made")
            assert stage.open_sessions() == 2
            gate.set()
            assert await asyncio.gather(running, *queued) == [1, 1, 1]
            await stage.serves(5)
            await until(lambda: stage.open_sessions() == 1, "the old session is closed")

    asyncio.run(scenario())


def test_a_model_that_is_added_slowly_disturbs_nobody(tmp_path: Path) -> None:
    """While it loads the others are served, readiness stays, heartbeats go on and tell; it is UNAVAILABLE itself."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            slow = times(9)
            gate = threading.Event()
            add(stage, "slow", FakeModel(SIGNATURE, slow.body, load_gate=gate))
            await stage.state("slow", "LOADING")
            assert await stage.factor() == 1
            with pytest.raises(Unavailable, match="loading"):
                await stage.factor("slow")
            assert await stage.running.server_ready()
            beats = stage.running.reports
            await until(lambda: Heartbeat(loading=True) in beats, "a heartbeat while it loads")
            assert (await stage.running.get("/readyz"))[0] == 200
            gate.set()
            await stage.state("slow", "READY")
            assert await stage.factor("slow") == 9
            await until(lambda: beats[-1] == Heartbeat(), "the load is over")

    asyncio.run(scenario())


def test_an_update_that_cannot_be_loaded_leaves_the_old_one_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """READY, with the reason beside it, over many polls; the next change is tried again."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            stage.replace(2)
            stage.models["m"] = FakeModel(SIGNATURE, dict, load_error="no such operator")
            await until(lambda: "no such operator" in caplog.text, "it is tried")
            await until(lambda: polls() > 5, "more polls")
            assert (await stage.running.index())["m"] == (
                "READY",
                "what its folder holds now is not served: no such operator",
            )
            assert await stage.factor() == 1
            assert await stage.running.server_ready()
            stage.replace(3)
            await stage.serves(3)
            assert (await stage.running.index())["m"] == ("READY", "")
            await until(lambda: stage.open_sessions() == 1, "one session is left")

    with caplog.at_level(logging.INFO), counted_polls() as polls:
        asyncio.run(scenario())
    assert caplog.text.count("no such operator") == 1


def test_what_is_broken_at_the_start_is_served_once_it_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused folders and models that do not load alike; each says its reason once."""

    async def scenario() -> None:
        repository(tmp_path / "models", "half")
        (tmp_path / "models/half/model.onnx").rename(tmp_path / "models/half/model.onnx.part")
        async with staged(tmp_path, {"m": 1}) as stage:
            stage.models["half"] = times(4)
            await until(lambda: polls() > 5, "some polls")
            assert (await stage.running.index())["half"][0] == "UNAVAILABLE"
            (stage.root / "half/model.onnx.part").rename(stage.root / "half/model.onnx")
            await stage.state("half", "READY")
            assert await stage.factor("half") == 4

    with caplog.at_level(logging.ERROR), counted_polls() as polls:
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records if "there is no model.onnx" in record.getMessage()]
    assert len(caplog.records) == 1


def test_of_a_removed_model_what_runs_ends_well_and_what_waits_is_told(tmp_path: Path) -> None:
    """Nobody hangs: UNAVAILABLE for the queue, then NOT_FOUND, and the session is closed."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1, "other": 2}) as stage:
            gate, running = await stage.held()
            waits = await stage.queue("m", "m")
            shutil.rmtree(stage.root / "m")
            for task in waits:
                with pytest.raises(Unavailable, match="unloaded while the request was queued"):
                    await task
            with pytest.raises(NotFound, match="unknown model 'm'"):
                await stage.factor()
            assert "m" not in await stage.running.index()
            gate.set()
            assert await running == 1
            await until(lambda: stage.open_sessions() == 1, "its session is closed")
            assert await stage.factor("other") == 2

    asyncio.run(scenario())


def test_a_renamed_model_keeps_its_session_and_its_queue(tmp_path: Path) -> None:
    """Nothing is loaded again, what waits is answered; the old name is unknown from then on."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            gate, running = await stage.held()
            queued = await stage.queue("m", "m")
            (stage.root / "m").rename(stage.root / "n")
            await stage.state("n", "READY")
            with pytest.raises(NotFound):
                await stage.factor("m")
            gate.set()
            assert await asyncio.gather(running, *queued) == [1, 1, 1]
            assert await stage.factor("n") == 1
            assert len(stage.runtime.sessions) == 1

    asyncio.run(scenario())


def test_names_that_move_up_in_a_chain_are_served_throughout_and_nothing_is_loaded(tmp_path: Path) -> None:
    """`m` becomes `m-old` and `m-next` becomes `m`, in one poll, with requests queued for both."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1, "m-next": 2}) as stage:
            gate, running = await stage.held()
            queued = await stage.queue("m", "m-next")
            (stage.root / "m").rename(stage.root / "m-old")
            (stage.root / "m-next").rename(stage.root / "m")
            await stage.state("m-old", "READY")
            later = await stage.queue("m", "m-old")
            gate.set()
            assert await asyncio.gather(running, *queued, *later) == [1, 1, 2, 2, 1]
            assert len(stage.runtime.sessions) == 2
            assert stage.open_sessions() == 2

    asyncio.run(scenario())


def test_a_model_moved_aside_for_a_new_one_is_served_until_that_is_ready(tmp_path: Path) -> None:
    """There is no moment without it, however long the new one takes; and the old one goes on under its new name."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            (stage.root / "m").rename(stage.root / "m-old")
            gate = threading.Event()
            add(stage, "m", FakeModel(SIGNATURE, times(2).body, load_gate=gate))
            await stage.state("m-old", "READY")
            assert [await stage.factor(name) for name in ("m", "m-old")] == [1, 1]
            gate.set()
            await stage.serves(2)
            assert await stage.factor("m-old") == 1
            assert stage.open_sessions() == 2

    asyncio.run(scenario())


def test_one_whose_folder_is_replaced_by_a_served_one_keeps_its_queue(tmp_path: Path) -> None:
    """The session that takes over was loaded already; the requests of both names are answered."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1, "next": 2}) as stage:
            gate, running = await stage.held()
            queued = await stage.queue("m", "next")
            shutil.rmtree(stage.root / "m")
            (stage.root / "next").rename(stage.root / "m")
            await stage.state("next", "")
            gate.set()
            assert await asyncio.gather(running, *queued) == [1, 1, 2]
            assert await stage.factor("m") == 2
            await until(lambda: stage.open_sessions() == 1, "the replaced session is closed")

    asyncio.run(scenario())


@pytest.mark.parametrize("mountpoint", [False, True], ids=["gone", "an empty folder in its place"])
def test_a_repository_that_is_lost_changes_nothing_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, mountpoint: bool
) -> None:
    """When it is back nothing is loaded again, and it is followed as before."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            stage.root.rename(tmp_path / "away")
            if mountpoint:
                stage.root.mkdir()
            await until(lambda: "stay as they are" in caplog.text, "it is said")
            seen = polls()
            await until(lambda: polls() > seen + 5, "more polls")
            assert await stage.factor() == 1
            assert await stage.running.server_ready()
            if mountpoint:
                stage.root.rmdir()
            (tmp_path / "away").rename(stage.root)
            await until(lambda: "can be read again" in caplog.text, "it is back")
            seen = polls()
            await until(lambda: polls() > seen + 3, "more polls")
            assert len(stage.runtime.sessions) == 1
            stage.replace(2)
            await stage.serves(2)

    with caplog.at_level(logging.INFO), counted_polls() as polls:
        asyncio.run(scenario())
    assert caplog.text.count("stay as they are") == 1


def test_what_changes_while_the_worker_starts_is_served_after_it(tmp_path: Path) -> None:
    """The files as they were before loading began are what later ones are held against."""

    async def scenario() -> None:
        root = Path(repository(tmp_path / "models", "a", "b"))
        gate = threading.Event()
        fakes = {"a": times(1), "b": FakeModel(SIGNATURE, times(1).body, load_gate=gate)}
        runtime = FakeRuntime(fakes)
        async with started(config(root), fakes, make_runtime=lambda: runtime) as running:
            await until(lambda: runtime.sessions, "the first model is loaded")
            fakes["a"] = times(2)
            (root / "a/model.onnx").write_text("another")
            fakes["b"] = times(3)
            (root / "b/model.onnx").write_text("another, below the hands of the loader")
            gate.set()
            await until(running.is_ready, "the worker is ready")
            stage = Stage(running, root, fakes, runtime)
            await stage.serves(2, "a")
            await stage.state("b", "READY")
            assert await stage.factor("b") == 3
            await until(lambda: stage.open_sessions() == 2, "one session each is left")

    asyncio.run(scenario())


def test_what_changes_while_it_is_loaded_is_not_served(tmp_path: Path) -> None:
    """The session is thrown away, and the folder is loaded again when it is at rest."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            gate = threading.Event()
            stage.replace(2)
            stage.models["m"] = FakeModel(SIGNATURE, times(2).body, load_gate=gate)
            await until(lambda: stage.running.reports[-1] == Heartbeat(loading=True), "it is being loaded")
            stage.replace(3)
            gate.set()
            for _ in range(4000):
                factor = await stage.factor()
                assert factor in (1, 3)
                if factor == 3:
                    break
            await until(lambda: stage.open_sessions() == 1, "one session is left")

    asyncio.run(scenario())


def test_a_folder_that_is_gone_before_it_is_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither an entry in the index nor a session."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            gate = threading.Event()
            add(stage, "slow", FakeModel(SIGNATURE, times(2).body, load_gate=gate))
            await stage.state("slow", "LOADING")
            shutil.rmtree(stage.root / "slow")
            gate.set()
            await stage.state("slow", "")
            assert stage.open_sessions() == 1

    asyncio.run(scenario())


def test_links_that_are_swapped_swap_the_model(tmp_path: Path) -> None:
    """As Kubernetes updates a mounted ConfigMap."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            mounted = tmp_path / "mounted"
            for version in ("..v1", "..v2"):
                repository(mounted / version, "c")
            (mounted / "..data").symlink_to("..v1")
            stage.models["c"] = times(2)
            (stage.root / "c").symlink_to(mounted / "..data/c")
            await stage.state("c", "READY")
            stage.models["c"] = times(3)
            (mounted / "..tmp").symlink_to("..v2")
            (mounted / "..tmp").rename(mounted / "..data")
            await stage.serves(3, "c")

    asyncio.run(scenario())


def test_a_model_written_over_in_place_with_its_old_times_is_seen(tmp_path: Path) -> None:
    """The file system's own time of the change cannot be set back."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            file = stage.root / "m/model.onnx"
            before = file.stat()
            stage.models["m"] = times(2)
            file.write_bytes(bytes(before.st_size))
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            await stage.serves(2)

    asyncio.run(scenario())


def test_a_static_worker_does_not_look_again(tmp_path: Path) -> None:
    """What is served is what was there at the start."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}, model_control_mode="static") as stage:
            stage.replace(2)
            await asyncio.sleep(10 * POLL_SECONDS)
            assert await stage.factor() == 1
            assert polls() == 0

    with counted_polls() as polls:
        asyncio.run(scenario())


def test_a_poll_that_fails_oddly_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and the next one comes."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}) as stage:
            monkeypatch.setattr(watcher, "observe", lambda *_: 1 / 0)
            await asyncio.sleep(5 * POLL_SECONDS)
            monkeypatch.setattr(watcher, "observe", observation.observe)
            stage.replace(2)
            await stage.serves(2)

    asyncio.run(scenario())


def test_between_polls_a_folder_that_is_moved_in_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the next poll, which is far away."""

    async def scenario() -> None:
        async with staged(tmp_path, {"m": 1}, model_poll_seconds=1000.0) as stage:
            add(stage, "n", times(2))
            await stage.state("n", "READY")
            assert await stage.factor("n") == 2

    monkeypatch.setattr(watcher, "GLANCE_SECONDS", 0.01)
    monkeypatch.setattr(watcher, "SETTLE_SECONDS", 0.01)
    asyncio.run(scenario())
