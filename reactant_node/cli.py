"""The command line: `serve` (also without a command), `plan`, `health`, `inspect`, `version`. Errors become exit codes.

Options keep Triton's spelling where they mean the same. Values are checked together with the rest of the
configuration, so that everything wrong is said at once. Each command imports what it needs, so that the light ones
stay light.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from reactant_node import __version__
from reactant_node.errors import ConfigError, ExitCode, NodeError

if TYPE_CHECKING:
    from reactant_node.config.options import Options

Command = Callable[[argparse.Namespace], ExitCode]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code (`errors.ExitCode`, 2 for a wrong command line)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "serve")
    parsed = _parser().parse_args(arguments)
    command: Command = parsed.command
    try:
        return command(parsed)
    except ConfigError as error:
        for problem in error.problems:
            print(f"reactant-node: {problem}", file=sys.stderr)
        return ExitCode.CONFIG
    except NodeError as error:
        print(f"reactant-node: {error}", file=sys.stderr)
        return ExitCode.FAILURE
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="reactant-node", description="An inference node for ONNX models.")
    parser.add_argument("--version", action="version", version=f"reactant-node {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    node = _node_options()
    _add(commands, "serve", _serve, "run the node; the default command", parents=[node])
    _add(commands, "plan", _plan, "say what would run: devices, workers, ports, threads", parents=[node])
    health = _add(commands, "health", _health, "exit 0 when /readyz of the node on this host answers 200")
    health.add_argument("--metrics-port", metavar="PORT", help="the admin port; else as the node was configured")
    inspect = _add(
        commands,
        "inspect",
        _inspect,
        "say what the server makes of a model or a repository; exit 1 where anything is refused",
    )
    inspect.add_argument("folder", metavar="DIR", type=Path, help="a model's folder, or a folder of them")
    _add(commands, "version", _version, "versions of this program, Python and ONNX Runtime, and its providers")
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    command: Command,
    text: str,
    parents: Sequence[argparse.ArgumentParser] = (),
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text, parents=list(parents), allow_abbrev=False)
    parser.set_defaults(command=command)
    return parser


def _node_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    what = parser.add_argument_group("what to serve")
    what.add_argument(
        "--models", "--model-repository", action="append", metavar="DIR", help="folder of models; repeatable"
    )
    what.add_argument("--load-model", action="append", metavar="NAME", help="serve this model only; repeatable")
    what.add_argument("--demo", action="store_true", help="serve the bundled demo models")
    what.add_argument(
        "--config", metavar="FILE", help="node file; else REACTANT_NODE_FILE, /etc/reactantserver/node.yaml"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--backend", metavar="cpu|cuda", help="else the node file's, else what this file was built for")
    how.add_argument("--workers", metavar="N", help="CPU workers, on a node without devices (1)")
    how.add_argument("--role", metavar="all|workers|gateway", help="what to run here (all)")
    how.add_argument("--host", metavar="HOST", help="address of the public ports (0.0.0.0, both families)")
    how.add_argument("--grpc-port", metavar="PORT", help="public gRPC port (8001); 0 is any free one")
    how.add_argument("--metrics-port", metavar="PORT", help="public health and metrics port (8002)")
    how.add_argument("--base-port", metavar="PORT", help="gRPC port of the first worker (8080); 0 is any for all")
    how.add_argument("--metrics-base-port", metavar="PORT", help="metrics port of the first worker (9100)")
    how.add_argument("--exit-timeout-secs", metavar="SECONDS", help="for the whole shutdown, drain included (25)")
    how.add_argument("--log-format", metavar="text|json", help="text for people, or JSON lines (text)")
    how.add_argument("--runtime-dir", metavar="DIR", help="folder for the materialized node file and records of deaths")
    return parser


def _options(parsed: argparse.Namespace, demo: Path | None) -> Options:
    from reactant_node.config.options import Options  # noqa: PLC0415 - see the module

    models = tuple(parsed.models or ())
    return Options(
        config=parsed.config,
        role=parsed.role,
        models=(*models, str(demo)) if demo else models,
        load_models=tuple(parsed.load_model or ()),
        backend=parsed.backend,
        workers=parsed.workers,
        host=parsed.host,
        grpc_port=parsed.grpc_port,
        metrics_port=parsed.metrics_port,
        base_port=parsed.base_port,
        metrics_base_port=parsed.metrics_base_port,
        exit_timeout_seconds=parsed.exit_timeout_secs,
        log_format=parsed.log_format,
        runtime_dir=parsed.runtime_dir,
    )


def _serve(parsed: argparse.Namespace) -> ExitCode:
    from reactant_node import launch  # noqa: PLC0415 - see the module

    with as_file(files("reactant_node") / "demo") as demo:
        plan = launch.make_plan(_options(parsed, demo if parsed.demo else None), os.environ)
        return launch.serve(plan)


def _plan(parsed: argparse.Namespace) -> ExitCode:
    from reactant_node import launch, overview  # noqa: PLC0415 - see the module

    with as_file(files("reactant_node") / "demo") as demo:
        plan = launch.make_plan(_options(parsed, demo if parsed.demo else None), os.environ)
    print(overview.render_plan(plan), end="")
    return ExitCode.OK


def _health(parsed: argparse.Namespace) -> ExitCode:
    from reactant_node.health import check_health  # noqa: PLC0415 - see the module

    ready, answer = check_health(parsed.metrics_port, os.environ)
    print(answer)
    return ExitCode.OK if ready else ExitCode.FAILURE


def _inspect(parsed: argparse.Namespace) -> ExitCode:
    from reactant_node.config.schema import Backend  # noqa: PLC0415 - see the module
    from reactant_node.models.inspection import inspect_path, render  # noqa: PLC0415
    from reactant_node.runtime.loading import examine_model  # noqa: PLC0415
    from reactant_node.runtime.ort import OrtRuntime  # noqa: PLC0415

    if not parsed.folder.is_dir():
        raise ConfigError(
            f"inspect: got {str(parsed.folder)!r}, which is no folder; name a model's folder or a folder of them"
        )
    runtime = OrtRuntime(Backend.CPU, threads=1)
    reports, snapshot = inspect_path(parsed.folder, partial(examine_model, runtime))
    print(render(reports, snapshot), end="")
    served = bool(reports) and all(report.examination is not None for report in reports)
    return ExitCode.OK if served and not snapshot.problems else ExitCode.FAILURE


def _version(_: argparse.Namespace) -> ExitCode:
    from reactant_node.runtime.ort import describe_runtime  # noqa: PLC0415 - see the module

    runtime = describe_runtime()
    print(f"reactant-node {__version__}")
    print(f"Python {sys.version.split()[0]}")
    print(f"ONNX Runtime {runtime.version} ({', '.join(runtime.providers)})")
    return ExitCode.OK
