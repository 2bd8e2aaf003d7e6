"""Environment variables: the table covers every key, and a misspelt name never passes for nothing."""

from __future__ import annotations

import pytest

from reactant_node.config.environment import VARIABLES, applied_variables, misspelt_variables, read_environment
from reactant_node.config.problems import Problems
from reactant_node.errors import ConfigError


def read(environ: dict[str, str]) -> tuple[dict[str, object], dict[str, object], dict[str, object]]:
    """What the environment says for workers, gateway and node; nothing in it may be wrong."""
    problems = Problems()
    found = read_environment(environ, problems)
    problems.raise_if_any()
    return found.worker, found.gateway, found.node


def problems_of(environ: dict[str, str]) -> tuple[str, ...]:
    """What is wrong in it; something has to be."""
    with pytest.raises(ConfigError) as raised:
        read(environ)
    return raised.value.problems


def test_a_name_is_the_keys_path() -> None:
    """Upper-case, with underscores, behind the prefix; lists have their own separators."""
    environ = {
        "INFERENCE_SERVER_SCHEDULER_MAX_QUEUE_DEPTH": "+7",
        "INFERENCE_SERVER_RUNTIME_BACKEND": "GPU",
        "INFERENCE_SERVER_MODELS_INCLUDE": "a:b:",
        "INFERENCE_SERVER_MODEL_DIRS": "/a:/b",
        "REACTANT_GATEWAY_WORKER_CLIENT_REQUEST_TIMEOUT_SECONDS": "1e1",
        "REACTANT_GATEWAY_WORKERS": "a:1, b:2",
        "REACTANT_GATEWAY_STARTUP_WAIT_SECONDS": "-1",
        "REACTANT_ROLE": " Workers ",
        "REACTANT_CPU_WORKERS": "2",
    }
    assert read(environ) == (
        {"models_include": ("a", "b"), "runtime.backend": "cuda", "scheduler.max_queue_depth": 7},
        {"endpoints": ("a:1", "b:2"), "startup_wait_seconds": "inf", "worker_client.request_timeout_seconds": 10.0},
        {"model_dirs": ("/a", "/b"), "role": "workers", "cpu_workers": 2},
    )


@pytest.mark.parametrize("word", ["1", "true", "YES", " On "])
def test_words_for_yes(word: str) -> None:
    """1, true, yes and on, in any case."""
    assert read({"INFERENCE_SERVER_RUNTIME_ALLOW_CPU_FALLBACK": word})[0] == {"runtime.allow_cpu_fallback": True}


@pytest.mark.parametrize("word", ["0", "False", "no", "OFF"])
def test_words_for_no(word: str) -> None:
    """0, false, no and off, in any case."""
    assert read({"INFERENCE_SERVER_RUNTIME_ALLOW_CPU_FALLBACK": word})[0] == {"runtime.allow_cpu_fallback": False}


def test_an_empty_text_is_not_set() -> None:
    """As compose files and unit files leave it."""
    assert read(dict.fromkeys(VARIABLES, "")) == ({}, {}, {})
    assert applied_variables(dict.fromkeys(VARIABLES, "")) == ()


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_every_variable_is_checked_and_its_problem_bears_its_name(name: str) -> None:
    """No value of any of them is taken unseen."""
    (problem,) = problems_of({name: "\x1b[0m"})
    assert problem.startswith(f"{name}: got '\\x1b[0m'; ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("INFERENCE_SERVER_RUNTIME_BACKENDS", "unknown variable; did you mean INFERENCE_SERVER_RUNTIME_BACKEND?"),
        ("REACTANT_GATEWAY_LISTEN_GPRC", "unknown variable; did you mean REACTANT_GATEWAY_LISTEN_GRPC?"),
        ("REACTANT_SUPERVISOR_RESTARTS", "unknown variable; did you mean REACTANT_SUPERVISOR_MAX_RESTARTS?"),
        ("INFERENCE_SERVER_METRIC_PORT", "unknown variable; did you mean"),
        ("INFERENCE_SERVER_BATCH_POLICY_MAX_DELAY", "it was removed: coalescing needs no window"),
        ("INFERENCE_SERVER_RUNTIME_RESIDENCY_MODE", "it was removed: use model_control_mode"),
    ],
)
def test_an_unknown_name_of_ours_is_an_error(name: str, said: str) -> None:
    """With the nearest one there is, or what became of it."""
    (problem,) = problems_of({name: "5"})
    assert problem.startswith(f"{name}: {said}")


def test_what_kubernetes_adds_for_a_service_of_that_name_is_none_of_ours() -> None:
    """A service called `reactant-gateway` or `inference-server` puts such variables into every container."""
    address = "tcp://10.0.0.1:8001"
    links = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "8001",
        "SERVICE_PORT_GRPC": "8001",
        "PORT": address,
        "PORT_8001_TCP": address,
        "PORT_8001_TCP_PROTO": "tcp",
        "PORT_8001_TCP_PORT": "8001",
        "PORT_8001_TCP_ADDR": "10.0.0.1",
        "GRPC_SERVICE_HOST": "10.0.0.1",
        "GRPC_PORT": address,
    }
    environ = {
        f"{prefix}_{name}": it for prefix in ("REACTANT_GATEWAY", "INFERENCE_SERVER") for name, it in links.items()
    }
    assert read(environ) == ({}, {}, {})


def test_a_slip_elsewhere_is_pointed_out() -> None:
    """Other REACTANT_* names may be somebody else's: no error, but a word where one looks like ours."""
    environ = dict.fromkeys(
        (
            "REACTANT_WORKER_THREAD",
            "REACTANT_GPU",
            "REACTANT_CACHE_DIR",
            "REACTANT_WORKER_NAME",
            "REACTANT_SOMETHING_ELSE",
        ),
        "1",
    )
    assert read(environ) == ({}, {}, {})
    assert list(misspelt_variables(environ)) == [
        "REACTANT_GPU: is not read; did you mean REACTANT_GPUS?",
        "REACTANT_WORKER_THREAD: is not read; did you mean REACTANT_WORKER_THREADS?",
    ]
