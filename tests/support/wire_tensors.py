"""hypothesis strategies for tensors of every datatype."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from reactant_node.dtypes import BY_NAME, TABLE
from reactant_node.tensors import NamedTensor

SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def named_tensors(draw: st.DrawFn, *, typed: bool = False) -> NamedTensor:
    """A tensor of any datatype (that has a typed form, if so asked), any small shape, any bit patterns."""
    datatype = draw(st.sampled_from([row.name for row in TABLE if row.contents or not typed]))
    elements: st.SearchStrategy[Any] | None = TEXT if datatype == "BYTES" else None
    data = draw(npst.arrays(np.dtype(BY_NAME[datatype].numpy), SHAPES, elements=elements))
    return NamedTensor(draw(TEXT), datatype, data)


def same(left: NamedTensor, right: NamedTensor) -> bool:
    """Equal in name, datatype, shape and every bit (NaNs included)."""
    if (left.name, left.datatype, left.shape) != (right.name, right.datatype, right.shape):
        return False
    if left.datatype == "BYTES":
        return bool(left.data.tolist() == right.data.tolist())
    return left.data.tobytes() == right.data.tobytes()
