"""The CUDA flavor on a host without a GPU: it names what is missing, and ends for good.

Run by `make test-cuda`, which builds that flavor; without the file there is nothing to test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.node import ZIPAPP as CPU_ZIPAPP
from tests.support.tiny_zipapp import start_zipapp

ZIPAPP = CPU_ZIPAPP.with_name("reactant-node-cuda.pyz")

pytestmark = [
    pytest.mark.artifact,
    pytest.mark.skipif(not ZIPAPP.exists(), reason="the CUDA flavor is not built: make test-cuda"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a GPU"),
]


@pytest.mark.parametrize(
    ("variables", "missing"),
    [({}, "no device"), ({"REACTANT_GPUS": "1"}, "libcu")],
    ids=["no device", "no library"],
)
def test_it_refuses_once_and_names_the_missing_thing(
    shiv_root: Path, tmp_path: Path, variables: dict[str, str], missing: str
) -> None:
    """Exit code 78, no traceback and no second start of anything."""
    more = {"SHIV_ROOT": str(shiv_root), **variables}
    ended = start_zipapp(ZIPAPP, "serve", "--demo", "--backend", "cuda", home=tmp_path, **more)
    assert ended.returncode == 78, ended.stderr
    assert missing in (ended.stdout + ended.stderr).lower()
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "restart" not in ended.stdout + ended.stderr
