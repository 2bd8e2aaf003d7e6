"""Models that people run, out of the wheels that ship them, through a node of two workers.

The wheels are data here: their .onnx files are looked up in the installed distributions, and nothing of theirs is
imported. Every answer is held against ONNX Runtime in the test's process, bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.interop_reference import Reference
from tests.support.interop_wire import WireClient, WireTensor
from tests.support.node import start_node

pytestmark = pytest.mark.artifact

Arrays = Mapping[str, Any]

DISTRIBUTIONS = ("magika", "rapidocr-onnxruntime", "silero-vad")

RATE = np.array(16_000, np.int64)
STATE = np.zeros((2, 1, 128), np.float32)
CELL = np.zeros((1, 1, 128), np.float32)


def noise(*shape: int) -> Any:
    """Made-up values between -1 and 1, the same every time."""
    return np.random.default_rng(7).uniform(-1, 1, shape).astype(np.float32)


def tone(rows: int) -> Any:
    """Frames of a second of 440 Hz at 16 kHz, as the voice detectors take them."""
    samples = np.arange(rows * 576)
    return np.sin(2 * np.pi * 440 * samples / 16_000).astype(np.float32).reshape(rows, 576)


INPUTS: Mapping[str, tuple[Arrays, ...]] = {
    # What kind of file it is, from its bytes; 256 stands for "none".
    "magika/models/standard_v3_3/model.onnx": tuple(
        {"bytes": np.random.default_rng(rows).integers(0, 257, (rows, 2048), np.int32)} for rows in (1, 3)
    ),
    # Where there is text in a picture, which way up it is, what it says.
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": ({"x": noise(1, 3, 96, 160)}, {"x": noise(1, 3, 64, 64)}),
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": ({"x": noise(2, 3, 48, 192)},),
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": ({"x": noise(1, 3, 48, 160)}, {"x": noise(2, 3, 48, 80)}),
    # Whether somebody speaks.
    "silero_vad/data/silero_vad.onnx": ({"input": tone(1), "state": STATE, "sr": RATE},),
    "silero_vad/data/silero_vad_16k_op15.onnx": ({"input": tone(1), "state": STATE, "sr": RATE},),
    "silero_vad/data/silero_vad_16k_sequence.onnx": ({"input": tone(9), "h": CELL, "c": CELL},),
    "silero_vad/data/silero_vad_half.onnx": ({"input": tone(1), "state": STATE},),
    "silero_vad/data/silero_vad_op18_ifless.onnx": ({"input": tone(1), "state": STATE, "sr": RATE},),
    "silero_vad/data/silero_vad_openvino_16k.onnx": ({"input": tone(1), "state": STATE},),
}
"""Each file that the wheels ship, by its place in them, and the requests it is asked."""


def shipped_files() -> dict[str, Path]:
    """The .onnx files of the wheels, by their places in them."""
    return {
        str(file): Path(str(file.locate()))
        for name in DISTRIBUTIONS
        for file in distribution(name).files or ()
        if file.suffix == ".onnx"
    }


def model_name(file: str) -> str:
    """The name a file is served under."""
    return file.removesuffix(".onnx").replace("/", ".")


def wire(reference: Reference, arrays: Arrays) -> tuple[WireTensor, ...]:
    """A request's inputs."""
    return tuple(WireTensor.of(name, reference.inputs[name], array) for name, array in arrays.items())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireClient]:
    """Of a node of two workers that serves all the files."""
    folder = tmp_path_factory.mktemp("real")
    for file, path in shipped_files().items():
        (folder / "models" / model_name(file)).mkdir(parents=True)
        shutil.copy(path, folder / "models" / model_name(file) / "model.onnx")
    arguments = ("--models", str(folder / "models"), "--backend", "cpu", "--workers", "2")
    with (
        start_node(folder, *arguments, environment={"REACTANT_WORKER_THREADS": "1"}) as node,
        WireClient(node.wait_ready().grpc_target) as client,
    ):
        yield client


def test_every_shipped_model_answers_as_onnx_runtime_does(client: WireClient) -> None:
    """None is left out; each request is sent twice, so that both workers answer it."""
    files = shipped_files()
    assert files.keys() == INPUTS.keys()
    for file, requests in INPUTS.items():
        reference = Reference(files[file])
        for arrays in requests:
            tensors = wire(reference, arrays)
            expected = reference.run(tensors)
            assert [client.outputs(model_name(file), *tensors) for _ in range(2)] == [expected] * 2, file


def test_a_state_that_the_client_carries_survives_the_change_of_workers(client: WireClient) -> None:
    """A recurrent model fed its own state answers like one session, though its calls go to both workers in turn."""
    file = "silero_vad/data/silero_vad.onnx"
    reference = Reference(shipped_files()[file])
    state = WireTensor.of("state", "FP32", STATE)
    for frame in tone(6):
        audio, rate = wire(reference, {"input": frame.reshape(1, 576), "sr": RATE})
        expected = reference.run((audio, state, rate))
        assert client.outputs(model_name(file), audio, state, rate) == expected
        state = WireTensor("state", "FP32", expected[1].shape, expected[1].raw)
