"""Whether a model really treats its rows one by one: the last word on its batch axis, asked once at load.

Two random rows run together have to give what they give alone, within the tolerance of the output's datatype, and
every output has to have as many rows as went in. A model that normalizes over the batch, sums over it, or gives its
outputs in another order fails; so does one that draws random numbers. Integer inputs are zeros and ones, since they
often index something.

The sizes of the other symbolic dimensions are made up: several are tried, as convolutions need some extent and others
want little. A graph that refuses them all cannot be probed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reactant_node.dtypes import BY_NAME
from reactant_node.errors import Internal, InvalidArgument
from reactant_node.models.signature import BatchAxis, Dimension, ModelSignature, TensorSpec
from reactant_node.runtime.interface import Session
from reactant_node.tensors import NamedTensor

_ROWS = 2
"""Enough to see one row in another; every further one is a run more at every load."""

_EXTENTS = (4, 1, 32, 224)
"""Tried for symbolic dimensions: small, none to speak of, a small image or text, the usual image."""

_MAX_ELEMENTS = 1 << 24
"""Of one made-up input: 64 MB in FP32."""

_SEED = 20_250_101
"""The same rows at every start: a model does not coalesce today and not tomorrow."""

_TOLERANCES = {"FP64": 1e-6, "FP32": 1e-3, "FP16": 1e-2, "BF16": 5e-2}
"""Relative to the largest output value: other row counts take other kernels, which sum in another order. Other
datatypes have to be equal."""

Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The batch axis to serve with, and what an operator should be told, if anything."""

    batch_axis: BatchAxis
    warning: str = ""


def probe_batch_axis(session: Session, signature: ModelSignature, batch_axis: BatchAxis) -> ProbeResult:
    """Try the batch axis out.

    Args:
        session: of the model; run three times, or more where made-up sizes are refused.
        signature: as it is served.
        batch_axis: as declared or inferred.

    Returns:
        The axis as it was where the rows agree; off where they do not; where the probe cannot run, a declared one
        stands, with a warning, and an inferred one is off.
    """
    axis = batch_axis.axis
    if axis is None or batch_axis.max_rows == 1:
        return ProbeResult(batch_axis)
    together, refusal = _first_that_runs(session, signature, axis)
    if together is None:
        return _not_probed(batch_axis, refusal)
    inputs, outputs = together
    try:
        alone = [_run(session, signature, _row(inputs, axis, index)) for index in range(_ROWS)]
    except (InvalidArgument, Internal) as error:
        return _off(batch_axis, f"it runs {_ROWS} rows and not one: {error.message}")
    problem = next(_disagreements(signature, axis, outputs, alone), None)
    return ProbeResult(batch_axis) if problem is None else _off(batch_axis, problem)


def _not_probed(batch_axis: BatchAxis, refusal: str) -> ProbeResult:
    if batch_axis.declared:
        return ProbeResult(batch_axis, f"batching is on as declared, but could not be tried out: {refusal}")
    reason = f"{batch_axis.reason}, but it could not be tried out: {refusal}"
    return ProbeResult(replace(batch_axis, axis=None, reason=reason))


def _off(batch_axis: BatchAxis, problem: str) -> ProbeResult:
    result = replace(batch_axis, axis=None, reason=f"{batch_axis.reason}, but rows are not independent: {problem}")
    return ProbeResult(result, f"batching is declared, and off: {problem}" if batch_axis.declared else "")


def _first_that_runs(
    session: Session, signature: ModelSignature, axis: int
) -> tuple[tuple[Values, Values] | None, str]:
    """Inputs and outputs of the first made-up request that the model runs, or why it ran none."""
    refusal = f"an input would have more than {_MAX_ELEMENTS} elements"
    for extent in _EXTENTS:
        inputs = _made_up(signature, axis, extent)
        if inputs is None:
            continue
        try:
            return (inputs, _run(session, signature, inputs)), ""
        except (InvalidArgument, Internal) as error:
            refusal = error.message
        if not _has_free_extent(signature, axis):
            break
    return None, refusal


