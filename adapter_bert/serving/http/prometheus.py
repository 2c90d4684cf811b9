"""The server's metrics for Prometheus."""

import contextlib
from typing import Any, Callable, Dict, Iterable, Tuple

import prometheus_client

_BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one server.

    Args:
      queue_rows, tasks, tasks_in_memory: functions that return the gauges' values.
    """

    def __init__(
        self,
        queue_rows: Callable[[], float],
        tasks: Callable[[], float],
        tasks_in_memory: Callable[[], float],
    ):
        self._registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        at: Dict[str, Any] = {"namespace": "adapter_bert", "registry": self._registry}
        self._requests = prometheus_client.Counter(
            "requests", "Requests answered, by endpoint and status.", ["endpoint", "status"], **at
        )
        self._seconds = prometheus_client.Histogram(
            "request_seconds",
            "From the end of a request's head to its answer.",
            ["endpoint"],
            buckets=_SECONDS_BUCKETS,
            **at,
        )
        self._instances = prometheus_client.Counter(
            "instances", "Instances answered, by task.", ["task"], **at
        )
        self._task_seconds = prometheus_client.Histogram(
            "task_seconds",
            "From the end of a request's body to its answer, by task.",
            ["task"],
            buckets=_SECONDS_BUCKETS,
            **at,
        )
        self._batch_rows = prometheus_client.Histogram(
            "batch_rows", "Rows of a batch.", buckets=_BATCH_SIZE_BUCKETS, **at
        )
        self._batch_seconds = prometheus_client.Histogram(
            "batch_seconds", "Time to compute a batch.", buckets=_SECONDS_BUCKETS, **at
        )
        for name, text, function in (
            ("queue_rows", "Rows of requests without an answer.", queue_rows),
            ("tasks", "Tasks served.", tasks),
            ("tasks_in_memory", "Versions of tasks whose adapters are in memory.", tasks_in_memory),
        ):
            prometheus_client.Gauge(name, text, **at).set_function(function)

    def count_request(self, endpoint: str, status: Any, seconds: float) -> None:
        """Counts and times an answered request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def count_batch(self, rows: int, seconds: float) -> None:
        """Counts and times a batch."""
        self._batch_rows.observe(rows)
        self._batch_seconds.observe(seconds)

    def count_instances(self, tasks: Iterable[str]) -> None:
        """Counts one answered instance for each name of a task."""
        for task in tasks:
            self._instances.labels(task).inc()

    def count_tasks(self, tasks: Iterable[str], seconds: float) -> None:
        """Counts and times an answered request, for each of its tasks."""
        for task in tasks:
            self._task_seconds.labels(task).observe(seconds)

    def remove_task(self, task: str) -> None:
        """Drops the metrics of a removed task."""
        for metric in (self._instances, self._task_seconds):
            with contextlib.suppress(KeyError):
                metric.remove(task)

    def render(self) -> Tuple[bytes, str]:
        """Returns all metrics in Prometheus' format: (bytes, content type)."""
        content = prometheus_client.generate_latest(self._registry)
        return content, prometheus_client.CONTENT_TYPE_LATEST
