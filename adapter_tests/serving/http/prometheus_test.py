"""Tests of prometheus.py with the parser of Prometheus' own client."""

import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("prometheus_client", reason="requirements-serving.txt is not installed")

# isort: split
from prometheus_client import parser

from adapter_bert.serving.http.prometheus import Metrics


def values(metrics):
    """Returns a dict (name, *labels) → value of all exported samples."""
    content, _ = metrics.render()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parser.text_string_to_metric_families(content.decode())
        for sample in family.samples
    }


def new_metrics():
    return Metrics(queue_rows=lambda: 7, tasks=lambda: 5, tasks_in_memory=lambda: 3)


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

    def test_servers_do_not_share_counts(self):
        one, two = new_metrics(), new_metrics()
        one.count_batch(1, 0.1)
        self.assertEqual(values(two)[("adapter_bert_batch_rows_count",)], 0)
