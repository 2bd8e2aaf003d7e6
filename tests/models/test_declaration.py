"""A file beside a model narrows its graph, names its batch axis, and never contradicts it."""

from __future__ import annotations

import pytest

from reactant_node.errors import ModelLoadError
from reactant_node.models.declaration import Declaration, DeclaredTensor, bind
from reactant_node.models.signature import BatchAxis, ModelSignature, TensorSpec, infer_batch_axis

GRAPH = ModelSignature(
    (TensorSpec("x", "FP32", ("n", "w")),), (TensorSpec("y", "FP32", ("n", 2)), TensorSpec("z", "INT64", ("n",)))
)
FIXED = ModelSignature((TensorSpec("x", "FP32", (1, 3)),), (TensorSpec("y", "FP32", (1, 3)),))


def declare(
    *inputs: DeclaredTensor, outputs: tuple[DeclaredTensor, ...] = (), batched: bool | None = None
) -> Declaration:
    """A declaration that came from a file named `file`."""
    return Declaration("file", inputs, outputs, batched, max_rows=8 if batched else None)


def test_without_a_declaration_the_graph_speaks() -> None:
    """Signature as it is, batch axis inferred."""
    binding = bind(None, GRAPH)
    assert binding.signature == GRAPH
    assert binding.batch_axis == infer_batch_axis(GRAPH)


def test_declared_extents_and_outputs_narrow_the_graph() -> None:
    """A symbolic dimension becomes fixed, an output that is not listed is not served, in the graph's order."""
    declared = declare(
        DeclaredTensor("x", "FP32", (None, 16), 0), outputs=(DeclaredTensor("z", "INT64", (None,), 0),), batched=True
    )
    binding = bind(declared, GRAPH)
    assert binding.signature == ModelSignature(
        (TensorSpec("x", "FP32", ("n", 16)),), (TensorSpec("z", "INT64", ("n",)),)
    )
    assert binding.batch_axis == BatchAxis(0, "file says so", declared=True, max_rows=8)


def test_an_extent_without_a_size_is_the_graphs() -> None:
    """A letter fits whatever the graph has; a variable extent does not fit a fixed one."""
    assert bind(declare(DeclaredTensor("x", None, ("h", "w"))), FIXED).signature == FIXED
    with pytest.raises(ModelLoadError, match=r"declared \[1,\?\]"):
        bind(declare(DeclaredTensor("x", None, (1, None))), FIXED)


def test_a_declared_shape_serves_a_graph_without_one() -> None:
    """Where the graph does not declare a rank the file's word is taken."""
    graph = ModelSignature((TensorSpec("x", "FP32", None),), ())
    assert bind(declare(DeclaredTensor("x", None, (None, 4))), graph).signature.inputs[0].shape == (None, 4)


def test_a_model_that_is_declared_to_take_no_batches_has_no_axis() -> None:
    """The graph's symbol does not count then."""
    assert bind(declare(batched=False), GRAPH).batch_axis == BatchAxis(
        None, "file says that it takes no batches", declared=True
    )


def test_marks_in_the_shapes_name_the_axis_where_all_agree() -> None:
    """One and the same axis in every input and output; anything else is served request by request."""
    graph = ModelSignature((TensorSpec("x", "FP32", ("t", "n")),), (TensorSpec("y", "FP32", ("t", "n")),))
    x, y = DeclaredTensor("x", None, (None, None), 1), DeclaredTensor("y", None, (None, None), 1)
    assert bind(declare(x, outputs=(y,)), graph).batch_axis == BatchAxis(1, "file marks it", declared=True)
    assert bind(declare(x), graph).batch_axis.axis is None
    unmarked = DeclaredTensor("y", None, (None, None))
    assert bind(declare(x, outputs=(unmarked,)), graph).batch_axis.axis is None


@pytest.mark.parametrize(
    ("declaration", "graph", "message"),
    [
        (
            declare(DeclaredTensor("q")),
            GRAPH,
            "file: the graph's input 'x' is not declared; input 'q' is not in the graph, which has x",
        ),
        (declare(DeclaredTensor("x", "FP64")), GRAPH, "file: input 'x' is declared FP64, the graph has FP32"),
        (
            declare(DeclaredTensor("x", "FP32", (None, None, 4), 0), batched=True),
            GRAPH,
            "file: input 'x' is declared [?,?,4], batch axis included, the graph has [n,w]",
        ),
        (
            declare(outputs=(DeclaredTensor("y", "FP32", (None, 3)),)),
            GRAPH,
            "file: output 'y' is declared [?,3], batch axis included, the graph has [n,2]",
        ),
        (
            declare(batched=True),
            FIXED,
            (
                "file: a batch axis is declared, and the graph fixes that of input 'x' at 1; "
                "a batch axis is declared, and the graph fixes that of output 'y' at 1"
            ),
        ),
        (
            declare(batched=True),
            ModelSignature((TensorSpec("x", "FP32", ()),), ()),
            "file: a batch axis is declared, and input 'x' has none: the graph has []",
        ),
        (
            declare(DeclaredTensor("a", None, (None,), 0), DeclaredTensor("b", None, (None,))),
            ModelSignature((TensorSpec("a", "FP32", ("n",)), TensorSpec("b", "FP32", ("m",))), ()),
            "file: either all inputs have a batch axis or none (n or b in the shape)",
        ),
    ],
)
def test_a_contradiction_refuses_the_model_in_one_line(
    declaration: Declaration, graph: ModelSignature, message: str
) -> None:
    """It names the file, the tensor and both versions."""
    with pytest.raises(ModelLoadError) as raised:
        bind(declaration, graph)
    assert raised.value.message == message
