"""What ONNX Runtime itself answers, in the test's own process: the truth that a node is held against."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reactant_node.config.schema import Backend
from reactant_node.runtime.ort import OrtRuntime
from tests.support.interop_wire import KSERVE_BY_ONNX, WireTensor

# ONNX Runtime settles once per process how its threads are made: as the runtime's own tests need it, and they may
# run in this process too, before or after.
OrtRuntime(Backend.CPU, 1)
import onnxruntime as ort  # noqa: E402 - after the line above

BFLOAT16 = 16
"""Of onnx.TensorProto.DataType."""

_TENSOR = re.compile(r"tensor\((\w+)\)")


class NotServed(Exception):
    """A model, or a case of it, that no KServe server can answer; the message is the kind of reason."""


class Reference:
    """A session on one thread.

    Raises:
        NotServed: ONNX Runtime refuses the model, or it takes or gives what the protocol has no name for.
    """

    def __init__(self, model: bytes | Path) -> None:
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        options.log_severity_level = 4
        source = model if isinstance(model, bytes) else str(model)
        try:
            self._session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except Exception as error:
            raise NotServed("ONNX Runtime refuses the model") from error
        self.inputs = {node.name: _datatype(node) for node in self._session.get_inputs()}
        self.outputs = {node.name: _datatype(node) for node in self._session.get_outputs()}

    def run(self, tensors: Sequence[WireTensor]) -> tuple[WireTensor, ...]:
        """All outputs.

        Raises:
            Exception: whatever ONNX Runtime raises.
        """
        # Without a numpy type for BF16, such tensors go in and out as ONNX Runtime's own values.
        if "BF16" in (*self.inputs.values(), *self.outputs.values()):
            feed = {tensor.name: _to_value(tensor) for tensor in tensors}
            arrays = [_from_value(value) for value in self._session.run_with_ort_values(list(self.outputs), feed)]
        else:
            feed = {tensor.name: tensor.array for tensor in tensors}
            arrays = self._session.run(list(self.outputs), feed)
        pairs = zip(self.outputs.items(), arrays, strict=True)
        return tuple(WireTensor.of(name, datatype, array) for (name, datatype), array in pairs)


def _datatype(node: Any) -> str:
    match = _TENSOR.fullmatch(node.type)
    if match is None:
        raise NotServed(f"{node.type.partition('(')[0]}(...) goes in or out")
    if match.group(1) not in KSERVE_BY_ONNX:
        raise NotServed("a datatype goes in or out that KServe lacks")
    return KSERVE_BY_ONNX[match.group(1)]


def _to_value(tensor: WireTensor) -> Any:
    if tensor.datatype == "BF16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(tensor.array, BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(tensor.array)


def _from_value(value: Any) -> NDArray[Any]:
    if value.data_type() != "tensor(bfloat16)":
        array: NDArray[Any] = value.numpy()
        return array
    bits = np.empty(value.shape(), np.uint16)
    ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits
