"""A configuration from a node file's text, a made-up environment and a made-up host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reactant_node.config import node_file
from reactant_node.config.loader import Devices, Host, load_node
from reactant_node.config.options import Options
from reactant_node.config.schema import Backend, GpuSetting, NodeConfig
from reactant_node.errors import ConfigError


def make_host(
    *devices: str, cpus: int = 8, backend: Backend = Backend.CPU, stated: bool = False, doubt: str = ""
) -> Host:
    """A host with these devices; a `gpus` of the node file comes first, as in real detection."""

    def detect(gpus: GpuSetting) -> Devices:
        if gpus is None:
            return Devices(devices, "NVML", stated, doubt)
        return Devices(tuple(map(str, range(gpus))) if isinstance(gpus, int) else gpus, "gpus", stated=True)

    return Host(cpus, backend, detect)


class Loader:
    """Loads configurations out of a test's own folder, where `models` is a repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.models.mkdir()

    def write(self, text: str, name: str = "node.yaml") -> Path:
        """A file; `MODELS` in it stands for the repository."""
        path = self.folder / name
        path.write_text(text.replace("MODELS", str(self.models)))
        return path

    def load(
        self,
        text: str | None = "model_repo: MODELS",
        environ: Mapping[str, str] | None = None,
        *,
        facts: Host | None = None,
        **options: Any,
    ) -> NodeConfig:
        """What a node file's text, or none, comes to."""
        config = options.pop("config", None) if text is None else str(self.write(text))
        return load_node(Options(config=config, **options), environ or {}, facts or make_host())

    def problems(self, *arguments: Any, **options: Any) -> tuple[str, ...]:
        """What is wrong with it; it has to be."""
        with pytest.raises(ConfigError) as raised:
            self.load(*arguments, **options)
        return raised.value.problems

    def problem(self, *arguments: Any, **options: Any) -> str:
        """The one thing that is wrong with it."""
        (problem,) = self.problems(*arguments, **options)
        return problem


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """A loader that the files of this host do not reach."""
    monkeypatch.setattr(node_file, "NODE_FILE", tmp_path / "etc" / "node.yaml")
    monkeypatch.setattr(node_file, "GATEWAY_FILE", tmp_path / "etc" / "gateway.yml")
    return Loader(tmp_path)
