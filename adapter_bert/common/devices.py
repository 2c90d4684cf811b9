"""What a run computes on: TPUs found and reached, or refused, before anything is built on them."""

import functools
import math
import socket
import time

import tensorflow.compat.v1 as tf
from absl import logging
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_replica_id

from adapter_bert.common import configs
from adapter_bert.common.errors import UserError

# What /proc/cpuinfo calls bfloat16 products: Intel's and AMD's, Intel's AMX, ARM's.
_BFLOAT16_NAMES = {"avx512_bf16", "amx_bf16", "bf16"}
_MIN_SPEEDUP = 1.15  # How many times as fast bfloat16 must be: it rounds to 8 bits.
_TIMED_TOKENS, _TIMED_SECONDS, _MIN_REPEATS = 128, 0.05, 3

_CONNECT_TIMEOUT_SECONDS = 10
_TIMEOUT_SECONDS = 60  # A TPU that has just been started takes its time.


def find_tpu(
    use_tpu, tpu_name=None, tpu_zone=None, gcp_project=None, master=None, num_tpu_cores=None
):
    """Decides whether a run uses a TPU, and connects to it.

    Args:
      use_tpu: bool, what the user asked for.
      tpu_name: name of a Cloud TPU, its grpc:// address, or "local"; without it a TPU in this
        machine is used, and where there is none the run goes on without, and says so.
      tpu_zone, gcp_project: where a Cloud TPU of that name is looked for.
      master: address of a TPU master, in place of a name.
      num_tpu_cores: how many cores it must have; None for any number.

    Returns:
      (use_tpu, cluster resolver or None).

    Raises:
      UserError: a TPU was named and cannot be reached, or "local" and there is none; or it has
        another number of cores; or both a name and a master were given.
    """
    if not use_tpu:
        for flag, value in (("tpu_name", tpu_name), ("master", master)):
            if value:
                logging.warning("--%s=%s is not used: --use_tpu is off.", flag, value)
        return False, None
    if master and tpu_name:
        raise UserError(
            f"--tpu_name={tpu_name} and --master={master} both say where the TPU is; give one."
        )
    if master:
        _check_cores(_cores_at("--master", master), num_tpu_cores)
        return True, None
    if tpu_name in (None, "", "local"):
        cores = _num_cores()
        if not cores and tpu_name:
            raise UserError("--tpu_name=local: TensorFlow finds no TPU in this machine.")
        if not cores:
            device = "GPU" if has_gpu() else "CPU"
            logging.warning(
                "=== --use_tpu=True, but this machine has no TPU and --tpu_name names none:"
                " running on %s. ===",
                device,
            )
            return False, None
        _check_cores(cores, num_tpu_cores)
        return True, _resolver("local")
    resolver = _resolver(tpu_name, tpu_zone, gcp_project)
    _check_cores(_cores_at("--tpu_name", resolver.master()), num_tpu_cores)
    return True, resolver


def _num_cores(address=""):
    """How many TPU cores TensorFlow sees, in this machine or at an address.

    Raises:
      tf.errors.OpError: no TensorFlow answers there in time.
    """
    # To look around, take no GPU's memory.
    config = tf.ConfigProto(
        device_count={"GPU": 0}, operation_timeout_in_ms=int(1000 * _TIMEOUT_SECONDS)
    )
    with tf.Graph().as_default(), tf.Session(address, config=config) as session:
        session.run(tf.constant(0))
        return sum(device.device_type == "TPU" for device in session.list_devices())


def _check_cores(actual, expected):
    if expected not in (None, actual):
        raise UserError(f"--num_tpu_cores={expected}, but the TPU has {actual}.")


def tpu_replica():
    """Which of a TPU's replicas computes this: scalar int32 Tensor, within a TPU's program."""
    # To XLA the number is unsigned in TensorFlow 1, whatever its dtype, and goes with no int32.
    return tf.cast(tf.cast(xla_replica_id(), tf.int64), tf.int32)


def replica():
    """Which of a distribution strategy's replicas the graph is built for, an int."""
    index = tf.distribute.get_replica_context().replica_id_in_sync_group
    return index if isinstance(index, int) else int(tf.get_static_value(index))


def has_gpu():
    """Whether TensorFlow sees a GPU."""
    return bool(tf.config.experimental.list_physical_devices("GPU"))


def require_tensorflow_2(feature):
    """Raises UserError with TensorFlow 1; `feature`, a flag or a script, begins its sentence."""
    if not _has_tensorflow_2():
        raise UserError(f"{feature} needs TensorFlow 2; this is {tf.__version__}.")


def session_config(one_device=True):
    """A session whose sums do not depend on timing.

    With one inter-op thread two runs of one seed are equal to the last bit on CPU; each operation
    still uses all cores. GPUs do not promise that, and keep their threads.

    Args:
      one_device: bool; several must run side by side, as a TPU and what feeds it must, and keep
        their threads too.
    """
    threads = 1 if one_device and not has_gpu() else 0
    config = tf.ConfigProto(
        allow_soft_placement=True,
        inter_op_parallelism_threads=threads,
        # Else it would have those of the process's first session, which may be another one.
        use_per_session_threads=threads == 1,
    )
    # Rewriting the graph takes seconds of every start, and on CPU no step is faster for it.
    config.graph_options.rewrite_options.disable_meta_optimizer = not has_gpu()
    config.graph_options.optimizer_options.do_function_inlining = True
    return config


