"""Small ONNX models, built in place. `write_<model>(folder)` makes the folder and its `model.onnx`.

The builders return the model, so that a test can change it before writing. Symbolic first dimensions are named `n`
where the model treats rows one by one, or claims to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from reactant_node.dtypes import BY_NAME

Shape = Sequence[int | str | None] | None

OPSET = 21
IR_VERSION = 10


def value(name: str, datatype: str, shape: Shape) -> onnx.ValueInfoProto:
    """A graph input or output, by KServe's datatype; shape None declares no shape at all."""
    return helper.make_tensor_value_info(name, BY_NAME[datatype].onnx_enum, shape)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    ir_version: int = IR_VERSION,
) -> onnx.ModelProto:
    """A model out of its parts. Not checked: some tests want a broken one."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", OPSET if ir_version >= IR_VERSION else 11)]
    return helper.make_model(graph, ir_version=ir_version, opset_imports=opsets)


def constant(name: str, array: NDArray[Any]) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(array, name)


def write_model(folder: Path, model: onnx.ModelProto | bytes) -> Path:
    """`folder/model.onnx`; makes the folder; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def ident(datatype: str = "FP32", shape: Shape = ("n", "w")) -> onnx.ModelProto:
    """Computes y = x, any datatype. BF16 goes through FP32 and back, since few kernels take it."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    if datatype == "BF16":
        nodes = [
            helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["f"], ["y"], to=TensorProto.BFLOAT16),
        ]
    return build(nodes, [value("x", datatype, shape)], [value("y", datatype, shape)])


def add1() -> onnx.ModelProto:
    """Computes y = x + 1, FP32 [n,4]."""
    node = helper.make_node("Add", ["x", "one"], ["y"])
    one = constant("one", np.ones(1, np.float32))
    return build([node], [value("x", "FP32", ("n", 4))], [value("y", "FP32", ("n", 4))], [one])


def flat() -> onnx.ModelProto:
    """Computes y = sum(x), FP32 [n] to a scalar: `n` counts no rows."""
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    return build([node], [value("x", "FP32", ("n",))], [value("y", "FP32", ())])


def fixed(rows: int = 1) -> onnx.ModelProto:
    """Computes y = 2x, FP32 [rows,3], no symbolic dimension."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return build([node], [value("x", "FP32", (rows, 3))], [value("y", "FP32", (rows, 3))])


def two_out() -> onnx.ModelProto:
    """A = x, B = 2x, FP32 [n,4]."""
    nodes = [helper.make_node("Identity", ["x"], ["A"]), helper.make_node("Add", ["x", "x"], ["B"])]
    return build(nodes, [value("x", "FP32", ("n", 4))], [value("A", "FP32", ("n", 4)), value("B", "FP32", ("n", 4))])


def half_and_single() -> onnx.ModelProto:
    """FP16 x; outputs `half` = x and `single` = x as FP32, [n,w]."""
    nodes = [
        helper.make_node("Identity", ["x"], ["half"]),
        helper.make_node("Cast", ["x"], ["single"], to=TensorProto.FLOAT),
    ]
    outputs = [value("half", "FP16", ("n", "w")), value("single", "FP32", ("n", "w"))]
    return build(nodes, [value("x", "FP16", ("n", "w"))], outputs)


def nonzero() -> onnx.ModelProto:
    """Computes y = indices of what is not zero, INT64 [2,k]: the output's length depends on the data."""
    node = helper.make_node("NonZero", ["x"], ["y"])
    return build([node], [value("x", "FP32", ("n", "w"))], [value("y", "INT64", (2, None))])


def slow(iterations: int = 2_000_000) -> onnx.ModelProto:
    """Computes y = x after a loop that keeps one core busy for about a second per million iterations. FP32 [1]."""
    condition = helper.make_tensor_value_info("keep_in", TensorProto.BOOL, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["keep_in"], ["keep"]), helper.make_node("Add", ["v_in", "zero"], ["v"])],
        "body",
        [value("i", "INT64", ()), condition, value("v_in", "FP32", (1,))],
        [helper.make_tensor_value_info("keep", TensorProto.BOOL, []), value("v", "FP32", (1,))],
    )
    constants = [
        constant("count", np.array(iterations)),
        constant("true", np.array([True]).reshape(())),
        constant("zero", np.zeros(1, np.float32)),
    ]
    node = helper.make_node("Loop", ["count", "true", "x"], ["y"], body=body)
    return build([node], [value("x", "FP32", (1,))], [value("y", "FP32", (1,))], constants)


