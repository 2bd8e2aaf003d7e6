"""One table of element types: KServe's name, ONNX's, numpy's, and the size on the wire.

numpy is named by strings, so that the parent process, which never imports numpy, may read the table too.
BF16 travels through numpy as uint16, its bit pattern, since numpy has no bfloat16. BYTES elements are variable:
`size` is 0 and each element carries a 4-byte little-endian length on the wire; in memory they are `str`
objects, as ONNX strings are UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataType:
    """One row.

    Attributes:
        name: KServe's datatype, e.g. `FP32`.
        onnx: ONNX Runtime's element type as its `NodeArg.type` writes it, e.g. `float` in `tensor(float)`.
        onnx_enum: the number of `onnx.TensorProto.DataType`.
        numpy: numpy's dtype string, little-endian where it matters, `object` for BYTES.
        size: bytes an element takes on the wire, 0 where it varies.
        contents: the field of KServe's InferTensorContents that carries it typed, or None: raw only.
    """

    name: str
    onnx: str
    onnx_enum: int
    numpy: str
    size: int
    contents: str | None


TABLE: tuple[DataType, ...] = (
    DataType("BOOL", "bool", 9, "?", 1, "bool_contents"),
    DataType("UINT8", "uint8", 2, "<u1", 1, "uint_contents"),
    DataType("UINT16", "uint16", 4, "<u2", 2, "uint_contents"),
    DataType("UINT32", "uint32", 12, "<u4", 4, "uint_contents"),
    DataType("UINT64", "uint64", 13, "<u8", 8, "uint64_contents"),
    DataType("INT8", "int8", 3, "<i1", 1, "int_contents"),
    DataType("INT16", "int16", 5, "<i2", 2, "int_contents"),
    DataType("INT32", "int32", 6, "<i4", 4, "int_contents"),
    DataType("INT64", "int64", 7, "<i8", 8, "int64_contents"),
    DataType("FP16", "float16", 10, "<f2", 2, None),
    DataType("BF16", "bfloat16", 16, "<u2", 2, None),
    DataType("FP32", "float", 1, "<f4", 4, "fp32_contents"),
    DataType("FP64", "double", 11, "<f8", 8, "fp64_contents"),
    DataType("BYTES", "string", 8, "object", 0, "bytes_contents"),
)

BY_NAME: dict[str, DataType] = {row.name: row for row in TABLE}
BY_ONNX: dict[str, DataType] = {row.onnx: row for row in TABLE}
