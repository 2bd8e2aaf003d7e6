"""The built node follows its repository: real models, real files, two workers, an unmodified tritonclient."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from onnx import helper
from tritonclient import grpc as triton
from tritonclient.grpc import InferenceServerClient as Client

from tests.support import models
from tests.support.node import LIMIT_SECONDS, NodeProcess, start_node

pytestmark = pytest.mark.artifact

POLL_SECONDS = "2"
SOON_SECONDS = 15.0
"""A poll, two seconds of rest, the gateway's next look, and a busy machine."""


def add(number: float) -> bytes:
    """A model of y = x + number, FP32 [n,4]."""
    node = helper.make_node("Add", ["x", "number"], ["y"])
    shape = ("n", 4)
    value = models.constant("number", np.full(1, number, np.float32))
    model = models.build([node], [models.value("x", "FP32", shape)], [models.value("y", "FP32", shape)], [value])
    return bytes(model.SerializeToString())


def put(folder: Path, model: bytes) -> None:
    """A complete folder, moved in; an earlier file is replaced by rename."""
    if folder.exists():
        (folder.parent.parent / "new").write_bytes(model)
        (folder.parent.parent / "new").rename(folder / "model.onnx")
        return
    elsewhere = folder.parent.parent / "elsewhere" / folder.name
    models.write_model(elsewhere, model)
    elsewhere.rename(folder)


def infer(client: Client, model: str) -> float:
    """What the model adds: the same for all elements of an answer."""
    tensor = triton.InferInput("x", [3, 4], "FP32")
    tensor.set_data_from_numpy(np.zeros((3, 4), np.float32))
    answer = client.infer(model, [tensor], client_timeout=LIMIT_SECONDS).as_numpy("y")
    (number,) = set(answer.flat)
    return float(number)


@contextmanager
def served(tmp_path: Path, **arrays: bytes) -> Iterator[tuple[NodeProcess, Client, Path]]:
    """A node of two workers that serves these models, a client, and its repository."""
    root = tmp_path / "models"
    root.mkdir(exist_ok=True)
    for name, model in arrays.items():
        put(root / name, model)
    arguments = ("--models", str(root), "--backend", "cpu", "--workers", "2")
    environment = {"INFERENCE_SERVER_MODEL_POLL_SECONDS": POLL_SECONDS}
    with start_node(tmp_path / "node", *arguments, environment=environment) as node:
        client = Client(node.wait_ready().grpc_target)
        for worker in ("worker0", "worker1"):  # the node is ready with the first
            node.wait_line(f"{worker} is ready")
        try:
            yield node, client, root
        finally:
            client.close()


def loads(node: NodeProcess, model: str) -> list[int]:
    """How often each worker has loaded a model, by its log."""
    ready = [line for line in node.lines if f"model is ready model={model} " in line]
    return [sum(f"[{worker}]" in line for line in ready) for worker in ("worker0", "worker1")]


def answers(client: Client, model: str, number: float) -> Callable[[], bool]:
    """Whether the model adds this number, by both workers: eight answers in a row."""

    def look() -> bool:
        try:
            return all(infer(client, model) == number for _ in range(8))
        except triton.InferenceServerException:
            return False

    return look


def unknown(client: Client, model: str) -> Callable[[], bool]:
    """Whether both workers answer NOT_FOUND, or that nothing of this name is loaded."""

    def look() -> bool:
        for _ in range(4):
            try:
                infer(client, model)
            except triton.InferenceServerException as error:
                if error.status() not in ("StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE"):
                    raise
            else:
                return False
        return True

    return look


class Steady:
    """Callers of one model at an easy pace, and all that they were answered."""

    def __init__(self, node: NodeProcess, model: str) -> None:
        self._target, self._model = node.grpc_target, model
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self.numbers: list[float] = []
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        for _ in range(4):
            self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def _run(self) -> None:
        with Client(self._target) as client:
            while not self._stop.is_set():
                try:
                    self.numbers.append(infer(client, self._model))
                except triton.InferenceServerException as error:
                    self.errors.append(f"{error.status()}: {error.message()}")
                time.sleep(0.05)


