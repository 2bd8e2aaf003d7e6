"""Flags, environment and files become one configuration, or a list of everything that is wrong."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.config import loader as loader_module
from reactant_node.config import node_file
from reactant_node.config.checks import Unacceptable, address, split_address
from reactant_node.config.schema import Backend, GatewayConfig, ListenConfig, Role
from reactant_node.errors import ConfigError
from reactant_node.transport.addresses import parse_address
from reactant_node.transport.interface import Address
from tests.support.config_nodes import Loader, make_host

CONFIG = Path(__file__).parents[2] / "config"
TWO = "model_repo: MODELS\nworkers: [{name: a}, {name: b}]\n"


# --- precedence -----------------------------------------------------------------------------------------------------


def test_without_anything_the_built_in_default_serves_the_standard_folder(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file, no flag: one CPU worker on the public ports, models from the standard folder."""
    monkeypatch.setattr(loader_module, "MODEL_REPO", str(loader.models))
    node = loader.load(None)
    (worker,) = node.workers
    assert (node.role, node.gateway, node.listen) == (Role.ALL, None, ListenConfig())
    assert (worker.name, worker.device, worker.threads, worker.model_dirs) == ("worker0", "", 8, (str(loader.models),))
    assert (worker.endpoints.host, worker.endpoints.port, worker.endpoints.metrics_port) == ("0.0.0.0", 8001, 8002)
    assert not worker.runtime.allow_cpu_fallback
    assert node.notes == node.overrides == ()


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [("json", "text", "json"), (None, "json", "json"), (None, None, "text")],
    ids=["flag", "environment", "file"],
)
def test_a_flag_stands_over_the_environment_over_the_file(
    loader: Loader, option: str | None, variable: str | None, expected: str
) -> None:
    """The first source that speaks wins."""
    environ = {"REACTANT_LOG_FORMAT": variable} if variable else {}
    text = f"model_repo: MODELS\nlog_format: {'json' if variable == 'text' else 'text'}"
    assert loader.load(text, environ, log_format=option).log_format == expected


def test_the_same_holds_for_a_workers_settings(loader: Loader) -> None:
    """Flag over environment over the worker's entry over `global` over the default."""
    text = (
        "model_repo: MODELS\n"
        "global: {scheduler: {max_queue_depth: 10, dispatch_timeout_seconds: 11}, grpc: {max_recv_msg_bytes: 12}}\n"
        "workers: [{name: a, scheduler: {max_queue_depth: 20}, models_include: [x]}, {name: b}]"
    )
    environ = {"INFERENCE_SERVER_GRPC_MAX_RECV_MSG_BYTES": "30", "INFERENCE_SERVER_MODELS_INCLUDE": "p:q"}
    first, second = loader.load(text, environ, load_models=("z",)).workers
    assert [it.scheduler.max_queue_depth for it in (first, second)] == [20, 10]
    assert {it.scheduler.dispatch_timeout_seconds for it in (first, second)} == {11}
    assert {it.grpc.max_recv_msg_bytes for it in (first, second)} == {30}
    assert {it.grpc.max_send_msg_bytes for it in (first, second)} == {536_870_912}
    assert {it.models_include for it in (first, second)} == {("z",)}
    assert loader.load(text, environ).workers[0].models_include == ("p", "q")
    assert loader.load(text).workers[0].models_include == ("x",)


def test_every_model_may_be_asked_for_by_a_star(loader: Loader) -> None:
    """`--load-model *` names all of them, as Triton's does."""
    text = "model_repo: MODELS\nglobal: {models_include: [a]}"
    assert loader.load(text, load_models=("b", "*")).workers[0].models_include == ()
    assert loader.problem(load_models=("",)).startswith("--load-model: got ['']")


def test_the_files_that_were_read_are_named(loader: Loader) -> None:
    """For `plan`: the node file, then gateway.yml."""
    path = str(loader.write("rpcs: minimal", "gateway.yml"))
    files = loader.load(environ={"REACTANT_GATEWAY_FILE": path}).files
    assert files == (str(loader.folder / "node.yaml"), path)
    assert loader.load(None, models=(str(loader.models),)).files == ()


