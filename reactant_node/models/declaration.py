"""What a file beside a model declares about it, held against what its graph says.

manifest.yaml and config.pbtxt both become a `Declaration`. It may narrow the graph (a fixed extent where the graph
has a symbolic one, fewer outputs) and name the batch axis; anything it says against the graph refuses the model,
since one of the two is wrong and serving would mean guessing which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reactant_node.errors import ModelLoadError
from reactant_node.models.signature import (
    BatchAxis,
    Dimension,
    ModelSignature,
    TensorSpec,
    describe_shape,
    infer_batch_axis,
    tensors_of,
)


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """One input or output as the file describes it.

    Attributes:
        name: the graph's name.
        datatype: KServe's name, or None: not declared.
        shape: whole shape, batch axis included; None is a variable extent, a letter one that the graph knows; None as
            a whole: not declared.
        batch_axis: the file marks this axis as the batch axis.
    """

    name: str
    datatype: str | None = None
    shape: tuple[Dimension, ...] | None = None
    batch_axis: int | None = None


@dataclass(frozen=True, slots=True)
class Declaration:
    """What one file says.

    Attributes:
        source: the file's name, for messages.
        inputs: empty: not declared.
        outputs: empty: not declared.
        batched: every tensor has its batch axis at 0 (True), the model takes no batches (False), or the file leaves
            that to the marks of its tensors and the graph (None).
        max_rows: most rows of one request.
    """

    source: str
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    batched: bool | None = None
    max_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """A graph as it is served: narrowed by the declaration, with its batch axis before the probe."""

    signature: ModelSignature
    batch_axis: BatchAxis


def bind(declaration: Declaration | None, graph: ModelSignature) -> Binding:
    """Join a graph with what the file beside it declares.

    Raises:
        ModelLoadError: they contradict each other; names the file and every contradiction, in one line.
    """
    if declaration is None:
        return Binding(graph, infer_batch_axis(graph))
    problems = [
        *_missing_inputs(declaration, graph),
        *_contradictions("input", declaration.inputs, graph.inputs),
        *_contradictions("output", declaration.outputs, graph.outputs),
        *_batch_contradictions(declaration, graph),
    ]
    if problems:
        raise ModelLoadError(f"{declaration.source}: {'; '.join(problems)}")
    return Binding(_narrowed(declaration, graph), _batch_axis(declaration, graph))


def _missing_inputs(declaration: Declaration, graph: ModelSignature) -> Iterator[str]:
    declared = {tensor.name for tensor in declaration.inputs}
    for spec in graph.inputs:
        if declared and spec.name not in declared:
            yield f"the graph's input '{spec.name}' is not declared"


def _contradictions(kind: str, declared: Sequence[DeclaredTensor], graph: Sequence[TensorSpec]) -> Iterator[str]:
    specs = {spec.name: spec for spec in graph}
    for tensor in declared:
        spec = specs.get(tensor.name)
        if spec is None:
            yield f"{kind} '{tensor.name}' is not in the graph, which has {', '.join(specs) or 'none'}"
            continue
        if tensor.datatype not in (None, spec.datatype):
            yield f"{kind} '{tensor.name}' is declared {tensor.datatype}, the graph has {spec.datatype}"
        if not _fits(tensor, spec):
            yield (
                f"{kind} '{tensor.name}' is declared {describe_shape(tensor.shape)}, batch axis included, "
                f"the graph has {describe_shape(spec.shape)}"
            )


def _fits(tensor: DeclaredTensor, spec: TensorSpec) -> bool:
    if tensor.shape is None or spec.shape is None:
        return True
    if len(tensor.shape) != len(spec.shape):
        return False
    pairs = enumerate(zip(tensor.shape, spec.shape, strict=True))
    return all(axis == tensor.batch_axis or _fits_extent(declared, graph) for axis, (declared, graph) in pairs)


def _fits_extent(declared: Dimension, graph: Dimension) -> bool:
    """A fixed batch axis is left to _batch_contradictions, which says more."""
    return isinstance(declared, str) or not isinstance(graph, int) or declared == graph


def _batch_contradictions(declaration: Declaration, graph: ModelSignature) -> Iterator[str]:
    marked = {tensor.name: tensor.batch_axis for tensor in (*declaration.inputs, *declaration.outputs)}
    for what, spec in tensors_of(graph):
        axis = 0 if declaration.batched else marked.get(spec.name)
        if axis is None or spec.shape is None:
            continue
        if axis >= len(spec.shape):
            yield f"a batch axis is declared, and {what} has none: the graph has {describe_shape(spec.shape)}"
        elif isinstance(spec.shape[axis], int):
            yield f"a batch axis is declared, and the graph fixes that of {what} at {spec.shape[axis]}"
    marks = [tensor.batch_axis is None for tensor in declaration.inputs]
    if any(marks) and not all(marks):
        yield "either all inputs have a batch axis or none (n or b in the shape)"


def _narrowed(declaration: Declaration, graph: ModelSignature) -> ModelSignature:
    outputs = {tensor.name for tensor in declaration.outputs}
    served = [spec for spec in graph.outputs if not outputs or spec.name in outputs]
    return ModelSignature(
        tuple(_narrowed_spec(spec, declaration.inputs) for spec in graph.inputs),
        tuple(_narrowed_spec(spec, declaration.outputs) for spec in served),
    )


def _narrowed_spec(spec: TensorSpec, declared: Sequence[DeclaredTensor]) -> TensorSpec:
    shape = next((tensor.shape for tensor in declared if tensor.name == spec.name), None)
    if shape is None:
        return spec
    graph = spec.shape or (None,) * len(shape)
    return replace(spec, shape=tuple(d if isinstance(d, int) else g for d, g in zip(shape, graph, strict=True)))


def _batch_axis(declaration: Declaration, graph: ModelSignature) -> BatchAxis:
    source = declaration.source
    if declaration.batched is not None:
        axis = 0 if declaration.batched else None
        reason = f"{source} says so" if declaration.batched else f"{source} says that it takes no batches"
        return BatchAxis(axis, reason, declared=True, max_rows=declaration.max_rows)
    if not declaration.inputs:
        return infer_batch_axis(graph)
    axes = {tensor.batch_axis for tensor in (*declaration.inputs, *declaration.outputs)}
    outputs_declared = {tensor.name for tensor in declaration.outputs} == {spec.name for spec in graph.outputs}
    if len(axes) == 1 and (None in axes or outputs_declared):
        (axis,) = axes
        marks = f"{source} marks it" if axis is not None else f"{source} marks none"
        return BatchAxis(axis, marks, declared=True)
    return BatchAxis(
        None, f"{source} does not mark one and the same batch axis in every input and output", declared=True
    )
