"""One training on several devices or machines: which there are, and what makes them one.

Every strategy computes the step of the whole batch: each replica takes an equal part of it, and
`optimization.take_step` averages the gradients of what trains, before it clips them.
"""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from adapter_bert.common import devices
from adapter_bert.common.errors import UserError
from adapter_bert.training import cluster


class Distribution(NamedTuple):
    """What trains together.

    Attributes:
      kind: a key of `configs.DISTRIBUTIONS`.
      num_replicas: on how many devices, over all machines.
      workers: `cluster.Cluster` of the machines.
    """

    kind: str = "none"
    num_replicas: int = 1
    workers: cluster.Cluster = cluster.Cluster()

    def strategy(self):
        """The tf.distribute.Strategy; None without one. To be called when all workers are there."""
        if self.kind == "multi_worker":
            return tf.distribute.experimental.MultiWorkerMirroredStrategy()
        if self.kind == "mirrored":
            # TensorFlow's own way to add up what lies on several CPU devices does not come back.
            cross_device_ops = None if devices.has_gpu() else tf.distribute.ReductionToOneDevice()
            return tf.distribute.MirroredStrategy(
                _local_devices(), cross_device_ops=cross_device_ops
            )
        return None


def choose(kind, use_tpu):
    """What a run is distributed over.

    Args:
      kind: a key of `configs.DISTRIBUTIONS`.
      use_tpu: bool, what the user asked for.

    Returns:
      `Distribution`.

    Raises:
      UserError: it goes against use_tpu, TF_CONFIG, this TensorFlow, or what is in this machine.
    """
    workers = cluster.from_environment()
    flag = f"--distribution={kind}"
    if kind != "none" and use_tpu:
        raise UserError(f"{flag} goes with GPUs and CPUs, --use_tpu=True with a TPU; give one.")
    if kind != "multi_worker" and len(workers.addresses) > 1 and not use_tpu:
        raise UserError(
            f"{cluster.VARIABLE} names a cluster of {len(workers.addresses)} workers, which train"
            f" together with --distribution=multi_worker, not with {flag}."
        )
    if kind == "none":
        return Distribution()
    devices.require_tensorflow_2(flag)
    if kind == "multi_worker":
        if not workers.addresses:
            raise UserError(f"{flag} needs {cluster.VARIABLE}, which is not set.")
        devices_per_worker = max(1, len(_gpus()))
        return Distribution(kind, devices_per_worker * len(workers.addresses), workers)
    num_devices = len(_local_devices())
    if num_devices == 1 and not _gpus():
        raise UserError(
            f"{flag} trains on the GPUs of this machine, of which TensorFlow sees none."
        )
    return Distribution(kind, num_devices)


def _gpus():
    return tf.config.experimental.list_physical_devices("GPU")


def _local_devices():
    """The names of this machine's GPUs; where it has none, of its logical CPU devices."""
    kind = "GPU" if _gpus() else "CPU"
    return [device.name for device in tf.config.experimental.list_logical_devices(kind)]