def test_the_applied_variables_are_named(loader: Loader) -> None:
    """For the log: the ones that have a say, and no others."""
    environ = {"REACTANT_ROLE": "all", "REACTANT_WORKER_THREADS": "", "HOME": "/", "INFERENCE_SERVER_CACHE_DIR": "/c"}
    assert loader.load(environ=environ).overrides == ("INFERENCE_SERVER_CACHE_DIR", "REACTANT_ROLE")


# --- which file -----------------------------------------------------------------------------------------------------


def test_the_node_file_is_the_flags_else_the_variables_else_the_hosts(loader: Loader) -> None:
    """--config, REACTANT_NODE_FILE, /etc/reactantserver/node.yaml, in this order."""
    node_file.NODE_FILE.parent.mkdir()
    for path, depth in ((node_file.NODE_FILE, 1), (loader.folder / "b.yaml", 2), (loader.folder / "c.yaml", 3)):
        path.write_text(f"model_repo: {loader.models}\nglobal: {{scheduler: {{max_queue_depth: {depth}}}}}\n")
    environ = {"REACTANT_NODE_FILE": str(loader.folder / "b.yaml")}

    def depth_of(environ: dict[str, str], config: str | None) -> int:
        return loader.load(None, environ, config=config).workers[0].scheduler.max_queue_depth

    assert depth_of({}, None) == 1
    assert depth_of(environ, None) == 2
    assert depth_of(environ, str(loader.folder / "c.yaml")) == 3


def test_the_hosts_file_is_not_meant_where_a_flag_says_what_to_serve(loader: Loader) -> None:
    """`--models` needs no file; that there is one is noted."""
    node_file.NODE_FILE.parent.mkdir()
    node_file.NODE_FILE.write_text("model_repo: /nonexistent")
    node = loader.load(None, models=(str(loader.models),))
    assert node.workers[0].model_dirs == (str(loader.models),)
    assert str(node_file.NODE_FILE) in node.notes[0]


@pytest.mark.parametrize("source", ["flag", "variable"])
def test_a_file_that_was_named_must_exist(loader: Loader, source: str) -> None:
    """Falling back to something else would serve what nobody asked for."""
    environ = {"REACTANT_NODE_FILE": "/nonexistent.yaml"} if source == "variable" else {}
    problem = loader.problem(None, environ, config="/nonexistent.yaml" if source == "flag" else None)
    assert problem.startswith("/nonexistent.yaml: No such file")


def test_role_gateway_needs_no_node_file(loader: Loader) -> None:
    """Neither the default one nor the one that an image names for all roles."""
    environ = {
        "REACTANT_ROLE": "Gateway ",
        "REACTANT_NODE_FILE": "/nonexistent.yaml",
        "REACTANT_GATEWAY_WORKERS": "gpu1:8080,gpu2:8080",
    }
    node = loader.load(None, environ)
    assert (node.role, node.workers) == (Role.GATEWAY, ())
    assert node.gateway == GatewayConfig(endpoints=("gpu1:8080", "gpu2:8080"))


def test_role_gateway_reads_a_node_file_that_is_there(loader: Loader) -> None:
    """Its `gateway:` block counts in every role; the role that the environment repeats changes nothing."""
    node_file.NODE_FILE.parent.mkdir()
    node_file.NODE_FILE.write_text("role: gateway\ngateway: {endpoints: ['a:1']}\n")
    for environ in ({}, {"REACTANT_ROLE": "gateway"}):
        node = loader.load(None, environ)
        assert node.gateway is not None
        assert node.gateway.endpoints == ("a:1",)


# --- the gateway's settings -----------------------------------------------------------------------------------------


def test_gateway_settings_come_from_environment_file_block_and_default(loader: Loader) -> None:
    """REACTANT_GATEWAY_* over gateway.yml over `gateway:` over the default, key by key."""
    loader.write("listen: {grpc: ':2'}\nworker_client: {request_timeout_seconds: 2}\n", "gateway.yml")
    block = "gateway: {listen: {grpc: ':1', metrics: '[::1]:1'}, worker_client: {max_concurrent_streams: 1}}\n"
    environ = {
        "REACTANT_GATEWAY_FILE": str(loader.folder / "gateway.yml"),
        "REACTANT_GATEWAY_WORKER_CLIENT_REQUEST_TIMEOUT_SECONDS": "3",
        "REACTANT_GATEWAY_SCHEDULING_MODE": "least_outstanding",
    }
    gateway = loader.load(TWO + block, environ).gateway
    assert gateway is not None
    assert gateway.listen == ListenConfig("0.0.0.0", 2, "::1", 1)
    assert (gateway.request_timeout_seconds, gateway.max_concurrent_streams) == (3.0, 1)
    assert (gateway.scheduling_mode, gateway.rpcs) == ("least_outstanding", "node")


