"""ONNX Runtime without telemetry. Only this module imports onnxruntime; ruff checks this.

Since 1.29 its import starts a thread that sends usage data to Microsoft, writes a device id below
~/.cache/Microsoft, and keeps forked processes from exiting. ORT_DISABLE_TELEMETRY=0 leaves it on.
"""

import os
from typing import Any, Dict, List, Optional

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # Read by the import.
import onnxruntime

from adapter_bert.shell import control_groups

GPU, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


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
      num_threads: CPU threads of a batch. Default: `control_groups.num_compute_threads`.
    """
    options = onnxruntime.SessionOptions()
    # The graph has the fused operators already: ONNX Runtime's further fusions are slower on CPU.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    is_limited = control_groups.num_processors() < (os.cpu_count() or 1)
    default = control_groups.num_compute_threads() if is_limited else 0  # 0: the same, pinned.
    options.intra_op_num_threads = num_threads or default
    values = list(map(onnxruntime.OrtValue.ortvalue_from_numpy, constants.values()))
    options.add_external_initializers(list(constants), values)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers())