def expand() -> onnx.ModelProto:
    """Computes y = zeros of FP32 [size]: the output's size is an input's value (INT64 [1])."""
    node = helper.make_node("ConstantOfShape", ["size"], ["y"])
    return build([node], [value("size", "INT64", (1,))], [value("y", "FP32", ("k",))])


def abort_if() -> onnx.ModelProto:
    """Computes y = table[x], INT64 [n]: ONNX Runtime refuses x outside -4..3."""
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    table = constant("table", np.arange(10, 14))
    return build([node], [value("x", "INT64", ("n",))], [value("y", "INT64", ("n",))], [table])


def simple() -> onnx.ModelProto:
    """Triton's example: INPUT0, INPUT1 INT32 [n,16]; OUTPUT0 is their sum, OUTPUT1 their difference."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    first, second, total, difference = (value(name, "INT32", ("n", 16)) for name in names)
    return build(nodes, [first, second], [total, difference])


def matmul(size: int = 8) -> onnx.ModelProto:
    """Computes y = x W, FP32 [n,size], W random but fixed."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = constant("w", np.random.default_rng(0).standard_normal((size, size), np.float32))
    return build([node], [value("x", "FP32", ("n", size))], [value("y", "FP32", ("n", size))], [weights])


def batch_norm_like() -> onnx.ModelProto:
    """Computes y = x - mean over the rows, FP32 [n,4]: looks like a batch model, and rows change each other."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    axes = constant("axes", np.array([0]))
    return build(nodes, [value("x", "FP32", ("n", 4))], [value("y", "FP32", ("n", 4))], [axes])


def reshape() -> onnx.ModelProto:
    """Computes y = x reshaped to `shape`: FP32 [a,b], INT64 [r]; y declares no shape."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    return build([node], [value("x", "FP32", ("a", "b")), value("shape", "INT64", ("r",))], [value("y", "FP32", None)])


def external(location: str, size: int = 16) -> onnx.ModelProto:
    """Computes y = x + w, FP32 [n,size], with w in an external data file: `external_data(size)` at `location`."""
    weights = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", location), ("length", str(4 * size))):
        entry = weights.external_data.add()
        entry.key, entry.value = key, text
    node = helper.make_node("Add", ["x", "w"], ["y"])
    return build([node], [value("x", "FP32", ("n", size))], [value("y", "FP32", ("n", size))], [weights])


def external_data(size: int = 16) -> bytes:
    """0, 1, 2, ... in FP32."""
    return np.arange(size, dtype="<f4").tobytes()


def write_ident(folder: Path, datatype: str = "FP32") -> Path:
    """`ident_<datatype>`, [n,w]."""
    return write_model(folder, ident(datatype))


def write_str_ident(folder: Path) -> Path:
    """String identity, [n]."""
    return write_model(folder, ident("BYTES", ("n",)))


def write_add1(folder: Path) -> Path:
    """See `add1`."""
    return write_model(folder, add1())


def write_flat(folder: Path) -> Path:
    """See `flat`."""
    return write_model(folder, flat())


def write_fixed1(folder: Path) -> Path:
    """See `fixed`."""
    return write_model(folder, fixed(1))


def write_two_out(folder: Path) -> Path:
    """See `two_out`."""
    return write_model(folder, two_out())


def write_nonzero(folder: Path) -> Path:
    """See `nonzero`."""
    return write_model(folder, nonzero())


def write_slow(folder: Path, iterations: int = 2_000_000) -> Path:
    """See `slow`."""
    return write_model(folder, slow(iterations))


def write_expand(folder: Path) -> Path:
    """See `expand`."""
    return write_model(folder, expand())


def write_abort_if(folder: Path) -> Path:
    """See `abort_if`."""
    return write_model(folder, abort_if())


def write_simple(folder: Path) -> Path:
    """See `simple`."""
    return write_model(folder, simple())


def write_matmul(folder: Path, size: int = 8) -> Path:
    """See `matmul`."""
    return write_model(folder, matmul(size))


def write_batch_norm_like(folder: Path) -> Path:
    """See `batch_norm_like`."""
    return write_model(folder, batch_norm_like())


def infer_slow(client: Any, model: str = "slow") -> NDArray[np.float32]:
    """Run `slow` through a tritonclient gRPC client."""
    from tritonclient import grpc as triton  # noqa: PLC0415 - only callers that have a client need the library

    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([3], np.float32))
    output: NDArray[np.float32] = client.infer(model, [tensor]).as_numpy("y")
    return output