def test_a_sole_worker_takes_its_public_ports_from_the_same_settings(loader: Loader) -> None:
    """gateway.yml and flags move them as they would move a gateway's."""
    path = loader.write("listen: {grpc: '127.0.0.1:9001', metrics: ':9002'}", "gateway.yml")
    environ = {"REACTANT_GATEWAY_FILE": str(path)}
    endpoints = loader.load(environ=environ).workers[0].endpoints
    assert (endpoints.host, endpoints.port) == ("127.0.0.1", 9001)
    assert (endpoints.metrics_host, endpoints.metrics_port) == ("0.0.0.0", 9002)
    endpoints = loader.load(environ=environ, grpc_port="0").workers[0].endpoints
    assert (endpoints.host, endpoints.port, endpoints.metrics_port) == ("127.0.0.1", 0, 9002)


def test_message_limits_of_the_workers_hold_for_the_gateway(loader: Loader) -> None:
    """What a worker takes the gateway lets through, unless it was told otherwise itself."""
    text = TWO + "global: {grpc: {max_recv_msg_bytes: 1000}}\ngateway: {grpc: {max_send_msg_bytes: 7}}\n"
    gateway = loader.load(text, {"INFERENCE_SERVER_GRPC_MAX_SEND_MSG_BYTES": "2000"}).gateway
    assert gateway is not None
    assert (gateway.grpc.max_recv_msg_bytes, gateway.grpc.max_send_msg_bytes) == (1000, 7)
    gateway = loader.load(text, {"REACTANT_GATEWAY_GRPC_MAX_RECV_MSG_BYTES": "5"}).gateway
    assert gateway is not None
    assert gateway.grpc.max_recv_msg_bytes == 5


def test_a_gateway_file_that_was_named_must_exist(loader: Loader) -> None:
    """REACTANT_GATEWAY_FILE is an order, not a hint."""
    assert loader.problem(environ={"REACTANT_GATEWAY_FILE": "/nonexistent.yml"}).startswith("/nonexistent.yml: No such")


def test_problems_of_a_gateway_file_name_it(loader: Loader) -> None:
    """The same key may stand in two files."""
    path = loader.write("listen: {grpc: '0.0.0.0:99999'}\nlissen: 1\ntls: {cert_file: /c}\n", "gateway.yml")
    problems = loader.problems(environ={"REACTANT_GATEWAY_FILE": str(path)})
    assert problems[0].startswith(f"{path}: listen.grpc: got '0.0.0.0:99999'; use host:port with a port from 0")
    assert problems[1].startswith(f"{path}: lissen: unknown key; did you mean listen?")
    assert problems[2].startswith(f"{path}: tls.cert_file: got '/c'; TLS is not served")


def test_endpoints_belong_to_role_gateway(loader: Loader) -> None:
    """Elsewhere the workers are the node's own, and a list of the other system's is not followed."""
    path = loader.write("endpoints: ['127.0.0.1:8080', '127.0.0.1:8081']", "gateway.yml")
    node = loader.load(TWO, {"REACTANT_GATEWAY_FILE": str(path)})
    assert node.gateway is not None
    assert node.gateway.endpoints == ()
    assert node.notes == ("endpoints: has no effect in role all: the workers are this node's own",)


