"""What a run computes on: TPUs found and reached, or refused, before anything is built on them."""

import glob
import os
import socket

import tensorflow.compat.v1 as tf
from absl import logging

from errors import UserError

_CONNECT_SECONDS = 10


def find_tpu(use_tpu, tpu_name=None, tpu_zone=None, gcp_project=None, master=None):
    """Decides whether a run uses a TPU, and connects to it.

    Args:
      use_tpu: bool, what the user asked for.
      tpu_name: name of a Cloud TPU, its grpc:// address, or "local"; without it a TPU in this
        machine is used, and where there is none the run goes on without, and says so.
      tpu_zone, gcp_project: where a Cloud TPU of that name is looked for.
      master: address of a TPU master, in place of a name.

    Returns:
      (use_tpu, cluster resolver or None).

    Raises:
      UserError: a TPU was named and cannot be reached.
    """
    if not use_tpu:
        if tpu_name:
            logging.warning("--tpu_name=%s is not used: --use_tpu is off.", tpu_name)
        return False, None
    if master and not tpu_name:
        _check_reachable("--master", master)
        return True, None
    if not tpu_name and not has_local_tpu():
        logging.warning(
            "=== --use_tpu=True, but this machine has no TPU and --tpu_name names none:"
            " running on %s. ===",
            "GPU" if has_gpu() else "CPU",
        )
        return False, None
    return True, _resolve(tpu_name or "local", tpu_zone, gcp_project)


def has_local_tpu():
    """Whether a TPU sits in this machine, as in a TPU VM."""
    # v2 to v4 appear as /dev/accel*, later ones as VFIO devices of a machine that says its type.
    return bool(glob.glob("/dev/accel*")) or (
        "TPU_ACCELERATOR_TYPE" in os.environ and bool(glob.glob("/dev/vfio/[0-9]*"))
    )


def has_gpu():
    """Whether TensorFlow sees a GPU."""
    return bool(tf.config.experimental.list_physical_devices("GPU"))


def session_config():
    """A session whose sums do not depend on timing.

    With one inter-op thread two runs of one seed are equal to the last bit on CPU; each operation
    still uses all cores. GPUs do not promise that, and keep their threads.
    """
    threads = 0 if has_gpu() else 1
    return tf.ConfigProto(allow_soft_placement=True, inter_op_parallelism_threads=threads)


def _resolve(tpu_name, tpu_zone, gcp_project):
    resolver_class = tf.distribute.cluster_resolver.TPUClusterResolver
    try:
        resolver = resolver_class(tpu_name, zone=tpu_zone, project=gcp_project)
        address = resolver.master()
    # The resolver asks Google's cloud in several ways, each with exceptions of its own.
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(
            "--tpu_name={}: the TPU cannot be reached ({}).".format(tpu_name, reason.rstrip("."))
        ) from error
    if tpu_name != "local":
        _check_reachable("--tpu_name", address)
    return resolver


def _check_reachable(flag, address):
    """Raises UserError if nothing answers at "grpc://host:port"; TensorFlow would wait forever."""
    host, _, port = address.split("//")[-1].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UserError(f"{flag}={address}: the TPU cannot be reached ({error}).") from error
