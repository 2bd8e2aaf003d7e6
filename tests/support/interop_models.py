"""The repository that the interoperability tests serve: small models, the odd ones among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support import models
from tests.support.interop_wire import KSERVE_BY_ONNX
from tests.support.models import build, constant, value

SLOW_ITERATIONS = 200_000
"""Of `slow`: some tenths of a second on one core."""

REFUSED = {
    "complex_out": r"complex64",
    "sequence_out": r"'bag'.*seq\(tensor\(float\)\)",
    "optional_out": r"'maybe'.*optional\(tensor\(float\)\)",
    "fixed1_batch8": r"config.pbtxt: a batch axis is declared.*'x' at 1",
    "fixed4_batch8": r"config.pbtxt: a batch axis is declared.*'x' at 4",
    "add1_batch_twice": r"config.pbtxt: input 'x' is declared",
    "broken": r"\S",
}
"""Models that cannot be served, and what the reason has to speak of."""


def write_repository(folder: Path) -> Path:
    """Write all models; returns the folder."""
    for datatype in KSERVE_BY_ONNX.values():
        models.write_ident(folder / f"ident_{datatype}", datatype)
        models.write_model(folder / f"scalar_{datatype}", models.ident(datatype, ()))
    for name, model in _models().items():
        models.write_model(folder / name, model)
    _write_configured(folder / "add1_batch8", models.add1(), 8, "[4]")
    _write_configured(folder / "add1_batch0", models.add1(), 0, "[-1, 4]")
    _write_configured(folder / "add1_batch_twice", models.add1(), 8, "[-1, 4]")
    _write_configured(folder / "fixed1_batch8", models.fixed(1), 8, "[3]")
    _write_configured(folder / "fixed4_batch8", models.fixed(4), 8, "[3]")
    return folder


def _models() -> dict[str, onnx.ModelProto | bytes]:
    return {
        "simple": models.simple(),
        "add1": models.add1(),
        "str_ident": models.ident("BYTES", ("n",)),
        "flat": models.flat(),
        "fixed1": models.fixed(1),
        "fixed4": models.fixed(4),
        "sum4": _sum_of_rows(),
        "two_out": models.two_out(),
        "two_widths": _two_widths(),
        "half_and_single": models.half_and_single(),
        "nonzero": models.nonzero(),
        "slow": models.slow(SLOW_ITERATIONS),
        "expand": models.expand(),
        "abort_if": models.abort_if(),
        "reshape": models.reshape(),
        "norm": _norm(),
        "weights_listed_ir3": _weights_listed(3),
        "weights_listed_ir8": _weights_listed(8),
        "complex_out": _complex_out(),
        "sequence_out": _sequence_out(),
        "optional_out": _optional_out(),
        "broken": b"this is no protobuf",
    }


def _write_configured(folder: Path, model: onnx.ModelProto, max_batch_size: int, dims: str) -> None:
    """Triton's layout, with a config.pbtxt that says how x and y are."""
    models.write_model(folder / "1", model)
    tensors = "\n".join(
        f'{kind} [{{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}]'
        for kind, name in (("input", "x"), ("output", "y"))
    )
    (folder / "config.pbtxt").write_text(f"max_batch_size: {max_batch_size}\n{tensors}\n")


def _sum_of_rows() -> onnx.ModelProto:
    """FP32 [4,3] to its sum over the rows, [3]."""
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    return build([node], [value("x", "FP32", (4, 3))], [value("y", "FP32", (3,))], [constant("axes", np.array([0]))])


def _two_widths() -> onnx.ModelProto:
    """Left and right, FP32 [n,w] and [n,v], side by side: y [n,w+v]."""
    node = helper.make_node("Concat", ["left", "right"], ["y"], axis=1)
    inputs = [value("left", "FP32", ("n", "w")), value("right", "FP32", ("n", "v"))]
    return build([node], inputs, [value("y", "FP32", ("n", None))])


def _norm() -> onnx.ModelProto:
    """FP32 [n,w] to the mean of each row, whose last bits depend on the order of the additions."""
    node = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)
    return build(
        [node], [value("x", "FP32", ("n", "w"))], [value("y", "FP32", ("n",))], [constant("axes", np.array([1]))]
    )


def _weights_listed(ir_version: int) -> onnx.ModelProto:
    """Y = x + w, FP32 [n,4], where w (1, 2, 3, 4) is an initializer that the graph lists among its inputs, first."""
    node = helper.make_node("Add", ["x", "w"], ["y"])
    inputs = [value("w", "FP32", (4,)), value("x", "FP32", ("n", 4))]
    weights = constant("w", np.arange(1, 5, dtype=np.float32))
    return build([node], inputs, [value("y", "FP32", ("n", 4))], [weights], ir_version=ir_version)


def _complex_out() -> onnx.ModelProto:
    """A complex output that no kernel is needed for: it is an input."""
    node = helper.make_node("Identity", ["x"], ["z"])
    y = helper.make_tensor_value_info("y", TensorProto.COMPLEX64, ("n",))
    return build([node], [value("x", "FP32", ("n",)), y], [value("z", "FP32", ("n",)), y])


def _sequence_out() -> onnx.ModelProto:
    """A tensor output beside a sequence of tensors, as classifiers exported from scikit-learn have."""
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("SequenceConstruct", ["x"], ["bag"])]
    bag = helper.make_tensor_sequence_value_info("bag", TensorProto.FLOAT, None)
    return build(nodes, [value("x", "FP32", ("n",))], [value("y", "FP32", ("n",)), bag])


def _optional_out() -> onnx.ModelProto:
    """A tensor output beside an optional one."""
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Optional", ["x"], ["maybe"])]
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ("n",))
    maybe = helper.make_value_info("maybe", helper.make_optional_type_proto(tensor))
    return build(nodes, [value("x", "FP32", ("n",))], [value("y", "FP32", ("n",)), maybe])
