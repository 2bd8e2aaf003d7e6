"""A model's inputs and outputs: names, datatypes, shapes and where the batch axis is."""

from __future__ import annotations

from dataclasses import dataclass

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
