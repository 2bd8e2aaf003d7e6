"""Which ONNX Runtime is installed and whether its CUDA provider could be loaded, without importing it.

For the parent, which must hold neither ONNX Runtime nor CUDA: package metadata and file names are read here, and
what only loading can tell is asked of a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

CUDA_PROVIDER_FILE = "libonnxruntime_providers_cuda.so"
CPU_PACKAGE = "onnxruntime"
CUDA_PACKAGE = "onnxruntime-gpu"

_PROBE = "from reactant_node.runtime import ort; print('missing:', ort.missing_cuda_library() or '')"
_PROBE_SECONDS = 60.0
"""Loading the CUDA libraries from a cold disk: about 3 GB."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed.

    Attributes:
        packages: name to version, of `onnxruntime` and `onnxruntime-gpu` where the module comes from; both in one place
            have overwritten each other.
        folder: where the module `onnxruntime` is, None where there is none.
        has_cuda_provider: the CUDA provider's library is in it.
    """

    packages: dict[str, str]
    folder: Path | None
    has_cuda_provider: bool


def find_installation() -> Installation:
    """Look, without importing."""
    spec = importlib.util.find_spec("onnxruntime")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    return Installation(
        packages={} if folder is None else _versions(folder.parent),
        folder=folder,
        has_cuda_provider=folder is not None and (folder / "capi" / CUDA_PROVIDER_FILE).is_file(),
    )


def missing_package(*, cuda: bool) -> str | None:
    """What has to be installed before workers can run, as a sentence, or None.

    Args:
        cuda: the workers are to use CUDA.
    """
    found = find_installation()
    if len(found.packages) > 1:
        return f"{CPU_PACKAGE} and {CUDA_PACKAGE} are both installed and break each other: uninstall both, add one"
    if found.folder is None:
        package = CUDA_PACKAGE if cuda else CPU_PACKAGE
        return (
            f"ONNX Runtime is not installed: add {package} (pip install 'reactant-node[{'cuda' if cuda else 'cpu'}]')"
        )
    if cuda and not found.has_cuda_provider:
        return (
            f"the ONNX Runtime in {found.folder} has no CUDA provider: "
            f"put {CUDA_PACKAGE} in place of {CPU_PACKAGE} (pip install 'reactant-node[cuda]')"
        )
    return None


def missing_cuda_library() -> str | None:
    """What keeps the CUDA provider from being loaded, e.g. `libcudnn.so.9: cannot open shared object file`, or None.

    Asks a short-lived process, since a library that is loaded stays. Takes a second or two.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check did not end: {error}"
    for line in ended.stdout.splitlines():
        if line.startswith("missing:"):
            return line.removeprefix("missing:").strip() or None
    return f"the check ended with {ended.returncode}: {(ended.stderr.strip().splitlines() or ['no message'])[-1]}"


def _versions(place: Path) -> dict[str, str]:
    """The packages installed in one place: what else is on the path, beside a zipapp's own, is not what is imported."""
    found = {name: metadata.distributions(name=name, path=[str(place)]) for name in (CPU_PACKAGE, CUDA_PACKAGE)}
    return {name: distribution.version for name, places in found.items() for distribution in places}