def choose_precision(precision, use_tpu, width, recorded=None):
    """Chooses the precision of matrix products and of what lies between them, and logs why.

    Args:
      precision: one of `configs.PRECISIONS`. "auto" is `recorded`; else bfloat16 on a TPU,
        float32 on a GPU, and on a CPU bfloat16 if `product_seconds` finds its products to be
        `_MIN_SPEEDUP` times as fast as float32's.
      use_tpu: bool.
      width: (hidden size, intermediate size) of the model.
      recorded: the precision of the run or the adapter that is used, None if there is none.

    Returns:
      "float32" or "bfloat16".

    Raises:
      UserError: bfloat16 is asked of a TensorFlow that has none on this device.
    """
    is_emulated = not (use_tpu or has_bfloat16())
    if precision != "auto":
        if precision == "bfloat16" and is_emulated:
            _check_emulation()
        logging.info("Computing in %s (--precision=%s).", precision, precision)
        return precision
    if recorded == "float32" or (recorded == "bfloat16" and (use_tpu or _has_tensorflow_2())):
        logging.info("Computing in %s, as recorded (--precision=auto).", recorded)
        return recorded
    if use_tpu or is_emulated:
        chosen = "bfloat16" if use_tpu else "float32"
        logging.info("Computing in %s (--precision=auto).", chosen)
        return chosen
    seconds = product_seconds(*width)
    chosen = "bfloat16" if seconds["float32"] >= _MIN_SPEEDUP * seconds["bfloat16"] else "float32"
    logging.info(
        "Computing in %s (--precision=auto): the model's products take %.2f ms in float32, %.2f ms"
        " in bfloat16.",
        chosen,
        1000 * seconds["float32"],
        1000 * seconds["bfloat16"],
    )
    return chosen


def _check_emulation():
    """Warns that bfloat16 is slow here; UserError if TensorFlow has no kernels for it."""
    if not _has_tensorflow_2():
        raise UserError("--precision=bfloat16 needs a TPU or TensorFlow 2; choose float32.")
    logging.warning(
        "--precision=bfloat16 is slow on a device that does not have it natively; this one is"
        " not known to."
    )


def _has_tensorflow_2():
    return not tf.__version__.startswith("1.")


def product_seconds(hidden_size, intermediate_size):
    """Times a feed-forward layer's two matrix products in both precisions, on CPU.

    The precisions take turns for about 50 ms. The fastest turn counts: a busy core slows some.

    Args:
      hidden_size, intermediate_size: sizes of the layer.

    Returns:
      dict: precision → seconds of both products, for 128 tokens.
    """
    sizes = [_TIMED_TOKENS, hidden_size, intermediate_size, hidden_size]
    shapes = [sizes[:2], sizes[1:3], sizes[2:]]
    products = {}
    with tf.Graph().as_default(), tf.device("/CPU:0"):
        for precision in configs.PRECISIONS[1:]:
            initial = tf.constant_initializer(0.01)
            dtype = tf.as_dtype(precision)
            x, inner, outer = (
                tf.get_variable(f"{precision}_{i}", shape, dtype, initial, use_resource=True)
                for i, shape in enumerate(shapes)
            )
            products[precision] = tf.matmul(tf.matmul(x, inner), outer).op
        with tf.Session(config=session_config()) as session:
            session.run(tf.global_variables_initializer())
            return _fastest(
                {name: functools.partial(session.run, op) for name, op in products.items()}
            )


def _fastest(calls):
    """The seconds of each function's fastest call, of a dict; the first calls do not count."""
    for call in calls.values():
        call()
    seconds = dict.fromkeys(calls, math.inf)
    start, rounds = time.perf_counter(), 0
    while rounds < _MIN_REPEATS or time.perf_counter() - start < _TIMED_SECONDS:
        rounds += 1
        for name, call in calls.items():
            call_start = time.perf_counter()
            call()
            seconds[name] = min(seconds[name], time.perf_counter() - call_start)
    return seconds


def has_bfloat16(cpuinfo="/proc/cpuinfo"):
    """Whether this TensorFlow computes in bfloat16 natively on this machine, TPUs apart."""
    if not _has_tensorflow_2() or has_gpu():
        return False
    try:
        with open(cpuinfo) as reader:
            return not _BFLOAT16_NAMES.isdisjoint(reader.read().split())
    except OSError:  # Not Linux.
        return False


def _resolver(tpu_name, tpu_zone=None, gcp_project=None):
    resolver_class = tf.distribute.cluster_resolver.TPUClusterResolver
    try:
        resolver = resolver_class(tpu_name, zone=tpu_zone, project=gcp_project)
        resolver.master()
    # The resolver asks Google's cloud in several ways, each with exceptions of its own.
    except Exception as error:
        raise _unreachable("--tpu_name", tpu_name, error) from error
    return resolver


def _cores_at(flag, address):
    """How many TPU cores there are at "grpc://host:port"; UserError if no TensorFlow answers."""
    host, _, port = address.split("//")[-1].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_SECONDS).close()
        return _num_cores(address)
    except (OSError, ValueError, OverflowError, tf.errors.OpError) as error:
        raise _unreachable(flag, address, error) from error


def _unreachable(flag, value, error):
    """The `UserError` for a TPU that does not answer; of the reason, its first sentence."""
    reason = (str(error) or type(error).__name__).strip().split("\n")[0].split(". ")[0].rstrip(".")
    return UserError(
        f"{flag}={value}: the TPU cannot be reached ({reason}); expected grpc://host:port, or the"
        " name of a Cloud TPU with its --tpu_zone and --gcp_project."
    )
