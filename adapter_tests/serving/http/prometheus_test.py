"""Tests of prometheus.py with the parser of Prometheus' own client."""

from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("prometheus_client", reason="requirements-serving.txt is not installed")

# isort: split
import prometheus_client
from prometheus_client import parser

from adapter_bert.serving.http import prometheus
from adapter_bert.serving.http.prometheus import Metrics


def values(metrics):
    """Returns a dict (name, *labels) → value of all exported samples."""
    content, _ = metrics.render()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parser.text_string_to_metric_families(content.decode())
        for sample in family.samples
    }


def new_metrics(**options):
    options = {"is_served": lambda task: True, **options}
    return Metrics(queue_rows=lambda: 7, tasks=lambda: 5, tasks_in_memory=lambda: 3, **options)


class ServingMetricsTest(tf.test.TestCase):
    def test_requests_batches_and_instances_are_counted(self):
        metrics = new_metrics()
        metrics.count_request("predict", 200, 0.03)
        metrics.count_request("predict", 200, 0.3)
        metrics.count_request("predict", 404, 0.001)
        metrics.count_batch(3, 0.02)
        metrics.count_instances(["sms", "stars", "sms"])
        found = values(metrics)
        for key, value in (
            (("requests_total", "200", "predict"), 2),
            (("requests_total", "404", "predict"), 1),
            (("request_seconds_count", "predict"), 3),
            (("request_seconds_bucket", "0.025", "predict"), 1),
            (("request_seconds_bucket", "0.05", "predict"), 2),
            (("batch_rows_bucket", "2.0"), 0),
            (("batch_rows_bucket", "4.0"), 1),
            (("batch_rows_sum",), 3),
            (("batch_seconds_count",), 1),
            (("instances_total", "sms"), 2),
            (("instances_total", "stars"), 1),
            (("queue_rows",), 7),
            (("tasks",), 5),
            (("tasks_in_memory",), 3),
        ):
            self.assertEqual(found[("adapter_bert_" + key[0], *key[1:])], value, key)

    def test_lines_of_tasks_equal_those_of_the_client(self):
        removed, reference = set(), prometheus_client.CollectorRegistry()
        metrics = new_metrics(is_served=lambda task: task not in removed)
        options = {"namespace": "adapter_bert", "registry": reference}
        instances = prometheus_client.Counter(
            "instances", "Instances answered, by task.", ["task"], **options
        )
        seconds = prometheus_client.Histogram(
            "task_seconds",
            "From the end of a request's body to its answer, by task.",
            ["task"],
            buckets=prometheus._SECONDS_BUCKETS,
            **options,
        )
        with mock.patch("time.time", return_value=1796000000.25):
            for task, value in (
                *(("sms", 0.0123), ("sms", 0.005), ("b.c-d_1", 31.5)),
                *(("sms", 30.0), ("b.c-d_1", 0)),
            ):
                metrics.count_instances([task, task])
                instances.labels(task).inc(2)
                metrics.count_tasks([task], value)
                seconds.labels(task).observe(value)
        expected = prometheus_client.generate_latest(reference).decode()
        self.assertIn(expected, metrics.render()[0].decode())
        removed.add("sms")
        self.assertNotIn("sms", metrics.render()[0].decode())

    def test_more_tasks_than_the_limit_have_no_lines(self):
        for max_tasks, is_listed in ((5, True), (4, False)):
            metrics = new_metrics(max_tasks=max_tasks)
            metrics.count_instances(["sms"])
            metrics.count_tasks(["sms"], 0.1)
            found = values(metrics)
            self.assertEqual(("adapter_bert_instances_total", "sms") in found, is_listed)
            self.assertEqual(("adapter_bert_task_seconds_count", "sms") in found, is_listed)
            self.assertEqual(found[("adapter_bert_tasks",)], 5)
            self.assertEqual(bool(metrics._counts), is_listed)

    def test_servers_do_not_share_counts(self):
        one, two = new_metrics(), new_metrics()
        one.count_batch(1, 0.1)
        self.assertEqual(values(two)[("adapter_bert_batch_rows_count",)], 0)
