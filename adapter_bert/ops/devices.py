"""The devices of a run: finds TPUs and GPUs, configures sessions and chooses the precision."""

import ctypes
import functools
import math
import socket
import sys
import time
from typing import Any, Callable, Dict, Optional, Tuple

import tensorflow.compat.v1 as tf
from absl import logging
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_replica_id

from adapter_bert.model import configs
from adapter_bert.shell.errors import UserError

# The flags in /proc/cpuinfo for native bfloat16 products: AVX-512 (Intel, AMD), Intel AMX and ARM.
_BFLOAT16_NAMES = {"avx512_bf16", "amx_bf16", "bf16"}
_MIN_SPEEDUP = 1.15  # bfloat16 keeps only 8 significant bits, so it must be clearly faster.
_TIMED_TOKENS, _TIMED_SECONDS, _MIN_REPEATS = 128, 0.05, 3

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # Parameters of mallopt, in glibc's malloc.h.

_CONNECT_TIMEOUT_SECONDS = 10
_TIMEOUT_SECONDS = 60  # A TPU that was just started answers late.


def find_tpu(
    use_tpu: bool,
    tpu_name: Optional[str] = None,
    tpu_zone: Optional[str] = None,
    gcp_project: Optional[str] = None,
    master: Optional[str] = None,
    num_tpu_cores: Optional[int] = None,
) -> Tuple[bool, Any]:
    """Connects to the TPU of a run, and returns whether it uses one.

    Args:
      use_tpu: bool, the user's --use_tpu.
      tpu_name: name of a Cloud TPU, its grpc:// address, or "local". If None, a TPU in this machine
        is used; without one the run logs a warning and uses the GPU or CPU.
      tpu_zone, gcp_project: location of the named Cloud TPU.
      master: address of a TPU master, an alternative to the name.
      num_tpu_cores: the required number of cores, or None for any.

    Returns:
      (use_tpu, cluster resolver or None).

    Raises:
      UserError: the named TPU cannot be reached or has several hosts, "local" finds no TPU, the
        number of cores differs, or both a name and a master are given.
    """
    if not use_tpu:
        ignored = {"tpu_name": tpu_name, "tpu_zone": tpu_zone, "gcp_project": gcp_project}
        for flag, value in {**ignored, "master": master}.items():
            if value:
                logging.warning("--%s=%s is ignored: --use_tpu is off.", flag, value)
        return False, None
    if master and tpu_name:
        raise UserError(
            f"--tpu_name={tpu_name} and --master={master} both locate the TPU; give only one."
        )
    if master:
        _check_cores(_cores_at("--master", master), num_tpu_cores)
        return True, None
    if tpu_name in (None, "", "local"):
        cores = _num_cores()
        if not cores and tpu_name:
            raise UserError("--tpu_name=local: TensorFlow finds no TPU on this machine.")
        if not cores:
            device = "GPU" if has_gpu() else "CPU"
            logging.warning(
                "=== --use_tpu=True, but this machine has no TPU and --tpu_name is not set:"
                " running on %s. ===",
                device,
            )
            return False, None
        _check_cores(cores, num_tpu_cores)
        return True, _resolver("local")
    resolver = _resolver(tpu_name, tpu_zone, gcp_project)
    num_hosts = resolver.cluster_spec().num_tasks("worker")
    if num_hosts != 1:  # TPUEstimator trains on them, but does not predict.
        raise UserError(f"--tpu_name={tpu_name}: the TPU has {num_hosts} hosts; expected one.")
    _check_cores(_cores_at("--tpu_name", resolver.master()), num_tpu_cores)
    return True, resolver


def _num_cores(address: str = "") -> int:
    """Returns the number of TPU cores that TensorFlow sees, on this machine or at an address.

    Raises:
      tf.errors.OpError: no TensorFlow server answers in time.
    """
    # Listing devices must not reserve GPU memory.
    config = tf.ConfigProto(
        device_count={"GPU": 0}, operation_timeout_in_ms=int(1000 * _TIMEOUT_SECONDS)
    )
    with tf.Graph().as_default(), tf.Session(address, config=config) as session:
        session.run(tf.constant(0))
        return sum(device.device_type == "TPU" for device in session.list_devices())


def _check_cores(actual: int, expected: Optional[int]) -> None:
    if expected not in (None, actual):
        raise UserError(f"--num_tpu_cores={expected}, but the TPU has {actual}.")


def tpu_replica() -> tf.Tensor:
    """Returns the index of the TPU replica that runs this, a scalar int32 Tensor.

    Valid only inside a TPU program.
    """
    # In TensorFlow 1, XLA takes the id for unsigned and refuses to combine it with int32.
    return tf.cast(tf.cast(xla_replica_id(), tf.int64), tf.int32)


def replica() -> int:
    """Returns the index of the distribution strategy's replica that builds the graph, an int."""
    index = tf.distribute.get_replica_context().replica_id_in_sync_group
    return index if isinstance(index, int) else int(tf.get_static_value(index))


def has_gpu() -> bool:
    """Returns whether TensorFlow sees a GPU."""
    return bool(tf.config.experimental.list_physical_devices("GPU"))


def require_tensorflow_2(feature: str) -> None:
    """Raises UserError on TensorFlow 1; `feature`, a flag or script, begins the message."""
    if not _has_tensorflow_2():
        raise UserError(f"{feature} needs TensorFlow 2; this is {tf.__version__}.")