def test_endpoints_listed_twice_are_dropped_with_what_belongs_to_them(loader: Loader) -> None:
    """The three lists stay aligned."""
    environ = {
        "REACTANT_GATEWAY_WORKERS": "a:1, b:1 ,a:1",
        "REACTANT_GATEWAY_WORKER_METRICS": "a:2,b:2,a:2",
        "REACTANT_GATEWAY_WORKER_NAMES": "x,y,z",
    }
    gateway = loader.load(None, environ, role="gateway").gateway
    assert gateway is not None
    assert gateway.endpoints == ("a:1", "b:1")
    assert (gateway.metrics_endpoints, gateway.worker_names) == (("a:2", "b:2"), ("x", "y"))


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "endpoints: missing"),
        ({"REACTANT_GATEWAY_WORKERS": "a:1,b:1", "REACTANT_GATEWAY_WORKER_NAMES": "x"}, "worker_names: got 1 for 2"),
        ({"REACTANT_GATEWAY_WORKERS": "a:1,b:1", "REACTANT_GATEWAY_WORKER_NAMES": "x,x"}, "'x' is given 2 times"),
        ({"REACTANT_GATEWAY_WORKERS": "a:1", "REACTANT_GATEWAY_WORKER_METRICS": "a:1,b:1"}, "metrics_endpoints: got 2"),
        ({"REACTANT_GATEWAY_WORKERS": "a:1", "REACTANT_GATEWAY_LISTEN_GRPC": ":8002"}, "listen.metrics: got 8002"),
    ],
)
def test_what_role_gateway_cannot_work_with_is_said(loader: Loader, environ: dict[str, str], said: str) -> None:
    """No workers, lists that do not fit, two listeners on one port."""
    assert any(said in problem for problem in loader.problems(None, environ, role="gateway"))


@pytest.mark.parametrize(
    "endpoint", ["a", "a:", ":1", "a:0", "a:65536", "http://a:1", "::1:1", "a b:1", "[a:1", "a:1:2"]
)
def test_an_endpoint_is_a_host_and_a_port(loader: Loader, endpoint: str) -> None:
    """The one wrong item is shown; that there are none left is not said as well."""
    problem = loader.problem(None, {"REACTANT_GATEWAY_WORKERS": f"b:2,{endpoint}"}, role="gateway")
    assert problem.startswith(f"REACTANT_GATEWAY_WORKERS: got 'b:2,{endpoint}'; use a list, and for its item")
    assert "endpoints: missing" not in problem


@given(st.text(st.sampled_from("a1:[].- /%é"), max_size=12) | st.from_regex(r"[a-z.]{1,5}:[0-9]{1,6}", fullmatch=True))
def test_what_is_taken_for_an_address_the_transport_takes_too(text: str) -> None:
    """It parses addresses on a higher floor, and what passes here must not fail there."""
    with suppress(Unacceptable):
        host, port = split_address(str(address().of_text(text)))
        assert parse_address(text.strip()) == Address(host, port)


def test_the_mode_that_this_version_lacks_is_stood_in_for(loader: Loader) -> None:
    """lpt_packing places models for speed, and a file with it starts the node; its other keys are noted."""
    block = "gateway: {scheduling: {mode: lpt_packing, models: {m: {replicas: all, fill_mode: inherit}}}}"
    node = loader.load(TWO + block)
    assert node.gateway is not None
    assert node.gateway.scheduling_mode == "round_robin"
    assert node.notes == (
        "gateway.scheduling.models.m.replicas: 'all' is accepted and has no effect in this version",
        "scheduling.mode: lpt_packing is not in this version; round_robin stands in for it",
    )


# --- everything wrong, at once --------------------------------------------------------------------------------------


def test_everything_wrong_is_said_in_one_go(loader: Loader) -> None:
    """Flags, environment, both files, devices and folders: one list, each with its place and the way out."""
    gateway = loader.write("scheduling: {mode: best}", "gateway.yml")
    text = (
        "model_repo: /nonexistent\nbase_prot: 8080\ngpus: [0, 0.5]\n"
        "global: {scheduler: {discipline: lifo, max_queue_depth: true}, batch_policy: {x: 1}}\n"
        "workers: [{name: a}, {name: a}, {name: ../b}]\nmodels: {m: [c]}\n"
    )
    environ = {
        "REACTANT_GATEWAY_FILE": str(gateway),
        "INFERENCE_SERVER_RUNTIME_PREALLOCATE": "maybe",
        "INFERENCE_SERVER_BATCH_POLICY_MAX": "1",
        "REACTANT_WORKSPACE_ROOT": "/nonexistent",
    }
    problems = "\n".join(loader.problems(text, environ, grpc_port="70000", role="boss"))
    for said in (
        "--grpc-port: got '70000'; use a whole number from 0 to 65535",
        "--role: got 'boss'; use all, workers or gateway",
        "INFERENCE_SERVER_RUNTIME_PREALLOCATE: got 'maybe'; use 1, true, yes or on, or 0, false, no or off",
        "INFERENCE_SERVER_BATCH_POLICY_MAX: it was removed",
        "base_prot: unknown key; did you mean base_port?",
        "gpus: got [0, 0.5]; use auto",
        "global.scheduler.discipline: got 'lifo'; use fair, fifo or edf",
        "global.scheduler.max_queue_depth: got True; use a whole number",
        "global.batch_policy: it was removed",
        "workers: the name 'a' is given 2 times",
        "workers[2].name: got '../b'; use a name of letters",
        "models.m: got the worker 'c'; use one of",
        "gateway.yml: scheduling.mode: got 'best'; use round_robin, least_outstanding or lpt_packing",
        "model_repo: got '/nonexistent', which does not exist",
        "REACTANT_WORKSPACE_ROOT: got '/nonexistent'; use a checkout",
    ):
        assert said in problems


