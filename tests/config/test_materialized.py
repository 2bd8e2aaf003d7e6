"""The materialized node file holds the whole node: loaded again, it comes to an equal configuration."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactant_node.config.documents import parse_document, render_document
from reactant_node.config.loader import Devices, Host
from reactant_node.config.materialized import materialized
from reactant_node.config.schema import Backend, GpuSetting, NodeConfig
from tests.support.config_nodes import Loader, make_host

seconds = st.floats(0.001, 10_000) | st.integers(1, 100)
fractions = st.floats(0.001, 0.999)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True).filter(
    lambda name: name not in ("supervisor", "gateway")
)


def mappings(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with any of these keys."""
    return st.fixed_dictionaries({}, optional=keys)


policies = mappings(
    weight=fractions,
    residency=st.sampled_from(["unpinned", "system", "pinned_device"]),
    pin_to_gpu=st.booleans(),
    max_batch_size=st.integers(1, 64),
)
worker_keys = mappings(
    models_include=st.lists(names, max_size=3),
    model_control_mode=st.sampled_from(["dynamic", "static", "explicit", "poll"]),
    model_poll_seconds=seconds,
    cache_dir=st.sampled_from(["", "/var/cache/x"]),
    runtime=mappings(
        device_ordinal=st.integers(0, 3),
        mem_fraction=fractions,
        preallocate=st.booleans(),
        allow_cpu_fallback=st.booleans(),
        autotune=st.booleans(),
        shared_host_weights_mode=st.sampled_from(["600", "666", "0640"]),
    ),
    scheduler=mappings(
        discipline=st.sampled_from(["fair", "FIFO", "edf"]),
        max_queue_depth=st.integers(1, 9999),
        dispatch_timeout_seconds=seconds,
        models=st.dictionaries(
            st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1), policies
        ),
    ),
    endpoints=mappings(
        host=st.sampled_from(["127.0.0.1", "0.0.0.0", "::1"]), max_concurrent_requests=st.integers(0, 99)
    ),
    grpc=mappings(max_recv_msg_bytes=st.integers(1, 2**31 - 1), max_send_msg_bytes=st.integers(1, 2**31 - 1)),
)
gateway_keys = mappings(
    listen=mappings(
        grpc=st.sampled_from(["[::1]:8001", "0.0.0.0:0", ":8001", "localhost:1"]),
        metrics=st.sampled_from(["[::]:8002", "127.0.0.1:0"]),
    ),
    endpoints=st.lists(st.sampled_from(["a:1", "b:1", "[::1]:1"]), min_size=1),
    rpcs=st.sampled_from(["node", "minimal"]),
    health_interval_seconds=seconds,
    scheduling=mappings(mode=st.sampled_from(["round_robin", "least_outstanding"])),
    worker_client=mappings(request_timeout_seconds=seconds, max_concurrent_streams=st.integers(1, 99)),
    grpc=mappings(max_recv_msg_bytes=st.integers(1, 999), max_concurrent_requests_per_worker=st.integers(0, 99)),
)
top_keys = mappings(
    role=st.sampled_from(["all", "workers", "gateway"]),
    gpus=st.sampled_from(["auto", 4, ["0", 3, "GPU-x", "MIG-y"]]),
    log_format=st.sampled_from(["text", "json"]),
    base_port=st.sampled_from([0, 7000]),
    metrics_base_port=st.sampled_from([0, 7100]),
    shared_host_weights=st.booleans(),
    supervisor=mappings(
        max_restarts=st.integers(0, 9), exit_timeout_seconds=seconds, heartbeat_timeout_seconds=seconds
    ),
    models=mappings(allow_code=st.booleans()),
)


def named(given_names: list[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """An entry for each name."""
    entries = (st.builds(lambda keys, name: {**keys, "name": name}, worker_keys, st.just(name)) for name in given_names)
    return st.tuples(*entries).map(list)


entries = st.lists(names, max_size=4, unique=True).flatmap(named)


def again(loader: Loader, node: NodeConfig) -> NodeConfig:
    """What the node's own file comes to on a host where nothing can be detected."""

    def detect(gpus: GpuSetting) -> Devices:
        assert gpus is not None, "the materialized file leaves nothing to detect"
        return make_host().detect(gpus)

    return loader.load(render_document(materialized(node)), facts=Host(1, Backend.CPU, detect))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    top=top_keys,
    common=worker_keys,
    workers=entries,
    gateway=gateway_keys,
    cuda=st.booleans(),
    threads=st.sampled_from(["", "3"]),
)
def test_it_loads_again_to_an_equal_configuration(
    loader: Loader,
    top: dict[str, Any],
    common: dict[str, Any],
    workers: list[dict[str, Any]],
    gateway: dict[str, Any],
    cuda: bool,
    threads: str,
) -> None:
    """Whatever was set and wherever: devices, ports, threads and settings are all in it, and nothing is detected."""
    common["runtime"] = {**common.get("runtime", {}), "backend": "cuda" if cuda else "cpu"}
    gateway.setdefault("endpoints", ["c:1"])
    document = {**top, "model_repo": "MODELS", "global": common, "gateway": gateway}
    if workers:
        document["workers"] = workers
    host = make_host("4", "5", "6", "7", cpus=9)
    node = loader.load(render_document(document), {"REACTANT_WORKER_THREADS": threads}, facts=host)
    assert again(loader, node) == node


def test_it_is_a_plain_document(loader: Loader) -> None:
    """No tags, no anchors: any YAML reader takes it, ours included."""
    text = render_document(materialized(loader.load("model_repo: [MODELS, MODELS]\nmodels: {m: [worker0]}")))
    assert not any(sign in text for sign in "!&*")
    assert parse_document(text, "node.yaml") == materialized(
        loader.load("model_repo: [MODELS, MODELS]\nmodels: {m: [worker0]}")
    )
