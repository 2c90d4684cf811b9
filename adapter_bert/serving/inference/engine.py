"""Computes batches that mix tasks with ONNX Runtime: sessions of the graph of `onnx_encoder`."""

import collections
import ctypes
import math
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from adapter_bert.formats import onnx_backbone, task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.inference import (
    compatibility,
    memory,
    onnx_encoder,
    onnx_graph,
    onnx_parameters,
    onnx_runtime,
    quantization,
)
from adapter_bert.serving.inference.onnx_parameters import TaskArrays
from adapter_bert.shell.errors import UserError

# Memory that building a session takes, in the weights of its BERT. Measured; 1 of it stays.
_BUILDING = 2.8


class _Session(NamedTuple):
    """A session of ONNX Runtime, and the `adapter_arrays` of tasks without adapters."""

    session: Any
    no_adapters: onnx_graph.Tensors


class Engine:
    """Runs the encoder of one backbone. Every method may be called from any thread.

    The first batch of an architecture (`compatibility.architecture_of`) builds a session, which
    holds the backbone. Adapters of any size, sites and kind of task share it.

    Args:
      config: `configs.BertConfig`.
      init_checkpoint: prefix of the pretrained checkpoint.
      precision: one of `configs.ANSWER_PRECISIONS`.
      num_threads: see `onnx_runtime.make_session`.

    Attributes:
      fingerprint: the backbone's.

    Raises:
      UserError: see `onnx_backbone.load`; float16 without a GPU.
    """

    def __init__(
        self,
        config: configs.BertConfig,
        init_checkpoint: str,
        precision: str,
        num_threads: Optional[int] = None,
    ):
        if precision not in configs.ANSWER_PRECISIONS:
            choices = ", ".join(configs.ANSWER_PRECISIONS)
            raise UserError(f"precision={precision}: expected one of {choices}.")
        if precision == "float16" and onnx_runtime.GPU not in onnx_runtime.providers():
            raise UserError(
                "precision=float16 needs a GPU and the package onnxruntime-gpu; this ONNX Runtime"
                " runs on CPU."
            )
        self._config, self._init_checkpoint, self._precision = config, init_checkpoint, precision
        self._num_threads = num_threads
        self._dtype = np.float16 if precision == "float16" else np.float32
        # None as soon as the first session holds the backbone.
        self._backbone: Optional[onnx_backbone.BackboneWeights] = self._load_backbone()
        self.fingerprint = self._backbone.fingerprint
        self._num_bytes = sum(value.nbytes for value in self._backbone.tensors.values())
        self._task_specific = {
            name: value.astype(self._dtype)
            for name, value in self._backbone.tensors.items()
            if compatibility.is_task_specific(name)
        }
        self._sessions: Dict[configs.AdapterConfig, _Session] = {}
        self._lock = threading.Lock()  # Of changes to the sessions; batches never take it.
        self._maxima: Optional[onnx_graph.Tensors] = None  # With int8, once it has a session.
        self._has_changed = False  # Whether the BERT's files changed since they were loaded.

    def _load_backbone(self) -> onnx_backbone.BackboneWeights:
        return onnx_backbone.load(self._init_checkpoint, self._config)

    def load(self, adapter: task_adapter.TaskAdapter) -> TaskArrays:
        """Returns the `TaskArrays` of a task adapter."""
        return onnx_parameters.task_arrays(self._config, self._task_specific, adapter, self._dtype)

    def run(
        self,
        architecture: configs.AdapterConfig,
        rows: Sequence[Tuple[Sequence[int], Sequence[int]]],
        tasks: Sequence[TaskArrays],
        reads_tokens: bool,
        poolings: Sequence[str] = (),
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Computes a batch.

        Args:
          architecture: that of all adapters.
          rows: B pairs of input_ids and segment_ids, without padding.
          tasks: each row's; the same task is the same object.
          reads_tokens: whether a row's task reads the output of each token.
          poolings: how each row's layer outputs become its features: "cls", the output of [CLS];
            "mean", that of all its tokens; or "". Empty if no row needs features.

        Returns:
          (logits [B, L], token_logits [B, S, L], features [B, N, D] of N layers), float32. S is 1
          if no task reads tokens; N is 0 if no row needs features.
        """
        order = sorted(range(len(rows)), key=lambda index: id(tasks[index]))
        inputs = _pad([rows[index] for index in order])
        groups = _groups([tasks[index] for index in order])
        weights = _pooling_weights(
            inputs["input_mask"], [poolings[index] for index in order if poolings]
        )
        length = inputs["input_ids"].shape[1] if reads_tokens or weights.size else 1
        session, no_adapters = self.session(architecture)
        logits, token_logits, features = session.run(
            None,
            {
                **inputs,
                "num_positions": np.array([length], np.int64),
                "pooling": weights.astype(self._dtype),
                **onnx_parameters.feeds(groups, no_adapters),
            },
        )
        in_order = np.argsort(order)
        num_outputs = logits.shape[-1]
        return (
            logits.reshape(len(rows), num_outputs)[in_order],
            token_logits.reshape(len(rows), length, num_outputs)[in_order],
            features[in_order],
        )

    def session(self, architecture: configs.AdapterConfig) -> _Session:
        """Returns the session of an architecture, built if necessary.

        Raises:
          UserError: the BERT's files have changed; too little memory is free for a further session.
        """
        session = self._sessions.get(architecture)
        if session is not None:
            return session
        with self._lock:
            session = self._sessions.get(architecture)  # Another thread may have built it.
            if session is None:
                if self._sessions:
                    variant = "A further variant of the adapters"
                    memory.require(_BUILDING * self._num_bytes, variant)
                session = self._build(architecture, self._take_backbone().tensors)
                self._sessions[architecture], self._backbone = session, None
        return session

    def _take_backbone(self) -> onnx_backbone.BackboneWeights:
        backbone = self._backbone
        if backbone is None and not self._has_changed:
            backbone = self._load_backbone()
            self._has_changed = backbone.fingerprint != self.fingerprint
        if backbone is None or self._has_changed:
            raise UserError(
                f"{self._init_checkpoint} has changed since it was loaded; restart this program."
            )
        return backbone

    def _build(self, architecture: configs.AdapterConfig, backbone: onnx_graph.Tensors) -> _Session:
        if self._precision == "int8" and self._maxima is None:
            arguments = self._config, backbone, self._num_threads
            self._maxima = quantization.activation_maxima(*arguments)
        graph = onnx_graph.Graph(self._dtype, keeps_constants_apart=True)
        encoder = onnx_encoder.OnnxEncoder(
            graph,
            self._config,
            backbone,
            architecture,
            onnx_parameters.input_parameters(graph, self._config, architecture),
            onnx_encoder.inputs(graph),
            self._maxima,
        )
        num_positions = graph.input("num_positions", [1], onnx_graph.INT64)
        pooling = graph.input("pooling", ["B", "K", "S"])
        for name, tensor in encoder.outputs(num_positions, pooling)._asdict().items():
            graph.output(name, tensor, [None] * 3)
        session = onnx_runtime.make_session(graph.model(), graph.external, self._num_threads)
        if self._precision == "float16" and onnx_runtime.GPU not in session.get_providers():
            raise UserError(
                "precision=float16: ONNX Runtime cannot use the GPU; check its driver and CUDA's"
                " libraries."
            )
        no_adapters = onnx_parameters.adapter_arrays(self._config, architecture, {}, self._dtype)
        return _Session(session, no_adapters)

    def architectures(self) -> List[configs.AdapterConfig]:
        """Returns the architectures that have a session."""
        return list(self._sessions)

    def keep_only(self, architectures: Set[configs.AdapterConfig]) -> None:
        """Frees the sessions of all other architectures."""
        with self._lock:
            self._sessions = {a: s for a, s in self._sessions.items() if a in architectures}

    def renew(self) -> None:
        """In a forked process: forgets the parent's sessions, whose threads are not there."""
        for session, _ in self._sessions.values():
            # Never freed: that would wait for those threads.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
        self._lock, self._sessions = threading.Lock(), {}

    def close(self) -> None:
        """Frees the memory; the engine cannot be used afterwards."""
        with self._lock:
            self._sessions, self._backbone = {}, None


def _pad(rows: Sequence[Tuple[Sequence[int], Sequence[int]]]) -> Dict[str, np.ndarray]:
    """Returns the values of `onnx_encoder.InputNames`, padded to the longest row."""
    length = max(len(input_ids) for input_ids, _ in rows)
    input_ids, input_mask, segment_ids = np.zeros([3, len(rows), length], np.int32)
    for index, (ids, segments) in enumerate(rows):
        span = slice(len(ids))
        input_ids[index, span], segment_ids[index, span] = ids, segments
        input_mask[index, span] = 1
    return onnx_encoder.InputNames(input_ids, input_mask, segment_ids)._asdict()


def _pooling_weights(mask: np.ndarray, poolings: Sequence[str]) -> np.ndarray:
    """Returns the weights of each row's positions in its features, [B, 1, S], or [B, 0, S].

    Args:
      mask: int [B, S], 1 for tokens.
      poolings: see `Engine.run`.
    """
    weights = np.zeros([len(mask), int(any(poolings)), mask.shape[1]], np.float32)
    for row, row_mask, pooling in zip(weights, mask, poolings):
        if pooling == "cls":
            row[0, 0] = 1
        elif pooling == "mean":
            row[0] = row_mask / row_mask.sum()
    return weights


def _groups(tasks: List[TaskArrays]) -> List[TaskArrays]:
    """Returns the groups' tasks, for groups of equal size with one task each, as large as possible.

    The size is the greatest common divisor of the tasks' numbers of rows.

    Args:
      tasks: each row's; rows of one task are adjacent.
    """
    return tasks[:: math.gcd(*collections.Counter(map(id, tasks)).values())]