def test_what_detection_refuses_is_among_them(loader: Loader) -> None:
    """A malformed statement about devices hides nothing else."""

    def refuse(_: object) -> loader_module.Devices:
        raise ConfigError("REACTANT_GPUS: got ''")

    host = loader_module.Host(8, Backend.CPU, refuse)
    problems = loader.problems("model_repo: /nonexistent", facts=host)
    assert problems[0] == "REACTANT_GPUS: got ''"
    assert problems[1].startswith("model_repo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base_port: '8080'", "base_port: got '8080'; use a whole number from 0 to 65535"),
        ("base_port: 8080.0", "base_port: got 8080.0"),
        ("base_port: yes", "base_port: got True"),
        ("base_port: 08080", "base_port: got '08080'"),
        ("base_port: 010000", "base_port: got '010000'"),
        ("base_port: 2:15", "base_port: got '2:15'"),
        (f"base_port: 0x{'f' * 9000}", "base_port: got '0xfff"),
        ("log_format: 2026-01-01", "log_format: got '2026-01-01'; use text or json"),
        (f"base_port: {'9' * 400}", f"base_port: got '{'9' * 59}…; use a whole number"),
        ("supervisor: {exit_timeout_seconds: .nan}", "got nan; use a number above 0 and up to 1000000"),
        ("supervisor: {exit_timeout_seconds: .inf}", "got inf"),
        ("supervisor: {exit_timeout_seconds: 0}", "got 0"),
        ("supervisor: {max_restarts: -1}", "supervisor.max_restarts: got -1"),
        ("supervisor: 5", "supervisor: got 5; use a mapping"),
        ("supervisor: {1: 2}", "supervisor: got the key 1; keys are texts"),
        ("global: []", "global: got []; use a mapping"),
        ("global: {runtime.backend: cuda}", "global.runtime.backend: unknown key"),
        ("global: {backend: cuda}", "global.backend: unknown key; did you mean runtime.backend?"),
        ("runtime: {backend: cuda}", "runtime: unknown key; did you mean global.runtime?"),
        ("backend: cuda", "backend: unknown key; did you mean global.runtime.backend?"),
        ("max_queue_depth: 5", "max_queue_depth: unknown key; did you mean global.scheduler.max_queue_depth?"),
        ("listen: {grpc: ':1'}", "listen: unknown key; did you mean gateway.listen?"),
        ("global: {runtime: {zzz: 1}}", "unknown key; use allow_cpu_fallback, autotune,"),
        ("global: {runtime: {backend: no}}", "global.runtime.backend: got False; use cpu or cuda"),
        ("global: {runtime: {allow_cpu_fallback: 'yes'}}", "got 'yes'; use true or false"),
        ("global: {runtime: {shared_host_weights_mode: 600}}", "got 600; use a mode in octal digits as a quoted text"),
        ("global: {runtime: {shared_host_weights_mode: '0888'}}", "got '0888'"),
        ("global: {runtime: {numerics: f32}}", "global.runtime.numerics: got 'f32'; use auto"),
        ("global: {runtime: {residency_mode: x}}", "global.runtime.residency_mode: it was removed"),
        ("global: {endpoints: {host: 'a b'}}", "global.endpoints.host: got 'a b'"),
        ("global: {models_include: [a, 1, '', 2.5]}", "and for its items 1, '', 2.5 a model's folder name"),
        ("global: {models_include: x}", "global.models_include: got 'x'; use a list"),
        ('global: {models_include: ["a\\0b"]}', "global.models_include: got ['a\\x00b']; use a list, and for its"),
        ("global: {scheduler: {models: {m: {wait: 1}}}}", "scheduler.models.m.wait: unknown key; did you mean weight"),
        ("gateway: {tls: {key_file: k}}", "gateway.tls.key_file: got 'k'; TLS is not served"),
        ("gateway: {listen: {grpc: '::1:8001'}}", "use host:port, with an IPv6 host in brackets"),
        ("gateway: {scheduling: {default_replicas: 0}}", "got 0; use a whole number from 1 to 1000000, or all"),
        ("models: [x]", "models: got ['x']; use a mapping"),
        ("models: {m: worker0}", "models.m: got 'worker0'; use a list of worker names"),
        ("models: {allow_code: 1}", "models.allow_code: got 1; use true or false"),
        ("workers: []", "workers: got []; use a list with one mapping per worker"),
        ("workers: {name: a}", "workers: got {'name': 'a'}; use a list"),
        ("workers: [null]", "workers[0].name: missing"),
        ("workers: [a]", "workers[0]: got 'a'; use a mapping"),
        ("workers: [{name: 7}]", "workers[0].name: got 7; use a name"),
        ('workers: [{name: "a\\0"}]', "workers[0].name: got 'a\\x00'"),
        (f"workers: [{{name: {'a' * 65}}}]", "at most 64 of them"),
        ("workers: [{name: gateway}]", "the name 'gateway' is the node's own"),
        ("workers: [{name: a, prot: 1}]", "workers[0].prot: unknown key; did you mean port?"),
        (
            "workers: [{name: a, runtime: {backend: cuda}}]",
            "workers.a.runtime.backend: got 'cuda', and the node's is cpu",
        ),
        ("gpus: -1", "gpus: got -1"),
        ("gpus: true", "gpus: got True"),
        ("gpus: 65", "gpus: got 65; use auto, a count up to 64"),
        ("gpus: []", "gpus: got []"),
        ("gpus: '2'", "gpus: got '2'"),
    ],
)
def test_a_wrong_value_is_named_with_its_path_and_what_is_accepted(loader: Loader, text: str, said: str) -> None:
    """YAML's oddities included: `yes` is no number, a number in quotes none either, and 600 may be any mode."""
    assert any(said in problem for problem in loader.problems(f"model_repo: MODELS\n{text}\n"))


