"""ONNX Runtime without telemetry. Only this module imports onnxruntime; ruff checks this.

Since 1.29 its import starts a thread that sends usage data to Microsoft, writes a device id below
~/.cache/Microsoft, and keeps forked processes from exiting. ORT_DISABLE_TELEMETRY=0 leaves it on.
"""

import os
from typing import Any, Dict, List, Optional

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # Read by the import.
import onnxruntime

from adapter_bert.serving.inference import control_groups

_QUOTA = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
GPU, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def providers() -> List[str]:
    """Returns what can compute: the GPU if ONNX Runtime supports it, then the CPU."""
    return [name for name in onnxruntime.get_available_providers() if name in (GPU, CPU)]


def make_session(
    model: Any, constants: Dict[str, np.ndarray], num_threads: Optional[int] = None
) -> Any:
    """Returns an `onnxruntime.InferenceSession`, on a GPU if ONNX Runtime supports it.

    Args:
      model: `onnx.ModelProto`.
      constants: those outside the model, see `onnx_graph.Graph`.
      num_threads: CPU threads of a batch. Default: `cpu_limit`, else one for each core.
    """
    options = onnxruntime.SessionOptions()
    # The graph has the fused operators already: ONNX Runtime's further fusions are slower on CPU.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = num_threads or cpu_limit() or 0  # 0: one for each core.
    values = list(map(onnxruntime.OrtValue.ortvalue_from_numpy, constants.values()))
    options.add_external_initializers(list(constants), values)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers())


def cpu_limit(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> Optional[int]:
    """Returns how many of the machine's processors this process may use; None for all.

    The limits are its affinity and the quotas of its control groups, such as a container's.

    Args:
      groups, root: the files of the control groups, version 1 or 2.
    """
    count = os.cpu_count() or 1
    limits = [count]
    if hasattr(os, "sched_getaffinity"):  # Linux has it.
        limits.append(len(os.sched_getaffinity(0)))
    for quota, period in control_groups.limits("cpu", _QUOTA, groups, root):
        limits.append(max(1, quota // period))
    return min(limits) if min(limits) < count else None
