"""ONNX Runtime behind the runtime interface: every datatype, every refusal, whose fault a failure is."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from reactant_node.config.schema import Backend
from reactant_node.dtypes import BY_NAME, TABLE
from reactant_node.errors import Internal, InvalidArgument, ModelLoadError, RuntimeUnavailable
from reactant_node.models.signature import ModelSignature, TensorSpec
from reactant_node.runtime.ort import OrtRuntime, OrtSession, describe_runtime
from reactant_node.tensors import NamedTensor
from tests.support import models

LIMIT_SECONDS = 60.0
HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()

SPECIAL: dict[str, list[Any]] = {
    "FP16": [np.nan, np.inf, -np.inf, 6e-8, -0.0, 65504],
    "FP32": [np.nan, np.inf, -np.inf, 1e-45, -0.0, 3.4e38],
    "FP64": [np.nan, np.inf, -np.inf, 5e-324, -0.0, 1.7e308],
    "BF16": [0x3F80, 0x4048, 0x7F80, 0xFF80, 0x8000, 0x7F7F],
    "BOOL": [True, False, False, True, True, True],
    "BYTES": ["", "a", "a\0b", "\0", "é😀", "x" * 300_000],
}


def values_of(datatype: str) -> NDArray[Any]:
    """Six values at the edges of a datatype, [2,3]."""
    dtype = BY_NAME[datatype].numpy
    if datatype in SPECIAL:
        return np.array(SPECIAL[datatype]).astype(dtype).reshape(2, 3)
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.max, 0, 1, 2, 3], dtype).reshape(2, 3)


def load(runtime: OrtRuntime, folder: Path, model: onnx.ModelProto | bytes) -> OrtSession:
    """Write a model and load it."""
    return runtime.load(models.write_model(folder, model))


def run(session: OrtSession, *outputs: str, **inputs: NDArray[Any]) -> list[NamedTensor]:
    """Run with the datatypes of the signature; all outputs unless named."""
    datatypes = {spec.name: spec.datatype for spec in session.signature.inputs}
    tensors = [NamedTensor(name, datatypes[name], data) for name, data in inputs.items()]
    return session.run(tensors, outputs or [spec.name for spec in session.signature.outputs])


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Equal shape, type and bytes; NaN and -0.0 included."""
    if left.dtype == object:
        return left.shape == right.shape and left.tolist() == right.tolist()
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()


@pytest.mark.parametrize("datatype", [row.name for row in TABLE])
def test_every_datatype_comes_back_bit_for_bit(runtime: OrtRuntime, tmp_path: Path, datatype: str) -> None:
    """Whatever the array's memory looks like: contiguous or not, read-only, empty in either axis."""
    session = load(runtime, tmp_path, models.ident(datatype))
    values = values_of(datatype)
    read_only = values.copy()
    read_only.flags.writeable = False
    for data in (values, values.T, values[::-1, ::2], read_only, values[:0], values[:, :0], values[:1]):
        (output,) = run(session, x=data)
        assert (output.name, output.datatype) == ("y", datatype)
        assert same_bits(output.data, data)


@pytest.mark.parametrize("datatype", [row.name for row in TABLE])
def test_scalars_come_back_with_an_empty_shape(runtime: OrtRuntime, tmp_path: Path, datatype: str) -> None:
    """Declared, sent and answered without extents."""
    session = load(runtime, tmp_path, models.ident(datatype, ()))
    assert session.signature.inputs == (TensorSpec("x", datatype, ()),)
    data = values_of(datatype)[:1, :1].reshape(())
    (output,) = run(session, x=data)
    assert same_bits(output.data, data)


def test_an_output_is_the_callers_own(runtime: OrtRuntime, tmp_path: Path) -> None:
    """It does not change with the input it was computed from."""
    session = load(runtime, tmp_path, models.ident("FP32"))
    data = np.ones((2, 2), np.float32)
    (output,) = run(session, x=data)
    data[:] = 5
    assert output.data.tolist() == [[1, 1], [1, 1]]