@pytest.mark.parametrize(
    "text", ["model_repo: []", "model_repo: 5", 'model_repo: "a\\0"', "model_repo: ''", "role: all"]
)
def test_a_node_file_says_where_the_models_are(loader: Loader, text: str) -> None:
    """As one folder or a list of them."""
    assert loader.problem(text).startswith("model_repo: ")


def test_a_model_repo_is_a_folder_that_can_be_read(loader: Loader) -> None:
    """A file is none; several are taken in order, and made absolute."""
    other = loader.write("", "a-file")
    assert "which is no folder" in loader.problem(f"model_repo: [MODELS, {other}]")
    assert "got '', which does not exist" in loader.problem(None, models=("",))
    node = loader.load(None, {"INFERENCE_SERVER_MODEL_DIRS": f"{loader.models}:{os.path.relpath(loader.models)}"})
    assert node.workers[0].model_dirs == (str(loader.models), str(Path(os.path.relpath(loader.models)).absolute()))


def test_nulls_count_as_not_set(loader: Loader) -> None:
    """A key without a value is as good as absent, whatever it is."""
    keys = ("base_port", "role", "gpus", "global", "workers", "models", "gateway", "supervisor")
    text = "model_repo: MODELS\n" + "".join(f"{key}:\n" for key in keys)
    assert loader.load(text) == loader.load()
    assert loader.load("model_repo: MODELS\nsupervisor: {max_restarts: ~}") == loader.load()


def test_unquoted_off_is_a_word_where_off_is_one(loader: Loader) -> None:
    """YAML reads it as false; `compaction_mode: off` means what it says all the same."""
    text = "model_repo: MODELS\ngateway: {scheduling: {compaction_mode: off}}\nglobal: {runtime: {autotune_cache: on}}"
    assert [note.split(" ")[:2] for note in loader.load(text).notes] == [
        ["global.runtime.autotune_cache:", "'on'"],
        ["gateway.scheduling.compaction_mode:", "'off'"],
    ]