def test_replacing_breaking_renaming_and_deleting_below_callers_fails_nobody(tmp_path: Path) -> None:
    """Every answer is wholly of a version that was there; a broken file changes nothing; readiness never goes."""
    with (
        served(tmp_path, model=add(1), other=add(7)) as (node, client, root),
        Steady(node, "model") as steady,
        Steady(node, "other") as other,
    ):
        for number in (2, 3):
            put(root / "model", add(number))
            node.wait_for(answers(client, "model", number), f"version {number}", SOON_SECONDS)
            node.wait_for(lambda: min(loads(node, "model")) == len(set(steady.numbers)), "both workers", SOON_SECONDS)
        put(root / "model", b"no model at all")
        node.wait_line(r"worker0.*the version before it is", SOON_SECONDS)
        node.wait_line(r"worker1.*the version before it is", SOON_SECONDS)
        assert answers(client, "model", 3)()
        index = {row.name: (row.state, row.reason) for row in client.get_model_repository_index().models}
        assert index["model"][0] == "READY"
        put(root / "model", add(4))
        node.wait_for(answers(client, "model", 4), "the mended version", SOON_SECONDS)
        put(root / "added", add(5))
        node.wait_for(answers(client, "added", 5), "the added model", SOON_SECONDS)
        (root / "added").rename(root / "renamed")
        node.wait_for(answers(client, "renamed", 5), "the new name", SOON_SECONDS)
        node.wait_for(unknown(client, "added"), "the end of the old name", SOON_SECONDS)
        shutil.rmtree(root / "renamed")
        node.wait_for(unknown(client, "renamed"), "the end of the model", SOON_SECONDS)
        assert node.get("/readyz")[0] == 200
    assert (steady.errors, other.errors) == ([], [])
    assert set(steady.numbers) == {1, 2, 3, 4}
    assert set(other.numbers) == {7}
    assert not [line for line in node.lines if "Traceback" in line]
    once = {name: loads(node, name) for name in ("other", "added", "renamed")}
    assert once == {"other": [1, 1], "added": [1, 1], "renamed": [0, 0]}
    assert loads(node, "model") == [4, 4]