def _has_free_extent(signature: ModelSignature, axis: int) -> bool:
    return any(
        spec.shape is None or any(not isinstance(d, int) for i, d in enumerate(spec.shape) if i != axis)
        for spec in signature.inputs
    )


def _made_up(signature: ModelSignature, axis: int, extent: int) -> Values | None:
    random = np.random.default_rng(_SEED)
    values = {}
    for spec in signature.inputs:
        shape = _extents(spec.shape or (None,) * (axis + 1), axis, extent)
        if np.prod(shape, dtype=object) > _MAX_ELEMENTS:
            return None
        values[spec.name] = _draw(random, spec.datatype, shape)
    return values


def _extents(shape: Sequence[Dimension], axis: int, extent: int) -> tuple[int, ...]:
    return tuple(
        _ROWS if position == axis else dimension if isinstance(dimension, int) else extent
        for position, dimension in enumerate(shape)
    )


def _draw(random: np.random.Generator, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    numpy_type = BY_NAME[datatype].numpy
    if datatype == "BYTES":  # digits, so that a cast to numbers works
        return random.integers(0, 10, shape).astype(str).astype(object)
    if datatype == "BF16":
        return (random.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(numpy_type)
    if datatype in _TOLERANCES:
        return random.standard_normal(shape).astype(numpy_type)
    return random.integers(0, 2, shape).astype(numpy_type)


def _row(inputs: Values, axis: int, index: int) -> Values:
    return {name: np.take(data, [index], axis) for name, data in inputs.items()}


def _run(session: Session, signature: ModelSignature, values: Values) -> Values:
    tensors = [NamedTensor(spec.name, spec.datatype, values[spec.name]) for spec in signature.inputs]
    outputs = session.run(tensors, [spec.name for spec in signature.outputs])
    return {tensor.name: tensor.data for tensor in outputs}


def _disagreements(signature: ModelSignature, axis: int, together: Values, alone: Sequence[Values]) -> Iterator[str]:
    """What speaks against the axis, a clause per output."""
    for spec in signature.outputs:
        joint, parts = together[spec.name], [row[spec.name] for row in alone]
        what, shapes = f"output '{spec.name}'", f"{list(joint.shape)} for {_ROWS} rows, {list(parts[0].shape)} for one"
        if _rows(joint, axis) != _ROWS or any(_rows(part, axis) != 1 for part in parts):
            yield f"{what} does not follow the rows: {shapes}"
        elif any(_without(part, axis) != _without(joint, axis) for part in parts):
            yield f"{what} changes its shape with the rows: {shapes}"
        elif not _agree(spec, joint, np.concatenate(parts, axis)):
            yield f"{what} of {_ROWS} rows together differs from that of each alone"


def _rows(data: NDArray[Any], axis: int) -> int | None:
    return data.shape[axis] if data.ndim > axis else None


def _without(data: NDArray[Any], axis: int) -> tuple[int, ...]:
    return data.shape[:axis] + data.shape[axis + 1 :]


def _agree(spec: TensorSpec, joint: NDArray[Any], separate: NDArray[Any]) -> bool:
    tolerance = _TOLERANCES.get(spec.datatype)
    if tolerance is None:
        return bool(np.array_equal(joint, separate))
    widen: Callable[[NDArray[Any]], NDArray[Any]] = _from_bf16 if spec.datatype == "BF16" else _to_float64
    left, right = widen(joint), widen(separate)
    finite = np.abs(left[np.isfinite(left)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    return bool(np.allclose(left, right, rtol=0, atol=tolerance * scale, equal_nan=True))


def _to_float64(data: NDArray[Any]) -> NDArray[Any]:
    return data.astype(np.float64)


def _from_bf16(bits: NDArray[Any]) -> NDArray[Any]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