# --- settings without effect ----------------------------------------------------------------------------------------


def test_settings_without_effect_are_noted_where_they_ask_for_something(loader: Loader) -> None:
    """Wherever they stand: file, entry, gateway block, gateway.yml, environment; defaults say nothing."""
    path = loader.write("scheduling: {work_basis: items, hysteresis: 0.0}", "gateway.yml")
    text = (
        "model_repo: MODELS\nshared_host_weights: true\n"
        "global: {scheduler: {discipline: edf}, runtime: {mem_fraction: 0.9, preallocate: true}}\n"
        "workers:\n- name: a\n  runtime: {mem_fraction: 0.5}\n"
        "  scheduler: {models: {m: {weight: 2, residency: device}}}\n- {name: b}\n"
        "gateway: {logging: {level: debug}, scheduling: {models: {m: {replicas: all}}}}\nmodels: {big: [a]}\n"
    )
    environ = {
        "REACTANT_GATEWAY_FILE": str(path),
        "INFERENCE_SERVER_SCHEDULER_COMPACTION_INTERVAL": "4",
        "REACTANT_META_CONCURRENCY": "4",
    }
    end = "is accepted and has no effect in this version"
    assert set(loader.load(text, environ).notes) == {
        f"REACTANT_META_CONCURRENCY: 4 {end}",
        f"INFERENCE_SERVER_SCHEDULER_COMPACTION_INTERVAL: 4 {end}",
        f"global.runtime.shared_host_weights: True {end}",
        f"workers.a.runtime.mem_fraction: 0.5 {end}",
        f"workers.a.scheduler.models.m.residency: 'device' {end}",
        f"gateway.logging.level: 'debug' {end}",
        f"gateway.scheduling.models.m.replicas: 'all' {end}",
        f"{path}: scheduling.work_basis: 'items' {end}",
        f"models.big: {end}",
    }


@pytest.mark.parametrize(("said", "meant"), [("poll", "dynamic"), ("none", "static"), ("explicit", "explicit")])
def test_the_control_mode_goes_by_tritons_names_too(loader: Loader, said: str, meant: str) -> None:
    """`poll` and `none` are Triton's words for what is dynamic and static here."""
    node = loader.load(f"model_repo: MODELS\nglobal: {{model_control_mode: {said}}}")
    assert (node.workers[0].model_control_mode, node.notes) == (meant, ())


def test_a_backend_without_devices_is_refused_with_the_three_remedies(loader: Loader) -> None:
    """The sentence says what each source answered, and the ways out."""
    problem = loader.problem("model_repo: MODELS\nglobal: {runtime: {backend: GPU}}")
    for said in ("got cuda", "no device is visible (NVML)", "--gpus all", "REACTANT_GPUS", "--backend cpu"):
        assert said in problem


def test_the_default_backend_is_the_installed_runtimes(loader: Loader) -> None:
    """A CUDA build serves on CUDA unless told otherwise."""
    host = make_host("0", "1", backend=Backend.CUDA)
    assert [worker.device for worker in loader.load(facts=host).workers] == ["0", "1"]
    assert [worker.device for worker in loader.load(facts=host, backend="cpu").workers] == [""]


# --- the shipped files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["node.yaml", "node.default.yaml"])
def test_the_shipped_files_load_without_a_note(loader: Loader, name: str) -> None:
    """What operators start from is right, and promises nothing that has no effect."""
    text = (CONFIG / name).read_text().replace("/var/lib/reactantserver/models", "MODELS")
    (worker,) = loader.load(text, facts=(host := make_host("0", backend=Backend.CUDA))).workers
    assert loader.load(text, facts=host).notes == ()
    assert worker.runtime.backend is Backend.CUDA


def test_the_annotated_file_shows_the_defaults(loader: Loader) -> None:
    """Taking its lines over changes nothing: every value in it is the default, but for the backend and the workers."""
    text = (CONFIG / "node.yaml").read_text().replace("/var/lib/reactantserver/models", "MODELS")
    host = make_host("0", "1", backend=Backend.CUDA)
    assert loader.load(text, facts=host) == loader.load(facts=host)
