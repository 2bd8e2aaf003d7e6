"""A worker's snapshots as metric families and as the admin page. Read at scrape time, from any thread."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from reactant_node import __version__
from reactant_node.clock import NS_PER_SECOND, Clock
from reactant_node.config.schema import WorkerConfig
from reactant_node.telemetry.admin import ModelRow, Status, WorkerRow
from reactant_node.telemetry.metrics import Metric, Rendered, family, process_families, render, with_labels
from reactant_node.worker.catalog import Catalog, ModelState
from reactant_node.worker.dispatch import Dispatcher
from reactant_node.worker.service import InferenceService

QUANTILES = (0.5, 0.99)


class WorkerObserver:
    """Joins the catalog's, dispatcher's and service's snapshots. Holds references, no state of its own."""

    def __init__(
        self, config: WorkerConfig, catalog: Catalog, dispatcher: Dispatcher, service: InferenceService, clock: Clock
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._service = service
        self._clock = clock
        self._started_ns = clock.now_ns()

    def metrics(self, accept: str) -> Rendered:
        """The exposition, with the constant labels of this worker on every line."""
        labels = {"worker": self._config.name}
        if self._config.device:
            labels["gpu"] = self._config.device
        return render(with_labels(chain(self._families(), process_families()), labels), accept)

    def status(self) -> Status:
        """What the admin page shows of this worker."""
        reason = self._service.not_ready_reason()
        return Status(
            version=__version__,
            role="worker",
            uptime_seconds=(self._clock.now_ns() - self._started_ns) / NS_PER_SECOND,
            workers=(WorkerRow(self._config.name, reason or "ready"),),
            models=tuple(
                ModelRow(model.name, model.version, model.state, model.reason)
                for model in self._catalog.models.values()
            ),
        )

    def _families(self) -> Iterator[Metric]:
        yield from self._service_families()
        yield from self._dispatch_families()
        ready = sum(model.state is ModelState.READY for model in self._catalog.models.values())
        yield family("worker_models_loaded", [((), ready)])
        config = self._config
        identity = (config.device, config.model_control_mode, config.scheduler.discipline, "self_managed")
        yield family("worker_info", [(identity, 1)])

    def _service_families(self) -> Iterator[Metric]:
        service = self._service.statistics()
        calls = service.calls
        yield family(
            "worker_requests_total", [((model, status), count) for (_, model, status), count in calls.requests.items()]
        )
        yield family(
            "worker_request_latency_seconds", [((model,), latency) for (_, model), latency in calls.latencies.items()]
        )
        yield family("worker_inflight_requests", [((), service.in_flight)])
        yield family("worker_max_concurrent_requests", [((), self._config.endpoints.max_concurrent_requests)])
        yield family("worker_requests_shed_total", [((), calls.shed)])

    def _dispatch_families(self) -> Iterator[Metric]:
        dispatch = self._dispatcher.statistics()
        counters, models = dispatch.counters, dispatch.scheduler.models
        yield family("worker_dispatch_total", [((model,), it.executions) for model, it in counters.items()])
        yield family(
            "worker_compute_seconds_total",
            [((model,), it.compute_ns / NS_PER_SECOND) for model, it in counters.items()],
        )
        yield family("worker_requests_served_total", [((model,), it.requests) for model, it in models.items()])
        yield family("worker_rows_served_total", [((model,), it.rows) for model, it in models.items()])
        yield family("worker_queue_depth", [((model,), it.queue_depth) for model, it in models.items()])
        yield family(
            "worker_model_max_batch_size", [((model,), it.effective_max_batch_size) for model, it in models.items()]
        )
        yield family(
            "worker_queue_wait_seconds",
            [
                ((model, str(quantile)), it.wait_ns(quantile) / NS_PER_SECOND)
                for model, it in models.items()
                if it.waits_ns
                for quantile in QUANTILES
            ],
        )
