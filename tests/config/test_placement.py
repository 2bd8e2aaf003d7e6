"""Which workers there are, where each listens, and what it computes with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.config.placement import MAX_THREADS, Plan, place, synthesized
from reactant_node.config.problems import Problems
from reactant_node.config.schema import Backend, ListenConfig, ModelPolicy, NodeConfig, Role
from reactant_node.config.settings import Settings
from reactant_node.errors import ConfigError
from tests.support.config_nodes import Loader, make_host

TWO = "model_repo: MODELS\nworkers: [{name: a}, {name: b}]\n"
GPUS = make_host("0", "GPU-x", "MIG-y", backend=Backend.CUDA)


def ports_of(node: NodeConfig) -> list[tuple[str, int, int]]:
    """Host, port and metrics port of each worker."""
    return [(it.endpoints.host, it.endpoints.port, it.endpoints.metrics_port) for it in node.workers]


def test_a_worker_is_made_for_each_device(loader: Loader) -> None:
    """worker0…, in the order of the devices, whose selectors stay as they were written."""
    workers = loader.load(facts=GPUS).workers
    assert [(it.name, it.device) for it in workers] == [("worker0", "0"), ("worker1", "GPU-x"), ("worker2", "MIG-y")]


def test_devices_go_by_position_or_by_gpu(loader: Loader) -> None:
    """`gpu: k` is the k-th visible device; what is left over is noted."""
    node = loader.load("model_repo: MODELS\nworkers: [{name: a, gpu: 2}, {name: b}]", facts=GPUS)
    assert [(it.name, it.device) for it in node.workers] == [("a", "MIG-y"), ("b", "GPU-x")]
    assert node.notes[0] == "workers: no worker is listed for the visible device 0"


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ("[{name: a}, {name: b}, {name: c}, {name: d}]", "workers.d: would take device 3 of 3"),
        ("[{name: a, gpu: 7}]", "workers.a: would take device 7 of 3"),
        ("[{name: a, gpu: 1}, {name: b, gpu: 1}]", "workers.b: device 1 is a's already"),
        ("[{name: a, gpu: 1}, {name: b}]", "workers.b: device 1 is a's already"),
    ],
)
def test_a_device_has_one_worker_and_a_worker_one_device(loader: Loader, workers: str, said: str) -> None:
    """More workers than devices, or a device used twice, is an error."""
    assert loader.problem(f"model_repo: MODELS\nworkers: {workers}", facts=GPUS).startswith(said)


def test_a_cpu_node_leaves_found_devices_alone_and_says_so(loader: Loader) -> None:
    """Its workers see none; a `gpu` in the file does not keep it from starting."""
    node = loader.load("model_repo: MODELS\nworkers: [{name: a, gpu: 2}, {name: b}]", facts=GPUS, backend="cpu")
    assert [it.device for it in node.workers] == ["", ""]
    assert node.notes == (
        "3 devices are visible (NVML) and unused: the backend is cpu",
        "workers.a.gpu: 2 has no effect: the backend is cpu",
    )


def test_a_cpu_node_has_as_many_workers_as_were_asked_for(loader: Loader) -> None:
    """One, REACTANT_CPU_WORKERS, or --workers."""
    environ = {"REACTANT_CPU_WORKERS": "3"}
    assert [len(loader.load(environ=it).workers) for it in ({}, environ)] == [1, 3]
    assert len(loader.load(environ=environ, workers="2").workers) == 2
    assert loader.problem(workers="0").startswith("--workers: got '0'; use a whole number from 1 to 64")


def test_where_devices_were_named_they_decide_the_number(loader: Loader) -> None:
    """An operator's list of devices makes one worker each on the CPU backend too; another number is noted."""
    node = loader.load(facts=make_host("0", "1", stated=True), workers="4")
    assert [it.device for it in node.workers] == ["0", "1"]
    assert node.notes == (
        "--workers, REACTANT_CPU_WORKERS: 4 has no effect: there is one worker for each of the 2 devices",
    )


def test_listed_workers_decide_the_number_too(loader: Loader) -> None:
    """Another number is noted."""
    node = loader.load(TWO, {"REACTANT_CPU_WORKERS": "3"})
    assert [it.name for it in node.workers] == ["a", "b"]
    assert node.notes == ("--workers, REACTANT_CPU_WORKERS: no effect: the node file lists the workers",)


def test_an_entry_may_repeat_the_nodes_backend(loader: Loader) -> None:
    """As a file does in which every worker is written out; another one is refused."""
    text = "model_repo: MODELS\nworkers: [{name: a, runtime: {backend: GPU}}]"
    assert loader.load(text, facts=GPUS).workers[0].runtime.backend is Backend.CUDA
    assert loader.problem(text, facts=GPUS, backend="cpu").startswith("workers.a.runtime.backend: got 'cuda', and the")


