"""The node file and gateway.yml: found, read and checked part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reactant_node.config.checks import PATH, boolean, either, shown, texts
from reactant_node.config.documents import read_document
from reactant_node.config.environment import Overrides
from reactant_node.config.keys import GATEWAY, MAX_WORKERS, NODE, WORKER, Key, Values
from reactant_node.config.options import Options
from reactant_node.config.placement import Entry, read_entry
from reactant_node.config.problems import Problems
from reactant_node.config.schema import GpuSetting, Role
from reactant_node.config.settings import Settings, read_settings
from reactant_node.errors import ConfigError

NODE_FILE = Path("/etc/reactantserver/node.yaml")
GATEWAY_FILE = Path("/etc/reactantserver/gateway.yml")

_FOLDERS = either(PATH, texts(PATH, separator=":"))


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A node file's parts, as far as they are right; the defaults stand for no file.

    Attributes:
        path: None where there is no file.
        node: by path of NODE's keys.
        model_repo: folders; empty where the key is absent, None where it is wrong (and has been noted).
        gpus: `gpus:`.
        common: `global:`.
        entries: `workers:`; None where the key is absent.
        placements: `models:`, by model, unchecked.
        allow_code: `models.allow_code`.
        gateway: `gateway:`.
    """

    path: Path | None = None
    node: Values = field(default_factory=dict)
    model_repo: tuple[str, ...] | None = ()
    gpus: GpuSetting = None
    common: Settings = field(default_factory=Settings)
    entries: tuple[Entry, ...] | None = None
    placements: Mapping[str, object] = field(default_factory=dict)
    allow_code: bool = False
    gateway: Settings = field(default_factory=Settings)


def find_node_file(options: Options, said: Overrides) -> tuple[Path | None, list[str]]:
    """Which file to read: `--config`, REACTANT_NODE_FILE, else the host's; None for the built-in default.

    A file that was named must exist, but for role `gateway`, which can do without (a container image names it for all
    roles). The host's file is not meant where flags say what to serve.

    Args:
        options: the command line's own words.
        said: the same and the environment's, joined.

    Returns:
        The path, and notes.
    """
    gateway = said.node.get("role") == Role.GATEWAY
    named = said.node.get("config")
    if named is not None:
        path = Path(str(named))
        optional = options.config is None and gateway
        return (None if optional and not _is_there(path) else path), []
    if not _is_there(NODE_FILE):
        return None, []
    if options.models and not gateway:
        return None, [f"{NODE_FILE} is not read: --models says what to serve; add --config to read it too"]
    return NODE_FILE, []


def _is_there(path: Path) -> bool:
    """Whether there is something, be it a thing that cannot be read: reading it tells then."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def read_node_file(path: Path, problems: Problems) -> NodeFile:
    """Every part checked; what is wrong goes to `problems`."""
    try:
        document = read_document(path)
    except ConfigError as error:
        problems.add_all(error)
        return NodeFile(path, model_repo=None)
    document = dict(problems.mapping(document, str(path)))
    node = read_settings(document, NODE, "", problems).values
    common = read_settings(problems.mapping(document.get("global"), "global"), WORKER, "global", problems)
    if "shared_host_weights" in node:
        common.values.setdefault("runtime.shared_host_weights", node["shared_host_weights"])
    models = problems.mapping(document.get("models"), "models")
    gateway = problems.mapping(document.get("gateway"), "gateway")
    return NodeFile(
        path=path,
        node=node,
        model_repo=_model_repo(document.get("model_repo"), problems),
        gpus=_gpus(document.get("gpus"), problems),
        common=common,
        entries=_entries(document.get("workers"), problems),
        placements={name: workers for name, workers in models.items() if name != "allow_code"},
        allow_code=_allow_code(models.get("allow_code"), problems),
        gateway=read_settings(gateway, GATEWAY, "gateway", problems),
    )


def read_gateway_file(said: Overrides, problems: Problems) -> tuple[Settings, Path | None]:
    """gateway.yml: REACTANT_GATEWAY_FILE, which must exist, else the host's if there is one (ROLE-7).

    Returns:
        What it says, and where it is.
    """
    named = said.node.get("gateway_file")
    path = Path(str(named)) if named is not None else GATEWAY_FILE
    if named is None and not _is_there(path):
        return Settings(), None
    try:
        document = read_document(path)
    except ConfigError as error:
        problems.add_all(error)
        return Settings(), path
    problems = problems.within(f"{path}: ")
    return read_settings(problems.mapping(document, "the file"), GATEWAY, "", problems), path


def _model_repo(value: object, problems: Problems) -> tuple[str, ...] | None:
    if value is None:
        return ()
    checked = problems.value(Key(_FOLDERS), "model_repo", value)
    if checked == ():
        problems.add("model_repo: got []; name at least one folder")
    if isinstance(checked, tuple):
        return checked or None
    return None if checked is None else (str(checked),)


def _gpus(value: object, problems: Problems) -> GpuSetting:
    if value is None or value == "auto":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WORKERS:
        return value
    if isinstance(value, list) and value and all(_is_selector(item) for item in value):
        return tuple(str(item).strip() for item in value)
    problems.add(f"gpus: got {shown(value)}; use auto, a count up to {MAX_WORKERS}, or a list of ordinals or UUIDs")
    return None


def _is_selector(item: object) -> bool:
    """In the form of one; device detection knows what a selector looks like."""
    return isinstance(item, str) or (isinstance(item, int) and not isinstance(item, bool) and item >= 0)


def _entries(value: object, problems: Problems) -> tuple[Entry, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        problems.add(f"workers: got {shown(value)}; use a list with one mapping per worker, or leave it out")
        return None
    return tuple(read_entry(item, f"workers[{index}]", problems) for index, item in enumerate(value))


def _allow_code(value: object, problems: Problems) -> bool:
    return False if value is None else bool(problems.value(Key(boolean()), "models.allow_code", value))
