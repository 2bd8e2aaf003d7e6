"""A model's inputs and outputs: names, datatypes, shapes and where the batch axis is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reactant_node.errors import InvalidArgument

Dimension = int | str | None
"""A fixed extent, the name of a symbolic one, or None: any extent, unnamed."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output.

    Attributes:
        name: as the graph names it.
        datatype: KServe's name, a key of `dtypes.BY_NAME`.
        shape: row-major; `()` for a scalar; None where the graph does not declare even the rank.
    """

    name: str
    datatype: str
    shape: tuple[Dimension, ...] | None


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """What a model takes and gives, in the graph's order. Initializers that are also inputs are left out."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """Where a model's rows are, so that requests may be joined along it.

    Attributes:
        axis: 0-based index into the shape of every input and every output; None: requests run one by one.
        reason: why it is there, or why there is none, for people.
        declared: a file beside the model says so; else it was inferred from the graph.
        max_rows: most rows one request may have; None: no limit.
    """

    axis: int | None
    reason: str
    declared: bool = False
    max_rows: int | None = None


class TensorHeader(Protocol):
    """What a request check needs to know of a tensor; `NamedTensor` is one."""

    @property
    def name(self) -> str:
        """As the client wrote it."""
        ...

    @property
    def datatype(self) -> str:
        """KServe's name."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, row-major."""
        ...


def infer_batch_axis(signature: ModelSignature) -> BatchAxis:
    """The axis a graph shows without any file beside it: axis 0, symbolic, under one name in every input and output.

    Unnamed dimensions are not taken: nothing says that they are the same thing.
    """
    first: tuple[str, str] | None = None
    if not signature.inputs:
        return BatchAxis(None, "the graph has no inputs")
    for what, spec in tensors_of(signature):
        dimension, problem = _leading_symbol(what, spec)
        if dimension is None:
            return BatchAxis(None, problem)
        if first is not None and first[1] != dimension:
            return BatchAxis(None, f"the first dimension is '{first[1]}' in {first[0]} and '{dimension}' in {what}")
        first = first or (what, dimension)
    return BatchAxis(0, f"the first dimension of every input and output is '{first[1] if first else ''}'")


def check_request(
    model: str,
    signature: ModelSignature,
    inputs: Sequence[TensorHeader],
    outputs: Sequence[str],
    batch_axis: BatchAxis | None = None,
) -> None:
    """Hold a request against what the model declares, so that it cannot fail others it would be joined with.

    Symbolic and unnamed dimensions accept any extent. An output asked for twice is refused: Triton accepts it and
    answers once, which a client that reads by position misreads.

    Args:
        model: name, for the message.
        signature: what the model declares.
        inputs: in the client's order.
        outputs: names asked for; empty means all.
        batch_axis: enforces its `max_rows`.

    Raises:
        InvalidArgument: names model and tensor, what was found and what is accepted.
    """
    where = f"model '{model}'"
    specs = {spec.name: spec for spec in signature.inputs}
    given = [tensor.name for tensor in inputs]
    _check_names(f"{where}: input", given, list(specs))
    missing = [name for name in specs if name not in given]
    if missing:
        raise InvalidArgument(f"{where}: input {_quoted(missing)} is missing; the inputs are {_quoted(specs)}")
    for tensor in inputs:
        _check_tensor(f"{where}: input '{tensor.name}'", specs[tensor.name], tensor)
        _check_rows(f"{where}: input '{tensor.name}'", batch_axis, tensor)
    _check_names(f"{where}: output", outputs, [spec.name for spec in signature.outputs])


def batch_rows(batch_axis: BatchAxis | None, inputs: Sequence[TensorHeader]) -> int:
    """How many rows a checked request has: 1 without a batch axis, or where its inputs disagree."""
    if batch_axis is None or batch_axis.axis is None:
        return 1
    extents = {tensor.shape[batch_axis.axis] for tensor in inputs}
    return extents.pop() if len(extents) == 1 else 1


def describe_shape(shape: Sequence[Dimension] | None) -> str:
    """A shape for people: `[n,3,?]`, `[]` for a scalar, `any shape` where not even the rank is declared."""
    if shape is None:
        return "any shape"
    return "[" + ",".join("?" if dimension is None else str(dimension) for dimension in shape) + "]"


def tensors_of(signature: ModelSignature) -> Iterable[tuple[str, TensorSpec]]:
    """Every input and output with its designation for messages, e.g. `input 'x'`."""
    yield from ((f"input '{spec.name}'", spec) for spec in signature.inputs)
    yield from ((f"output '{spec.name}'", spec) for spec in signature.outputs)


def _leading_symbol(what: str, spec: TensorSpec) -> tuple[str | None, str]:
    if spec.shape is None:
        return None, f"{what} declares no shape"
    if not spec.shape:
        return None, f"{what} is a scalar"
    dimension = spec.shape[0]
    if isinstance(dimension, str):
        return dimension, ""
    return None, f"the first dimension of {what} " + (
        "has no name" if dimension is None else f"is fixed at {dimension}"
    )


def _check_names(where: str, given: Sequence[str], accepted: Sequence[str]) -> None:
    for position, name in enumerate(given):
        if name not in accepted:
            raise InvalidArgument(f"{where} '{name}' does not exist; use {_quoted(accepted)}")
        if name in given[:position]:
            raise InvalidArgument(f"{where} '{name}' is given twice; give it once")


def _check_tensor(where: str, spec: TensorSpec, tensor: TensorHeader) -> None:
    if tensor.datatype != spec.datatype:
        raise InvalidArgument(f"{where}: datatype {tensor.datatype}, the model takes {spec.datatype}")
    if spec.shape is None:
        return
    shape = f"{where}: shape {describe_shape(tensor.shape)}, the model takes {describe_shape(spec.shape)}"
    if len(tensor.shape) != len(spec.shape):
        raise InvalidArgument(f"{shape}: rank {len(spec.shape)}, not {len(tensor.shape)}")
    for axis, (extent, declared) in enumerate(zip(tensor.shape, spec.shape, strict=True)):
        if isinstance(declared, int) and extent != declared:
            raise InvalidArgument(f"{shape}: axis {axis} has to be {declared}, not {extent}")


def _check_rows(where: str, batch_axis: BatchAxis | None, tensor: TensorHeader) -> None:
    if batch_axis is None or batch_axis.axis is None:
        return
    if len(tensor.shape) <= batch_axis.axis:  # possible where the graph declares no rank
        raise InvalidArgument(f"{where}: shape {describe_shape(tensor.shape)} lacks the batch axis {batch_axis.axis}")
    rows = tensor.shape[batch_axis.axis]
    if batch_axis.max_rows is not None and rows > batch_axis.max_rows:
        raise InvalidArgument(f"{where}: {rows} rows in one request, at most {batch_axis.max_rows} are accepted")


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