@pytest.mark.parametrize(
    ("settings", "noted"),
    [
        ("", True),
        ("runtime: {shared_host_weights: true}", False),
        ("runtime: {weight_cache_fraction: 0}", False),
        ("runtime: {backend: cpu}", False),
    ],
)
def test_several_device_workers_read_the_weights_each(loader: Loader, settings: str, noted: bool) -> None:
    """What that takes of host memory is said, with the settings that are about it."""
    node = loader.load(f"model_repo: MODELS\nglobal: {{{settings}}}", facts=GPUS)
    found = [note for note in node.notes if note.startswith("each of the 3 workers reads")]
    assert bool(found) == noted
    assert all("shared_host_weights: true" in note and "weight_cache_fraction: 0" in note for note in found)


def test_a_doubt_about_the_devices_is_noted_where_they_are_used(loader: Loader) -> None:
    """Present but perhaps unusable: the node starts, and says so."""
    host = make_host("0", backend=Backend.CUDA, doubt="known by /dev alone")
    assert loader.load(facts=host).notes == ("known by /dev alone",)


# --- ports ----------------------------------------------------------------------------------------------------------


def test_ports_are_counted_from_their_bases(loader: Loader) -> None:
    """base_port + i on loopback in role all; an entry's own port is not counted."""
    assert ports_of(loader.load(TWO)) == [("127.0.0.1", 8080, 9100), ("127.0.0.1", 8081, 9101)]
    text = (
        "model_repo: MODELS\nbase_port: 7000\nmetrics_base_port: 0\n"
        "workers: [{name: a, port: 5}, {name: b}, {name: c, endpoints: {port: 6, metrics_port: 7}}]"
    )
    assert [it[1:] for it in ports_of(loader.load(text))] == [(5, 0), (7001, 0), (6, 7)]


def test_workers_that_face_the_network_listen_where_they_were_told(loader: Loader) -> None:
    """In role workers: everywhere, or endpoints.host, or the entry's own host, or what --host says for all."""
    assert ports_of(loader.load(role="workers")) == [("0.0.0.0", 8080, 9100)]
    assert ports_of(loader.load(role="workers", host="127.0.0.5")) == [("127.0.0.5", 8080, 9100)]
    text = TWO.replace("{name: a}", "{name: a, host: '::1'}") + "global: {endpoints: {host: 10.0.0.1}}"
    node = loader.load(text, role="workers")
    assert [(it.endpoints.host, it.endpoints.metrics_host) for it in node.workers] == [("::1",) * 2, ("10.0.0.1",) * 2]
    assert node.gateway is None
    node = loader.load(text, {"INFERENCE_SERVER_ENDPOINTS_HOST": "10.0.0.2"}, role="workers")
    assert {it.endpoints.host for it in node.workers} == {"10.0.0.2"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("base_port: 9100\n", "workers.a.metrics_port: got 9100, which is workers.a.port's too"),
        ("base_port: 8001\n", "workers.a.port: got 8001, which is listen.grpc's too"),
        ("metrics_base_port: 8001\n", "workers.a.metrics_port: got 8001, which is listen.grpc's too"),
        ("base_port: 65535\n", "workers.b.port: got 65536; ports end at 65535"),
        ("gateway: {listen: {grpc: ':8002'}}\n", "listen.metrics: got 8002, which is listen.grpc's too"),
    ],
)
def test_ports_are_distinct(loader: Loader, more: str, said: str) -> None:
    """Of workers among each other, and of workers and the public side."""
    assert any(problem.startswith(said) for problem in loader.problems(TWO + more))


def test_one_port_for_all_workers_is_refused(loader: Loader) -> None:
    """A variable speaks for every worker, and they cannot share a port."""
    problem = loader.problem(TWO, {"INFERENCE_SERVER_ENDPOINTS_PORT": "8500"})
    assert problem.startswith("workers.b.port: got 8500, which is workers.a.port's too")


def test_any_free_port_collides_with_nothing(loader: Loader) -> None:
    """Port 0, for workers and the public side alike."""
    node = loader.load(TWO, base_port="0", metrics_base_port="0", grpc_port="0", metrics_port="0")
    assert ports_of(node) == [("127.0.0.1", 0, 0)] * 2
    assert (node.listen.grpc_port, node.listen.metrics_port) == (0, 0)


