"""Data that is freed with its graph, where TensorFlow would keep it as long as the process lives.

A process that evaluates a hundred times while it trains builds a hundred graphs.
"""

import functools
from typing import Callable

import tensorflow.compat.v1 as tf

_GRADIENT = "AdapterBertCustomGradient"
_GRAPH_DICTS = "_adapter_bert_dicts"


def graph_dict(graph: tf.Graph, owner: str) -> dict:
    """Returns the owner's dict, which lives as long as the graph."""
    if not hasattr(graph, _GRAPH_DICTS):
        setattr(graph, _GRAPH_DICTS, {})
    return getattr(graph, _GRAPH_DICTS).setdefault(owner, {})


def custom_gradient(function: Callable) -> Callable:
    """`tf.custom_gradient` of one output, for graphs and `tf.gradients`.

    TensorFlow's keeps the gradient function, and by it the graph, as long as the process lives.

    Args:
      function: of Tensors → (output, gradient), where gradient is a function of the output's
        gradient → that of each of those Tensors, one or a list; None where there is none.
    """

    @functools.wraps(function)
    def run(*inputs):
        output, gradient = function(*inputs)
        graph = tf.get_default_graph()
        # The inputs pass through too, as it is they whose gradients are given.
        with graph.gradient_override_map({"IdentityN": _GRADIENT}):
            output, *_ = tf.identity_n([output, *inputs])
        graph_dict(graph, _GRADIENT)[output.op.name] = gradient
        return output

    return run


@tf.RegisterGradient(_GRADIENT)
def _gradients(operation, d_output, *_):
    d_inputs = graph_dict(operation.graph, _GRADIENT)[operation.name](d_output)
    return [None, *(d_inputs if isinstance(d_inputs, (list, tuple)) else [d_inputs])]
