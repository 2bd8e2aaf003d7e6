"""What crosses the borders inside a worker: named tensors, a request, a reply.

The codec makes them; scheduling, dispatch and runtime know nothing else of the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class NamedTensor:
    """A tensor with its KServe datatype.

    Attributes:
        name: the model's input or output name.
        datatype: KServe's name, a key of `dtypes.BY_NAME`. It decides what `data` means: BF16 is a uint16
            array of bit patterns, BYTES an object array of `str`.
        data: row-major array; its shape is the tensor's shape, `()` for a scalar. May be a read-only view into
            the received message.
    """

    name: str
    datatype: str
    data: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, row-major, as on the wire."""
        return self.data.shape

    def __repr__(self) -> str:
        return f"<NamedTensor {self.name} {self.datatype}{list(np.shape(self.data))}>"


@dataclass(frozen=True, slots=True, eq=False)
class InferRequest:
    """One inference, decoded, not yet checked against a model.

    Attributes:
        model: name as the client wrote it.
        version: served version the client named, or empty.
        id: the client's request id, or empty; echoed and logged, never interpreted.
        inputs: in the client's order.
        outputs: the names asked for, in order; empty means all, in the graph's order.
        deadline_ns: absolute, on the monotonic clock; None where the client set none.
    """

    model: str
    version: str
    id: str
    inputs: tuple[NamedTensor, ...]
    outputs: tuple[str, ...] = ()
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class InferReply:
    """The answer to one `InferRequest`: outputs in the order asked for."""

    model: str
    version: str
    id: str
    outputs: tuple[NamedTensor, ...]
