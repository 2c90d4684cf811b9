"""Graph functions: layers and optimizer updates are traced once and called many times.

Building a graph costs Python time: a layer's forward and backward pass have some 800 operations,
the calls of its graph functions only two. TensorFlow inlines the calls before the first step, which
therefore runs the same operations as without functions.
"""

from typing import Any, Callable, List, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import gradients_util

from adapter_bert.ops import xla
from adapter_bert.ops.dropout import DropoutKey
from adapter_bert.ops.gradients import with_gradients
from adapter_bert.ops.parameters import Parameters


def can_share() -> bool:
    """Returns whether layers can be graph functions of the default graph.

    The default graph must not be that of a loop or function, and must have one replica. Only CPUs
    are supported, because other devices have not been measured.
    """
    graph = tf.get_default_graph()
    is_whole = not isinstance(graph, FuncGraph) and graph._get_control_flow_context() is None
    return is_whole and xla.fuses() and not tf.distribute.has_strategy()


def update(function: Callable, variables: list, *tensors: tf.Tensor, **settings: Any) -> Any:
    """Assigns to variables what an element-wise function of them returns; returns the op.

    If `can_share`, the function is traced only once per graph, for variables of any shape.

    Args:
      function: function (*variables, *tensors, **settings) → the new value of each variable.
      variables: list of variables of one shape.
      *tensors: Tensors of that shape, or scalars.
      **settings: hashable arguments.
    """
    is_resource = hasattr(variables[0], "handle")  # Unless TensorFlow 2's variables are disabled.
    if not (can_share() and is_resource):
        updated = function(*variables, *tensors, **settings)
        return tf.group(
            *(old.assign(new, read_value=False) for old, new in zip(variables, updated))
        )
    dtypes = [variable.dtype.base_dtype for variable in variables]

    def assign(*arguments: tf.Tensor) -> None:
        handles, inputs = arguments[: len(dtypes)], arguments[len(dtypes) :]
        values = [
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            for handle, dtype in zip(handles, dtypes)
        ]
        for handle, new in zip(handles, function(*values, *inputs, **settings)):
            tf.raw_ops.AssignVariableOp(resource=handle, value=new)

    arguments = [variable.handle for variable in variables] + list(tensors)
    traced = xla.graph_dict(tf.get_default_graph(), __name__)
    key = (function, *sorted(settings.items()), *dtypes, *(tensor.dtype for tensor in tensors))
    if key not in traced:
        specs = [tf.TensorSpec(None, argument.dtype) for argument in arguments]
        traced[key] = tf.function(assign, autograph=False).get_concrete_function(*specs)
    return tf.raw_ops.StatefulPartitionedCall(args=arguments, Tout=[], f=traced[key])


class SharedLayer:
    """Traces a layer at its first call, and calls the traced function for all other layers.

    Args:
      layer: function (hidden, forward=...) → Tensor; apart from its arguments, it may only read
        values that all layers share.
      forward: `modeling.ForwardPass`.
    """

    def __init__(self, layer: Callable, forward: Any):
        self._layer = layer
        self._source = _Source(forward.parameters)
        key = forward.dropout_key and _SharedKey(forward.dropout_key, self._source)
        self._forward_pass = forward._replace(parameters=self._source, dropout_key=key)
        self._forward: Any = None
        self._backward: Any = None
        self._has_gradient: List[bool] = []

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the output, with weights and dropout masks of the current variable scope."""
        if self._forward is None:
            self._source.enter()
            self._forward = _trace(self._trace_forward, hidden)
            answers = [request.answer for request in self._source.requests]
        else:
            answers = [request.repeat() for request in self._source.requests]
        # This layer's weights and sites replace those of the traced one; what else the function
        # captures, such as the attention mask, all layers share.
        by_request = {id(r.answer): a for r, a in zip(self._source.requests, answers)}
        captured = [by_request.get(id(t), t) for t in self._forward.captured_inputs]
        output, *saved = _call(self._forward, [hidden, *captured])

        def gradients(d_output: tf.Tensor) -> list:
            d_inputs = iter(_call(self._backward, [d_output, *saved]))
            return [next(d_inputs) if exists else None for exists in self._has_gradient]

        return with_gradients(output, [hidden, *answers], gradients)

    def _trace_forward(self, hidden: tf.Tensor) -> List[tf.Tensor]:
        """Returns [output, *saved for backward]."""
        output = self._layer(hidden, forward=self._forward_pass)
        graph = tf.get_default_graph()
        inputs = [hidden, *(graph.capture(request.answer) for request in self._source.requests)]

        def backward(d_output: tf.Tensor) -> List[tf.Tensor]:
            gradients = gradients_util._GradientsHelper(
                [output], inputs, [d_output], src_graph=graph
            )
            self._has_gradient = [gradient is not None for gradient in gradients]
            return [gradient for gradient in gradients if gradient is not None]

        self._backward = _trace(backward, output)
        return [output, *self._backward.captured_inputs]


class _Source(Parameters):
    """Provides a traced function with weights of the outer graph.

    It records each request, so that the request can be repeated in the scope of another layer.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        self.requests: List[_Request] = []

    def enter(self) -> None:
        """Records the default graph as the outer graph, and the current scope as the layer's."""
        self._outside = tf.get_default_graph()
        self._scope = tf.get_variable_scope().name

    def get(self, *arguments: Any, **options: Any) -> tf.Tensor:
        """Returns the weight as a Tensor of the outer graph."""
        return self.ask(lambda: tf.convert_to_tensor(self._parameters.get(*arguments, **options)))

    def ask(self, make: Callable) -> tf.Tensor:
        """Returns the Tensor that `make` returns in the outer graph and the current scope."""
        scope = tf.get_variable_scope().name[len(self._scope) + 1 :]
        with self._outside.as_default():
            self.requests.append(_Request(scope, make, make()))
        return self.requests[-1].answer


class _Request(NamedTuple):
    """Records a layer's request: the scope relative to the layer, the function, its result."""

    scope: str
    make: Callable
    answer: Any

    def repeat(self) -> tf.Tensor:
        """Calls the function in the scope of another layer, and returns its result."""
        with tf.variable_scope(self.scope, auxiliary_name_scope=False):
            return self.make()


class _SharedKey:
    """Acts as a `DropoutKey` whose sites are those of the layer that calls the function."""

    def __init__(self, key: DropoutKey, source: _Source):
        self._key = key
        self._source = source
        parts = key.step, key.micro_step, key.replica
        self.step, self.micro_step, self.replica = map(tf.convert_to_tensor, parts)

    def site(self) -> tf.Tensor:
        """Returns the site's number, an int64 Tensor []."""
        return self._source.ask(lambda: tf.constant(self._key.site(), tf.int64))


def _trace(function: Callable, argument: tf.Tensor) -> Any:
    """Traces a function of one Tensor; returns the concrete function."""
    spec = tf.TensorSpec(argument.shape, argument.dtype)
    return tf.function(function, autograph=False).get_concrete_function(spec)


def _call(function: Any, tensors: List[tf.Tensor]) -> list:
    """Calls a concrete function with its inputs and captured inputs; returns its outputs."""
    dtypes = [output.dtype for output in function.outputs]
    outputs = tf.raw_ops.PartitionedCall(args=tensors, Tout=dtypes, f=function)
    for output, traced in zip(outputs, function.outputs):
        output.set_shape(traced.shape)
    return outputs
