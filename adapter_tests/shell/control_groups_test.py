"""Tests of control_groups.py against files of Linux written by hand."""

import os
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.shell import control_groups

# The lines of a process's groups in version 1.
OLD = "9:name=systemd:/\n4:cpu,cpuacct:/docker/a1\n0::/\n"


class NumProcessorsTest(parameterized.TestCase, tf.test.TestCase):
    def limit(self, groups, files=(), processors=16, affinity=16):
        """Returns the number for the lines of a process's groups and files of quotas by path."""
        root = tempfile.mkdtemp(dir=self.get_temp_dir())
        for path, content in {"groups": groups, **dict(files)}.items():
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
            with open(f"{root}/{path}", "w") as writer:
                writer.write(content)
        with mock.patch.object(os, "cpu_count", return_value=processors), mock.patch.object(
            os, "sched_getaffinity", return_value=set(range(affinity)), create=True
        ):
            return control_groups.num_processors(f"{root}/groups", root)

    @parameterized.parameters(
        (16, "0::/\n", {}, 16),
        (5, "0::/\n", {}, 5),
        (16, "0::/\n", {"cpu.max": "max 100000\n"}, 16),
        (2, "0::/\n", {"cpu.max": "200000 100000\n"}, 16),
        (1, "0::/\n", {"cpu.max": "50000 100000\n"}, 16),
        (2, "0::/\n", {"cpu.max": "250000 100000\n"}, 16),
        (16, "0::/\n", {"cpu.max": "3200000 100000\n"}, 16),
        (3, "0::/pod/a b\n", {"pod/cpu.max": "300000 100000", "pod/a b/cpu.max": "max 1"}, 16),
        (1, "0::/pod/a\n", {"cpu.max": "4 1", "pod/cpu.max": "1 1", "pod/a/cpu.max": "2 1"}, 9),
        (4, OLD, {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 16),
        (16, OLD, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        (
            3,
            OLD,
            {
                "cpu/docker/a1/cpu.cfs_quota_us": "150000\n",
                "cpu/docker/a1/cpu.cfs_period_us": "50000\n",
            },
            7,
        ),
        (16, "4:cpuset:/a\n", {"cpu.max": "1 1"}, 16),
    )
    def test_the_smallest_of_affinity_and_quotas_counts(self, expected, groups, files, affinity):
        self.assertEqual(self.limit(groups, files, affinity=affinity), expected)


if __name__ == "__main__":
    tf.test.main()
