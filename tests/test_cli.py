"""The command line in-process: which command runs, what is refused, and with which exit code."""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import reactant_node
from reactant_node import launch, overview
from reactant_node.cli import main
from reactant_node.config import node_file
from reactant_node.config.options import Options
from reactant_node.config.schema import NodeConfig
from reactant_node.errors import ConfigError, ExitCode, Internal
from reactant_node.launch import LaunchPlan

Output = pytest.CaptureFixture[str]
DEMO = str(files("reactant_node") / "demo")


@pytest.fixture(autouse=True)
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables of ours, no files of this host."""
    for name in [name for name in os.environ if name.startswith(("REACTANT_", "INFERENCE_SERVER_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(node_file, "NODE_FILE", tmp_path / "etc" / "node.yaml")
    monkeypatch.setattr(node_file, "GATEWAY_FILE", tmp_path / "etc" / "gateway.yml")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    """What `serve` would have run."""
    plans: list[LaunchPlan] = []

    def serve(plan: LaunchPlan) -> ExitCode:
        plans.append(plan)
        return ExitCode.OK

    monkeypatch.setattr(launch, "serve", serve)
    return plans


def usage(*arguments: str) -> int:
    """The exit code of a command line that argparse ends."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


# --- which command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["serve", "--demo"], ["--demo"], ["--demo", "--backend", "cpu"]])
def test_serve_is_the_default(served: list[LaunchPlan], words: list[str]) -> None:
    """Flags alone belong to it."""
    assert main(words) == 0
    (plan,) = served
    assert plan.node.workers[0].model_dirs == (DEMO,)


