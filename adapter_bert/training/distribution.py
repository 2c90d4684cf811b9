"""The devices or machines that train together, and their distribution strategy.

Every strategy computes the same step as one device would for the whole batch: each replica takes an
equal part, and `optimization.create_optimizer` averages the gradients before it clips them.
"""

from typing import Any, List, NamedTuple

import tensorflow.compat.v1 as tf

from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster


class Distribution(NamedTuple):
    """The devices that train together.

    Attributes:
      kind: a key of `configs.DISTRIBUTIONS`.
      num_replicas: number of devices, over all machines.
      workers: `cluster.Cluster` of the machines.
    """

    kind: str = "none"
    num_replicas: int = 1
    workers: cluster.Cluster = cluster.Cluster()

    def strategy(self) -> Any:
        """Returns the tf.distribute.Strategy, or None; call it only once all workers are there."""
        if self.kind == "multi_worker":
            return tf.distribute.experimental.MultiWorkerMirroredStrategy()
        if self.kind == "mirrored":
            # TensorFlow's default reduction hangs with several CPU devices.
            cross_device_ops = None if devices.has_gpu() else tf.distribute.ReductionToOneDevice()
            return tf.distribute.MirroredStrategy(
                _local_devices(), cross_device_ops=cross_device_ops
            )
        return None


def choose(kind: str, use_tpu: bool) -> Distribution:
    """Returns the devices that a run is distributed over.

    Args:
      kind: a key of `configs.DISTRIBUTIONS`.
      use_tpu: bool, whether the run uses a TPU.

    Returns:
      `Distribution`.

    Raises:
      UserError: kind is incompatible with TF_CONFIG, this TensorFlow or this machine.
    """
    workers = cluster.from_environment()
    flag = f"--distribution={kind}"
    if kind != "multi_worker" and len(workers.addresses) > 1 and not use_tpu:
        raise UserError(
            f"{cluster.VARIABLE} names a cluster of {len(workers.addresses)} workers, which"
            f" requires --distribution=multi_worker; got {flag}."
        )
    if kind == "none":
        return Distribution()
    devices.require_tensorflow_2(flag)
    if kind == "multi_worker":
        if not workers.addresses:
            raise UserError(f"{flag} requires {cluster.VARIABLE}, which is not set.")
        devices_per_worker = max(1, len(_gpus()))
        return Distribution(kind, devices_per_worker * len(workers.addresses), workers)
    num_devices = len(_local_devices())
    if num_devices == 1 and not _gpus():
        raise UserError(f"{flag} trains on this machine's GPUs, but TensorFlow finds none.")
    return Distribution(kind, num_devices)


def _gpus() -> List[Any]:
    return tf.config.experimental.list_physical_devices("GPU")


def _local_devices() -> List[str]:
    """Returns the names of this machine's GPUs or, without any, of its logical CPU devices."""
    kind = "GPU" if _gpus() else "CPU"
    return [device.name for device in tf.config.experimental.list_logical_devices(kind)]