def test_half_written_files_are_never_served_and_whole_ones_soon(tmp_path: Path) -> None:
    """A model in slices, new and over one that serves; external data after the graph; a config after the model."""
    big = models.build(
        [helper.make_node("Add", ["x", "number"], ["y"])],
        [models.value("x", "FP32", ("n", 4))],
        [models.value("y", "FP32", ("n", 4))],
        [models.constant("number", np.full(1, 9, np.float32)), models.constant("ballast", np.zeros(1 << 18))],
    ).SerializeToString()
    with served(tmp_path, model=add(1)) as (node, client, root), Steady(node, "model") as steady:
        (root / "sliced").mkdir()
        (root / "late").mkdir()
        (root / "late/model.onnx").write_bytes(models.external("weights.bin", 4).SerializeToString())
        for start in range(0, len(big), len(big) // 8):
            for name in ("sliced", "model"):
                with (root / name / "model.onnx").open("ab" if start else "wb") as file:
                    file.write(big[start : start + len(big) // 8])
            assert infer(client, "model") == 1
            time.sleep(0.4)
        written = time.monotonic()
        node.wait_for(answers(client, "sliced", 9), "the new model", SOON_SECONDS)
        node.wait_for(answers(client, "model", 9), "the model written over", SOON_SECONDS)
        assert time.monotonic() - written < SOON_SECONDS
        node.wait_line(r"model cannot be served.*weights\.bin", SOON_SECONDS)
        (root / "late/weights.bin").write_bytes(np.full(4, 6, "<f4").tobytes())
        node.wait_for(answers(client, "late", 6), "the model whose data came late", SOON_SECONDS)
        weights = root / "late/weights.bin"
        before = weights.stat()
        (root / "late/new").write_bytes(np.full(4, 8, "<f4").tobytes())
        os.utime(root / "late/new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (root / "late/new").rename(weights)
        node.wait_for(answers(client, "late", 8), "the data as old as before", SOON_SECONDS)
        (root / "sliced/config.pbtxt").write_text("max_batch_size: 2")
        node.wait_for(lambda: refuses_three_rows(client, "sliced"), "the config", SOON_SECONDS)
    assert steady.errors == []
    assert set(steady.numbers) == {1, 9}


def refuses_three_rows(client: Client, model: str) -> bool:
    """Whether a request of three rows is INVALID_ARGUMENT, at both workers."""
    codes = []
    for _ in range(4):
        try:
            infer(client, model)
            codes.append("OK")
        except triton.InferenceServerException as error:
            codes.append(error.status())
    return codes == ["StatusCode.INVALID_ARGUMENT"] * 4


def test_bad_folders_are_said_once_and_served_once_they_are_mended(tmp_path: Path) -> None:
    """What is no model is passed over; what is meant to be one logs one reason, not one per poll."""
    root = tmp_path / "models"
    for name, content in (("empty-file", b""), ("text", b"not a model")):
        models.write_model(root / name, content)
    models.write_model(
        root / "no-op",
        models.build(
            [helper.make_node("NoSuchOp", ["x"], ["y"])],
            [models.value("x", "FP32", ("n", 4))],
            [models.value("y", "FP32", ("n", 4))],
        ).SerializeToString(),
    )
    for name in ("empty", ".git", "lost+found"):
        (root / name).mkdir(mode=0o700)
    models.write_model(root / "versions/1/.ipynb_checkpoints", b"")
    for version in ("0", "01", "abc"):
        models.write_model(root / "versions" / version, b"")
    models.write_model(root / "with space", add(1))
    models.write_model(root / "naïve", add(1))
    (root / "README").write_text("a plain file")
    bad = {"empty-file", "text", "no-op", "versions", "with space", "naïve"}
    with served(tmp_path, add1=add(1)) as (node, client, _):
        assert infer(client, "add1") == 1
        index = {row.name: row.state for row in client.get_model_repository_index().models}
        assert index == {"add1": "READY", **dict.fromkeys(bad, "UNAVAILABLE")}
        for name in ("empty-file", "text", "no-op"):
            (root / name / "model.onnx").write_bytes(add(3))
        models.write_model(root / "versions/1", add(3))
        put(root / "another", add(4))
        for name in ("empty-file", "text", "no-op", "versions"):
            node.wait_for(answers(client, name, 3), f"{name} is mended", SOON_SECONDS)
        node.wait_for(answers(client, "another", 4), "the other one", SOON_SECONDS)
        (root / "with space").rename(root / "without-space")
        node.wait_for(answers(client, "without-space", 1), "the proper name", SOON_SECONDS)
        time.sleep(3 * float(POLL_SECONDS))
        node.stop()
    for worker in ("worker0", "worker1"):
        said = [line for line in node.lines if f"[{worker}]" in line and "cannot be served" in line]
        assert len(said) == len(bad), "\n".join(said)


def test_a_repository_that_is_gone_for_a_while_changes_nothing(tmp_path: Path) -> None:
    """Its models are served throughout, it is said once, and changes are followed when it is back."""
    with served(tmp_path, model=add(1)) as (node, client, root), Steady(node, "model") as steady:
        root.rename(tmp_path / "away")
        for worker in ("worker0", "worker1"):
            node.wait_line(rf"{worker}.*cannot be read: No such file", SOON_SECONDS)
        time.sleep(3 * float(POLL_SECONDS))
        assert infer(client, "model") == 1
        assert node.get("/readyz")[0] == 200
        (tmp_path / "away").rename(root)
        put(root / "model", add(2))
        node.wait_for(answers(client, "model", 2), "the next version", SOON_SECONDS)
    assert steady.errors == []
    assert sum("cannot be read" in line for line in node.lines) == 2
    assert set(steady.numbers) == {1, 2}


def test_a_stock_client_loads_and_unloads_by_request(tmp_path: Path) -> None:
    """In explicit mode the node is ready with nothing loaded, and serves what it is asked to."""
    models.write_model(tmp_path / "models/bad", b"no model at all")
    arguments = ("--models", str(tmp_path / "models"), "--backend", "cpu", "--workers", "1")
    environment = {"INFERENCE_SERVER_MODEL_CONTROL_MODE": "explicit"}
    with start_node(tmp_path / "node", *arguments, environment=environment) as node:
        with Client(node.wait_ready().grpc_target) as client:
            for number in (1, 2):
                put(tmp_path / "models/model", add(number))
                client.load_model("model")
                assert infer(client, "model") == number
                assert client.is_model_ready("model")
            client.unload_model("model")
            assert not client.is_model_ready("model")
            with pytest.raises(triton.InferenceServerException, match="not loaded"):
                infer(client, "model")
            for name, code in (("bad", "INTERNAL"), ("nobody", "NOT_FOUND")):
                with pytest.raises(triton.InferenceServerException) as raised:
                    client.load_model(name)
                assert raised.value.status() == f"StatusCode.{code}"
        assert node.stop() == 0