def test_where_a_worker_was_told_to_listen_in_vain_is_noted(loader: Loader) -> None:
    """A sole worker has the public ports; workers behind a gateway are on loopback, each with its own port."""
    text = "model_repo: MODELS\nworkers: [{name: a, port: 8080, host: 127.0.0.1}]"
    assert loader.load(text, {"INFERENCE_SERVER_ENDPOINTS_METRICS_PORT": "8002"}).notes == tuple(
        f"endpoints.{what} has no effect: the only worker of role all takes the public ports, listen.grpc and "
        "listen.metrics"
        for what in ("host: '127.0.0.1'", "port: 8080")
    )
    host, port = loader.load(TWO + "global: {endpoints: {host: 0.0.0.0, port: 8500}}").notes
    assert host.startswith("endpoints.host: '0.0.0.0' has no effect: in role all the gateway listens at listen.grpc")
    assert port == "endpoints.port: 8500 has no effect: each worker has its own: see base_port"


# --- threads and policies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "workers", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (1, 4, 1), (64, 2, 16), (15, 1, 15)]
)
def test_the_usable_cpus_are_shared_out(loader: Loader, cpus: int, workers: int, threads: int) -> None:
    """Rounded down, at least one, at most 16 each."""
    node = loader.load(facts=make_host(cpus=cpus), workers=str(workers))
    assert {it.threads for it in node.workers} == {threads}
    assert node.threads_origin == ""


def test_threads_that_were_set_are_taken_as_they_are(loader: Loader) -> None:
    """REACTANT_WORKER_THREADS for all, without the cap; else an entry's own."""
    text = "model_repo: MODELS\nworkers: [{name: a, threads: 3}, {name: b}]"
    node = loader.load(text)
    assert ([it.threads for it in node.workers], node.threads_origin) == ([3, 4], "threads of the node file's workers")
    node = loader.load(text, {"REACTANT_WORKER_THREADS": "40"})
    assert ([it.threads for it in node.workers], node.threads_origin) == ([40, 40], "REACTANT_WORKER_THREADS")
    assert "got '0'" in loader.problem(environ={"REACTANT_WORKER_THREADS": "0"})


def test_policies_of_a_model_are_merged_key_by_key(loader: Loader) -> None:
    """An entry's over `global`; `models:` asks for the device where neither speaks of residency."""
    text = (
        "model_repo: MODELS\nmodels: {m: [a, b], n: [b], allow_code: true}\n"
        "global: {scheduler: {models: {m: {weight: 2, residency: pinned_system}}}}\n"
        "workers:\n- {name: a, scheduler: {models: {m: {weight: 3}, k: {pin_to_gpu: true, max_batch_size: 8}}}}\n"
        "- {name: b}"
    )
    first, second = loader.load(text).workers
    assert first.scheduler.models == {"m": ModelPolicy(3.0, "system"), "k": ModelPolicy(1.0, "device", 8)}
    assert second.scheduler.models == {"m": ModelPolicy(2.0, "system"), "n": ModelPolicy(1.0, "device")}
    assert first.allow_code
    assert second.allow_code


# --- the whole ------------------------------------------------------------------------------------------------------


@given(
    role=st.sampled_from([Role.ALL, Role.WORKERS]),
    devices=st.integers(0, 12),
    cpu_workers=st.integers(1, 12),
    base_port=st.integers(0, 65535),
    metrics_base_port=st.integers(0, 65535),
    cpus=st.integers(1, 512),
)
def test_what_is_placed_without_a_problem_fits_together(
    role: Role, devices: int, cpu_workers: int, base_port: int, metrics_base_port: int, cpus: int
) -> None:
    """Names, devices and ports distinct, threads within bounds; and no good plan is refused."""
    selectors = tuple(map(str, range(devices)))
    backend = Backend.CUDA if devices else Backend.CPU
    plan = Plan(
        role=role,
        backend=backend,
        devices=selectors,
        entries=synthesized(devices or cpu_workers),
        common=Settings(),
        said={},
        base_port=base_port,
        metrics_base_port=metrics_base_port,
        listen=ListenConfig(),
        cpus=cpus,
        threads=None,
        placements={},
        model_dirs=("/m",),
        allow_code=False,
    )
    problems = Problems()
    workers, notes = place(plan, problems)
    public = {8001, 8002} if role is Role.ALL else set()
    ports = [port for it in workers for port in (it.endpoints.port, it.endpoints.metrics_port) if port]
    fit = plan.sole or (
        len(set(ports)) == len(ports) and not public & set(ports) and all(port <= 65535 for port in ports)
    )
    if not fit:
        with pytest.raises(ConfigError):
            problems.raise_if_any()
        return
    problems.raise_if_any()
    assert len(notes) == (devices > 1)
    assert [it.device for it in workers] == list(selectors or [""] * cpu_workers)
    assert len({it.name for it in workers}) == len(workers)
    assert all(1 <= it.threads <= MAX_THREADS for it in workers)
    assert sum(it.threads for it in workers) <= max(cpus, len(workers))
