"""Runs run_classifier.py for `distribution_test`: without the head's dropout, on several devices.

    python -m adapter_tests.support.distributed_training DEVICES LOST_AFTER FLAG...

Splits the CPU into DEVICES devices. The process kills itself after LOST_AFTER steps, 0 for never.
"""

import contextlib
import os
import signal
import sys
from unittest import mock

import tensorflow.compat.v1 as tf

import modeling
import run_classifier
from adapter_bert.ops import xla
from adapter_bert.shell import cli
from adapter_bert.training import hooks


@contextlib.contextmanager
def without_head_dropout():
    """Removes the head's dropout, which has no setting, and XLA, which compiles per replica."""
    dropout = mock.patch.object(modeling, "dropout", lambda tensor, *_, **__: tensor)
    with dropout, mock.patch.object(xla, "can_fuse", lambda: False):
        yield


def split_cpu(num_devices):
    (cpu,) = tf.config.experimental.list_physical_devices("CPU")
    devices = [tf.config.experimental.VirtualDeviceConfiguration()] * num_devices
    tf.config.experimental.set_virtual_device_configuration(cpu, devices)


def kill_after(num_steps):
    after_run, steps = hooks.StopOnInterrupt.after_run, []

    def counted(hook, run_context, run_values):
        after_run(hook, run_context, run_values)
        steps.append(run_context)
        if len(steps) == num_steps:
            os.kill(os.getpid(), signal.SIGKILL)

    hooks.StopOnInterrupt.after_run = counted


if __name__ == "__main__":
    num_devices, lost_after = map(int, sys.argv[1:3])
    del sys.argv[1:3]
    split_cpu(num_devices)
    kill_after(lost_after)
    run_classifier.define_flags()
    with without_head_dropout():
        cli.run(run_classifier.main)
