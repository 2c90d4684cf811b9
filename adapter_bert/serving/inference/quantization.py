"""Measures the inputs of a BERT's matrix products, so that int8 can treat outliers on their own.

In a few channels, a pretrained BERT's activations are ten times as large as in the others. The
channels are nearly the same for any text and any adapter, so random WordPieces find them.
"""

from typing import Any, Dict, Optional

import numpy as np

from adapter_bert.formats import task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.inference import (
    onnx_encoder,
    onnx_graph,
    onnx_parameters,
    onnx_runtime,
)

_ROWS, _LENGTH = 8, 64
# Half of the ids are below this: in published vocabularies, [CLS], [SEP] and punctuation are, too.
_NUM_FIRST_IDS = 1024


class _Recorder(onnx_encoder.OnnxEncoder):
    """Adds the maxima as outputs of the graph, named by the scopes."""

    def _record(self, rows: str, scope: str) -> None:
        absolute = self._graph.op("Abs", rows)
        maxima = self._graph.op("ReduceMax", absolute, axes=[0, 1], keepdims=0)
        self._graph.output(scope, maxima, [None])

    def _attention(self, rows: str, scope: str) -> str:
        self._record(rows, scope)
        return super()._attention(rows, scope)

    def _dense(self, rows: str, scope: str, *activation: Any) -> str:
        self._record(rows, scope)
        return super()._dense(rows, scope, *activation)


def activation_maxima(
    config: configs.BertConfig, backbone: onnx_graph.Tensors, num_threads: Optional[int] = None
) -> Dict[str, np.ndarray]:
    """Returns the largest absolute value of each channel of the inputs that have outliers.

    Args:
      config: `configs.BertConfig`.
      backbone: dict of its tensors, see `onnx_backbone.BackboneWeights`.
      num_threads: see `onnx_runtime.make_session`.

    Returns:
      A dict from the scopes "<layer>/attention/self", "<layer>/intermediate/dense" and
      "<layer>/output/dense" to float32 [in].
    """
    graph = onnx_graph.Graph(keeps_constants_apart=True)
    untrained = task_adapter.untrained(task_adapter.Backbone("", "", config.to_dict()))
    architecture = configs.AdapterConfig(1)
    parameters = onnx_parameters.constant_parameters(
        graph,
        config,
        architecture,
        onnx_parameters.task_arrays(config, backbone, untrained),
    )
    inputs = onnx_encoder.inputs(graph)
    _Recorder(graph, config, backbone, architecture, parameters, inputs).outputs(None)
    session = onnx_runtime.make_session(graph.model(), graph.external, num_threads)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, _random_rows(config))))


def _random_rows(config: configs.BertConfig) -> Dict[str, np.ndarray]:
    """Returns the values of `onnx_encoder.InputNames`."""
    random = np.random.RandomState(0)
    shape = _ROWS, min(_LENGTH, config.max_position_embeddings)
    first = random.randint(0, min(_NUM_FIRST_IDS, config.vocab_size), shape)
    ids = np.where(random.rand(*shape) < 0.5, first, random.randint(0, config.vocab_size, shape))
    values = ids.astype(np.int32), np.ones(shape, np.int32), np.zeros(shape, np.int32)
    return dict(zip(onnx_encoder.InputNames._fields, values))