def session_config(one_device: bool = True) -> tf.ConfigProto:
    """Returns a session config that makes a run on one CPU bit-reproducible.

    One inter-op thread fixes the order of operations; each operation still uses all cores. GPUs are
    not deterministic in any case, so there all threads stay. On a GPU it disables TF32, TensorFlow
    2's default, which rounds the factors of float32 products to 11 significant bits. Without a GPU,
    the process keeps the memory that it frees.

    Args:
      one_device: bool; False keeps all threads, as several devices (or a TPU and its input
        pipeline) must run in parallel.
    """
    if not has_gpu():
        _keep_freed_memory()
    elif _has_tensorflow_2():
        tf.config.experimental.enable_tensor_float_32_execution(False)
    threads = 1 if one_device and not has_gpu() else 0
    config = tf.ConfigProto(
        allow_soft_placement=True,
        inter_op_parallelism_threads=threads,
        # Otherwise this session shares the thread pool of the process's first session.
        use_per_session_threads=threads == 1,
    )
    # Graph rewriting adds seconds to each start, and no step is faster for it on CPU.
    config.graph_options.rewrite_options.disable_meta_optimizer = not has_gpu()
    config.graph_options.optimizer_options.do_function_inlining = True
    return config


def _keep_freed_memory() -> None:
    """Lets glibc reuse the memory of freed tensors.

    `Dataset.from_generator` of TensorFlow 2.21 lowers glibc's M_MMAP_THRESHOLD to 128 KB: from then
    on, each larger tensor of each step gets new pages from the kernel.
    """
    # Alpine's musl has no mallopt.
    mallopt = sys.platform == "linux" and getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def choose_precision(
    precision: str, use_tpu: bool, width: Tuple[int, int], recorded: Optional[str] = None
) -> str:
    """Returns the precision of the model's matrix products and activations, and logs the reason.

    Args:
      precision: one of `configs.PRECISIONS`. "auto" is `recorded` if given; otherwise bfloat16 on a
        TPU and float32 on a GPU. On a CPU it is bfloat16 if `product_seconds` measures its
        products as at least `_MIN_SPEEDUP` times as fast as float32's.
      use_tpu: bool.
      width: (hidden size, intermediate size) of the model.
      recorded: precision of the run to resume or the adapter to evaluate, or None.

    Returns:
      "float32" or "bfloat16".

    Raises:
      UserError: bfloat16 is requested, but this TensorFlow does not support it on this device.
    """
    is_emulated = not (use_tpu or has_bfloat16())
    if precision != "auto":
        if precision == "bfloat16" and is_emulated:
            _check_bfloat16()
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


def _check_bfloat16() -> None:
    """Warns if this CPU emulates bfloat16; raises UserError if TensorFlow has no kernels for it."""
    if not _has_tensorflow_2():
        raise UserError("--precision=bfloat16 needs a TPU or TensorFlow 2; choose float32.")
    if not has_gpu():
        logging.warning(
            "--precision=bfloat16: this CPU is not known to support bfloat16 natively; training may"
            " be slow."
        )


def _has_tensorflow_2() -> bool:
    return not tf.__version__.startswith("1.")


def product_seconds(hidden_size: int, intermediate_size: int) -> Dict[str, float]:
    """Returns the time of a feed-forward layer's two matrix products on CPU, in each precision.

    The precisions alternate for about 50 ms. The minimum of each counts, as other processes slow
    some repeats.

    Args:
      hidden_size, intermediate_size: sizes of the layer.

    Returns:
      Dict from precision to the seconds of both products, for 128 tokens.
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


def _fastest(calls: Dict[str, Callable]) -> Dict[str, float]:
    """Returns the minimum seconds of each function in a dict, after one warm-up call of each."""
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


def has_bfloat16(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Returns whether this CPU and TensorFlow compute in bfloat16 natively; False with a GPU."""
    if not _has_tensorflow_2() or has_gpu():
        return False
    try:
        with open(cpuinfo) as reader:
            return not _BFLOAT16_NAMES.isdisjoint(reader.read().split())
    except OSError:  # Not Linux.
        return False


def _resolver(
    tpu_name: str, tpu_zone: Optional[str] = None, gcp_project: Optional[str] = None
) -> Any:
    resolver_class = tf.distribute.cluster_resolver.TPUClusterResolver
    try:
        resolver = resolver_class(tpu_name, zone=tpu_zone, project=gcp_project)
        resolver.master()
    # The resolver tries several APIs of Google Cloud, each with its own exceptions.
    except Exception as error:
        raise _unreachable("--tpu_name", tpu_name, error) from error
    return resolver


def _cores_at(flag: str, address: str) -> int:
    """Returns the number of TPU cores at "grpc://host:port"; raises UserError without an answer."""
    host, _, port = address.split("//")[-1].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_SECONDS).close()
        return _num_cores(address)
    except (OSError, ValueError, OverflowError, tf.errors.OpError) as error:
        raise _unreachable(flag, address, error) from error


def _unreachable(flag: str, value: str, error: Exception) -> UserError:
    """Returns the `UserError` for an unreachable TPU, with the first sentence of the cause."""
    reason = (str(error) or type(error).__name__).strip().split("\n")[0].split(". ")[0].rstrip(".")
    return UserError(
        f"{flag}={value}: the TPU cannot be reached ({reason}); expected grpc://host:port, or the"
        " name of a Cloud TPU with its --tpu_zone and --gcp_project."
    )