def test_without_any_word_the_node_file_is_served(
    served: list[LaunchPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REACTANT_NODE_FILE here; the words are the process's own."""
    path = tmp_path / "node.yaml"
    path.write_text(f"model_repo: {tmp_path}\n")
    monkeypatch.setenv("REACTANT_NODE_FILE", str(path))
    monkeypatch.setattr(sys, "argv", ["reactant-node"])
    assert main() == 0
    assert served[0].node.files == (str(path),)


def test_every_flag_reaches_the_configuration(served: list[LaunchPlan], tmp_path: Path) -> None:
    """Under its own spelling and under Triton's."""
    words = ["--model-repository", str(tmp_path), "--models", DEMO, "--load-model", "simple", "--load-model", "digits"]
    words += ["--backend", "cpu", "--workers", "3", "--host", "127.0.0.1", "--grpc-port", "9001"]
    words += ["--metrics-port", "9002", "--base-port", "9100", "--metrics-base-port", "9200"]
    words += ["--exit-timeout-secs", "3", "--log-format", "json", "--runtime-dir", str(tmp_path / "run")]
    assert main(["serve", *words]) == 0
    node = served[0].node
    assert [worker.endpoints.port for worker in node.workers] == [9100, 9101, 9102]
    assert [worker.endpoints.metrics_port for worker in node.workers] == [9200, 9201, 9202]
    assert node.workers[0].model_dirs == (str(tmp_path), DEMO)
    assert node.workers[0].models_include == ("simple", "digits")
    listen = node.listen
    assert (listen.grpc_host, listen.grpc_port) == (listen.metrics_host, listen.metrics_port - 1) == ("127.0.0.1", 9001)
    assert (node.supervisor.exit_timeout_seconds, node.log_format) == (3.0, "json")
    assert node.runtime_dir == str(tmp_path / "run")
    assert main(["--role", "workers", "--config", str(written(tmp_path, node))]) == 0
    assert served[1].node.role == "workers"


def written(folder: Path, node: NodeConfig) -> Path:
    """A node file with a node's models."""
    path = folder / "node.yaml"
    path.write_text(f"model_repo: {node.workers[0].model_dirs[1]}\n")
    return path


def test_plan_says_what_would_run_and_runs_nothing(served: list[LaunchPlan], capsys: Output) -> None:
    """The same options as serve."""
    assert main(["plan", "--demo", "--backend", "cpu", "--workers", "2"]) == 0
    text = capsys.readouterr().out
    assert text == overview.render_plan(
        launch.make_plan(Options(models=(DEMO,), backend="cpu", workers="2"), dict(os.environ))
    )
    assert "worker1" in text
    assert served == []


@pytest.mark.parametrize("broken", [b"this is no model", None], ids=["refused", "nothing there"])
def test_inspect_fails_where_a_model_would_not_be_served(tmp_path: Path, capsys: Output, broken: bytes | None) -> None:
    """A script can ask before it deploys: a refused model, or none at all, is exit code 1."""
    if broken is not None:
        (tmp_path / "odd").mkdir()
        (tmp_path / "odd" / "model.onnx").write_bytes(broken)
    assert main(["inspect", str(tmp_path)]) == ExitCode.FAILURE
    assert ("REFUSED" if broken else "no model found") in capsys.readouterr().out


def test_inspect_says_what_becomes_of_a_model(capsys: Output) -> None:
    """The bundled ones, by their repository and by one folder of it."""
    assert main(["inspect", DEMO]) == 0
    text = capsys.readouterr().out
    assert "simple" in text
    assert "digits" in text
    assert main(["inspect", f"{DEMO}/simple"]) == 0
    assert "INPUT0" in capsys.readouterr().out


def test_version_says_ours_pythons_and_the_runtimes(capsys: Output) -> None:
    """With the runtime's providers; `--version` says ours alone."""
    assert main(["version"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"reactant-node {reactant_node.__version__}\nPython 3.")
    assert "CPUExecutionProvider" in text
    assert usage("--version") == 0
    assert capsys.readouterr().out == f"reactant-node {reactant_node.__version__}\n"


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serv"], "invalid choice: 'serv'"),
        (["models"], "invalid choice: 'models'"),
        (["serve", "--model"], "unrecognized arguments: --model"),
        (["--modles", "x"], "unrecognized arguments: --modles x"),
        (["serve", "extra"], "unrecognized arguments: extra"),
        (["serve", "--models"], "expected one argument"),
        (["plan", "--nope"], "unrecognized arguments: --nope"),
        (["health", "--demo"], "unrecognized arguments: --demo"),
        (["inspect"], "the following arguments are required: DIR"),
        (["version", "now"], "unrecognized arguments: now"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(capsys: Output, words: list[str], said: str) -> None:
    """No abbreviations: a flag of a later version must not change what a script means."""
    assert usage(*words) == ExitCode.USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["serve", "--help"], ["plan", "-h"], ["health", "-h"]])
def test_help_is_there(capsys: Output, words: list[str]) -> None:
    """For the program and for each command."""
    assert usage(*words) == 0
    assert capsys.readouterr().out.startswith("usage: reactant-node")


def test_the_programs_help_names_every_command(capsys: Output) -> None:
    """With a line for each."""
    usage("--help")
    text = capsys.readouterr().out
    assert all(command in text for command in ("serve", "plan", "health", "inspect", "version"))


@pytest.mark.parametrize("command", [[], ["serve"], ["plan"]])
def test_a_wrong_configuration_is_exit_code_78_and_a_line_for_each_problem(capsys: Output, command: list[str]) -> None:
    """Whatever the source, and no traceback."""
    words = ["--models", "/nonexistent", "--role", "boss", "--grpc-port", "x"]
    assert main([*command, *words]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["reactant-node", "--role"],
        ["reactant-node", "--grpc-port"],
        ["reactant-node", "model_repo"],
    ]


@pytest.mark.parametrize("folder", ["/nonexistent", __file__])
def test_inspect_wants_a_folder(capsys: Output, folder: str) -> None:
    """Else exit code 78, and what would do."""
    assert main(["inspect", folder]) == ExitCode.CONFIG
    assert capsys.readouterr().err.startswith(f"reactant-node: inspect: got {folder!r}, which is no folder; name a")


def test_what_fails_otherwise_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """One line as well."""

    def fail(_: LaunchPlan) -> ExitCode:
        raise Internal("no such luck")

    monkeypatch.setattr(launch, "serve", fail)
    assert main(["--demo", "--backend", "cpu"]) == 1
    assert capsys.readouterr().err == "reactant-node: no such luck\n"


def test_what_serve_finds_wrong_is_exit_code_78(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """A missing package, a folder that cannot be used: the configuration or the installation, never a retry."""

    def refuse(_: LaunchPlan) -> ExitCode:
        raise ConfigError(["add onnxruntime", "choose another folder"])

    monkeypatch.setattr(launch, "serve", refuse)
    assert main(["--demo", "--backend", "cpu"]) == 78
    assert capsys.readouterr().err == "reactant-node: add onnxruntime\nreactant-node: choose another folder\n"