def test_outputs_come_in_the_order_asked_for(runtime: OrtRuntime, tmp_path: Path) -> None:
    """Any subset, any order, each with its own datatype."""
    data = np.ones((1, 4), np.float32)
    session = load(runtime, tmp_path / "two", models.two_out())
    assert [(tensor.name, tensor.data[0, 0]) for tensor in run(session, "B", "A", x=data)] == [("B", 2), ("A", 1)]
    assert [tensor.name for tensor in run(session, "B", x=data)] == ["B"]
    session = load(runtime, tmp_path / "half", models.half_and_single())
    assert [t.datatype for t in run(session, x=np.ones((1, 1), np.float16))] == ["FP16", "FP32"]


def idents(inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """`in<datatype>` to `out<datatype>`, or to nothing, for several datatypes."""
    nodes = [helper.make_node("Identity", [f"in{kind}"], [f"out{kind}"]) for kind in outputs if kind != "BF16"]
    nodes.append(helper.make_node("Cast", ["inBF16"], ["f"], to=TensorProto.FLOAT))
    if "BF16" in outputs:
        nodes.append(helper.make_node("Cast", ["f"], ["outBF16"], to=TensorProto.BFLOAT16))
    return models.build(
        nodes,
        [models.value(f"in{kind}", kind, (None, None)) for kind in inputs],
        [models.value(f"out{kind}", kind, (None, None)) for kind in outputs],
    )


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("BF16", "BOOL", "FP16", "INT64"), ("BF16", "BOOL", "FP16", "INT64")),
        (("BF16", "BYTES", "BOOL", "FP16"), ("BYTES", "BOOL", "FP16")),
    ],
)
def test_bf16_goes_together_with_other_datatypes(
    runtime: OrtRuntime, tmp_path: Path, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """One BF16 tensor changes the way the tensors of its model are passed."""
    session = load(runtime, tmp_path, idents(inputs, outputs))
    values = {f"in{kind}": values_of(kind).T for kind in inputs}
    for tensor in run(session, **values):
        assert same_bits(tensor.data, values[tensor.name.replace("out", "in")])


def test_bf16_out_and_strings_in_are_refused_at_load(runtime: OrtRuntime, tmp_path: Path) -> None:
    """ONNX Runtime has no way for the two together; that is no surprise for the first request."""
    model = idents(("BF16", "BYTES"), ("BF16", "BYTES"))
    with pytest.raises(ModelLoadError, match="input 'inBYTES' is BYTES and output 'outBF16' BF16"):
        load(runtime, tmp_path, model)


def test_the_signature_is_the_graphs(runtime: OrtRuntime, tmp_path: Path) -> None:
    """Fixed, symbolic and unnamed dimensions, and no shape at all, are told apart."""
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    model = models.build(
        [node],
        [models.value("a", "FP32", ("n", None, 3)), models.value("b", "FP32", None)],
        [models.value("y", "FP32", ("m", None, 3))],
    )
    assert load(runtime, tmp_path, model).signature == ModelSignature(
        (TensorSpec("a", "FP32", ("n", None, 3)), TensorSpec("b", "FP32", None)),
        (TensorSpec("y", "FP32", ("m", None, 3)),),
    )


@pytest.mark.parametrize("ir_version", [3, 8, 10])
def test_initializers_that_are_also_inputs_are_not_inputs(runtime: OrtRuntime, tmp_path: Path, ir_version: int) -> None:
    """Old exporters list the weights as inputs; nobody sends them."""
    model = models.build(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [models.value("x", "FP32", ("n", 4)), models.value("w", "FP32", (4,))],
        [models.value("y", "FP32", ("n", 4))],
        [models.constant("w", np.ones(4, np.float32))],
        ir_version=ir_version,
    )
    session = load(runtime, tmp_path, model)
    assert [spec.name for spec in session.signature.inputs] == ["x"]
    assert run(session, x=np.ones((1, 4), np.float32))[0].data.tolist() == [[2, 2, 2, 2]]


def sequence_output() -> onnx.ModelProto:
    """Beside a tensor, as classifiers exported from scikit-learn have it."""
    return models.build(
        [helper.make_node("Identity", ["x"], ["label"]), helper.make_node("SequenceConstruct", ["x"], ["scores"])],
        [models.value("x", "FP32", (None,))],
        [
            models.value("label", "FP32", (None,)),
            helper.make_tensor_sequence_value_info("scores", TensorProto.FLOAT, None),
        ],
    )


def odd_input(element_type: int) -> onnx.ModelProto:
    """An input of a type without a KServe name, cast to FP32."""
    return models.build(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
        [helper.make_tensor_value_info("x", element_type, [None])],
        [models.value("y", "FP32", (None,))],
    )


def optional_output() -> onnx.ModelProto:
    """An optional tensor."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [None]))
    return models.build(
        [helper.make_node("Optional", ["x"], ["y"])],
        [models.value("x", "FP32", (None,))],
        [helper.make_value_info("y", kind)],
    )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (sequence_output(), r"output 'scores' is seq\(tensor\(float\)\); only tensors are served"),
        (optional_output(), r"output 'y' is optional\(tensor\(float\)\); only tensors are served"),
        (odd_input(TensorProto.INT4), r"input 'x' is tensor\(int4\); only tensors are served, of bool, uint8"),
        (odd_input(TensorProto.FLOAT8E4M3FN), r"input 'x' is tensor\(float8e4m3fn\)"),
        (b"", "No graph was found in the protobuf"),
        (b"this is text", "Protobuf parsing failed"),
        (models.add1().SerializeToString()[:-9], "Protobuf parsing failed"),
        (
            models.build(
                [helper.make_node("NoSuchOp", ["x"], ["y"])],
                [models.value("x", "FP32", (1,))],
                [models.value("y", "FP32", (1,))],
            ),
            "No Op registered for NoSuchOp",
        ),
    ],
    ids=["sequence", "optional", "int4", "float8", "empty", "text", "cut", "operator"],
)
def test_a_model_that_cannot_be_served_is_refused_at_load(
    runtime: OrtRuntime, tmp_path: Path, model: onnx.ModelProto | bytes, reason: str
) -> None:
    """One line that names the tensor and type, or what is wrong with the file; no path of this machine."""
    with pytest.raises(ModelLoadError, match=reason) as raised:
        load(runtime, tmp_path, model)
    assert "\n" not in raised.value.message
    assert str(tmp_path) not in raised.value.message


@pytest.mark.parametrize("location", ["weights.bin", "sub/weights.bin"])
def test_external_data_is_found_beside_the_model(
    runtime: OrtRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    """In the folder or below it, from whatever directory the server was started in, through links too."""
    path = models.write_model(tmp_path / "real", models.external(location))
    data = path.parent / location
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(models.external_data())
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir("/")
    for folder in ("real", "link"):
        session = runtime.load(tmp_path / folder / "model.onnx")
        assert run(session, x=np.zeros((1, 16), np.float32))[0].data.tolist() == [list(range(16))]


@pytest.mark.parametrize("location", ["../outside.bin", "sub/../../outside.bin", "{root}/outside.bin", "link.bin"])
def test_external_data_never_leaves_the_models_folder(runtime: OrtRuntime, tmp_path: Path, location: str) -> None:
    """Neither by dots, nor by an absolute path, nor by a link."""
    (tmp_path / "outside.bin").write_bytes(models.external_data())
    path = models.write_model(tmp_path / "m", models.external(location.format(root=tmp_path)))
    (path.parent / "link.bin").symlink_to("../outside.bin")
    with pytest.raises(ModelLoadError, match=r"initializer: w.*(leaves the model folder|Absolute path not allowed)"):
        runtime.load(path)


@pytest.mark.parametrize(
    ("kept_bytes", "reason"),
    [(None, r"path does not exist: \"weights.bin\""), (63, "w offset: 0 size to read: 64 given file_length: 63")],
)
def test_external_data_that_is_missing_or_short_is_named(
    runtime: OrtRuntime, tmp_path: Path, kept_bytes: int | None, reason: str
) -> None:
    """The initializer, the file and what is wrong with it."""
    path = models.write_model(tmp_path, models.external("weights.bin"))
    if kept_bytes is not None:
        (tmp_path / "weights.bin").write_bytes(models.external_data()[:kept_bytes])
    with pytest.raises(ModelLoadError, match=reason):
        runtime.load(path)


def test_what_the_runtime_blames_on_the_input_is_invalid_argument(runtime: OrtRuntime, tmp_path: Path) -> None:
    """An index out of range, and a shape that does not fit, even where ONNX Runtime's class says FAIL."""
    session = load(runtime, tmp_path / "abort_if", models.abort_if())
    with pytest.raises(InvalidArgument, match=r"^Gather node: indices element out of data bounds, idx=7"):
        run(session, x=np.array([0, 7]))
    assert run(session, x=np.array([3, -4]))[0].data.tolist() == [13, 10]
    session = load(runtime, tmp_path / "reshape", models.reshape())
    with pytest.raises(InvalidArgument, match=r"^Reshape node: .*cannot be reshaped"):
        run(session, x=np.ones((2, 3), np.float32), shape=np.array([4, 4]))


def test_any_other_failure_of_a_run_is_internal(runtime: OrtRuntime, tmp_path: Path) -> None:
    """Memory that cannot be had is nobody's argument."""
    session = load(runtime, tmp_path, models.expand())
    with pytest.raises(Internal, match=r"^ConstantOfShape node: Failed to allocate memory") as raised:
        run(session, size=np.array([1 << 45]))
    assert "\n" not in raised.value.message
    assert run(session, size=np.array([2]))[0].data.tolist() == [0, 0]


def test_text_that_cannot_be_utf_8_is_invalid_argument(runtime: OrtRuntime, tmp_path: Path) -> None:
    """A lone surrogate never reaches the model."""
    session = load(runtime, tmp_path, models.ident("BYTES", ("n",)))
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        run(session, x=np.array(["\ud800"], object))


def test_failing_runs_write_nothing(runtime: OrtRuntime, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A client cannot fill the log by asking for what fails."""
    session = load(runtime, tmp_path, models.abort_if())
    for _ in range(3):
        with pytest.raises(InvalidArgument):
            run(session, x=np.array([7]))
    with pytest.raises(ModelLoadError):
        load(runtime, tmp_path, b"text")
    assert capfd.readouterr() == ("", "")


def test_other_threads_run_while_a_session_does(runtime: OrtRuntime, tmp_path: Path) -> None:
    """The interpreter lock is free during a run: heartbeats go on."""
    session = load(runtime, tmp_path, models.slow(iterations=200_000))
    done = threading.Event()

    def work() -> None:
        run(session, x=np.zeros(1, np.float32))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    ticks = 0
    while not done.wait(0.001):
        ticks += 1
    thread.join(LIMIT_SECONDS)
    assert ticks > 10


def test_a_session_says_what_it_is_and_that_it_is_closed(runtime: OrtRuntime, tmp_path: Path) -> None:
    """In its repr; a closed one does not run."""
    session = load(runtime, tmp_path, models.add1())
    assert (session.provider, repr(session)) == (
        "CPUExecutionProvider",
        "<OrtSession CPUExecutionProvider, 1 in, 1 out>",
    )
    session.close()
    assert repr(session) == "<OrtSession closed, 1 in, 1 out>"
    with pytest.raises(Internal, match="closed"):
        run(session, x=np.ones((1, 4), np.float32))


def test_the_runtime_describes_itself(runtime: OrtRuntime) -> None:
    """What is in use, and what is installed."""
    assert (runtime.platform, repr(runtime)) == ("cpu", "<OrtRuntime cpu, 1 threads>")
    assert describe_runtime().version == onnxruntime.__version__
    assert "CPUExecutionProvider" in describe_runtime().providers


@pytest.mark.skipif(HAS_CUDA, reason="this ONNX Runtime has a CUDA provider")
def test_cuda_without_its_provider_is_refused_and_falls_back_only_when_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Never silently: an error that names what is missing, or a warning and `cpu` as the platform."""
    with pytest.raises(RuntimeUnavailable, match="put onnxruntime-gpu in place of onnxruntime"):
        OrtRuntime(Backend.CUDA, 1)
    assert OrtRuntime(Backend.CUDA, 1, allow_cpu_fallback=True).platform == "cpu"
    assert "the CUDA provider cannot be used, the CPU is" in caplog.text


LIMITED = """
import os, resource
from reactant_node.config.schema import Backend
from reactant_node.errors import RuntimeUnavailable
from reactant_node.runtime.ort import OrtRuntime
if os.geteuid() == 0:  # the limit does not hold for root
    os.setuid(2**31 - 77)
resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
try:
    OrtRuntime(Backend.CPU, 64)
except RuntimeUnavailable as error:
    print(error)
"""


def test_threads_that_cannot_be_started_are_an_error_and_no_hang() -> None:
    """ONNX Runtime waits for ever for a pool that is cut short by a process limit; this is found out before."""
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED], check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert "of 64 compute threads can be started: raise the process limit" in ended.stdout
    assert "REACTANT_WORKER_THREADS" in ended.stdout
