"""ONNX Runtime's error messages, made fit for one line, and who is to blame for a failed run.

The messages carry places in ONNX Runtime's sources, whole C++ signatures, line breaks and paths of this machine.
The exception's class alone does not settle the blame: operators raise FAIL for an input of the wrong shape (Reshape,
MatMul, Concat, broadcasting) as they do for a failed allocation. So INVALID_ARGUMENT is the input's fault, and of the
rest what speaks of shapes and indices; anything else is not.
"""

from __future__ import annotations

import re
from pathlib import Path

_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_ENFORCED = re.compile(r"/onnxruntime_src/\S+:\d+ .*?\)(?: const)? ")
"""File, line and signature of the C++ function that gave up; the signature ends with the first parenthesis."""
_PLACE = re.compile(r"\b\w+\.(?:cc|h|cu):\d+ \w+ ")
_NODE = re.compile(r"Non-zero status code returned while running (\S+) node\. Name:'([^']*)' Status Message: ")
_LOAD = re.compile(r"Load model from .*? failed: ?")
_ESCAPES = re.compile(r"External data path escapes model directory\. External data path: (\"[^\"]*\").*")

_BLAMES_INPUT = re.compile(
    r"\b(shapes?|reshaped?|ranks?|dims?|dimensions?|ax[ei]s|broadcast\w*|ind(ex|ices)|bounds|range)\b", re.IGNORECASE
)

_MAX_LENGTH = 1000
"""A message goes into gRPC trailers, whose headers peers limit to 8 KiB."""


def tidy(message: str, folder: Path | None = None) -> str:
    """One line: what went wrong, without places in ONNX Runtime's sources.

    Args:
        message: the exception's text.
        folder: the model's; paths below it become relative.
    """
    text = " ".join(message.split())
    for pattern in (_CODE, _LOAD, _ENFORCED, _PLACE):
        text = pattern.sub("", text)
    text = _NODE.sub(_node, text)
    text = _ESCAPES.sub(r"the external data path \1 leaves the model folder", text)
    for path in {str(folder), str(folder.resolve())} if folder is not None else ():
        text = text.replace(f"{path}/", "")
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"


def blames_input(kind: str, message: str) -> bool:
    """Whether ONNX Runtime holds the input responsible for a failed run.

    Args:
        kind: name of the exception's class.
        message: tidied.
    """
    return kind == "InvalidArgument" or _BLAMES_INPUT.search(message) is not None


def _node(match: re.Match[str]) -> str:
    operator, name = match.groups()
    return f"{operator} node '{name}': " if name else f"{operator} node: "
