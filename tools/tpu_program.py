"""Builds the XLA program that TPUEstimator would run on a TPU: the model_fn's step in a loop.

It is built on a CPU from the graph of a script's model_fn. As in TPUEstimator, the step is
replicated, variables stay on the device, and a loop on the device runs many steps per call, so XLA
can hoist what no step changes. Two things differ. The features of the loop's steps are arguments
instead of an infeed. And TensorFlow's CPU build cannot lower CrossReplicaSum: it becomes a custom
call of that name, which tpu_compiler.py replaces by XLA's all-reduce.
"""

import contextlib
import os
import sys
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.tpu import tpu_function

import tuning
from adapter_bert.shell import tf_estimator

# The benchmarks have the features.
sys.path.append(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "benchmarks")
)

import workload

WORKS = {
    "train": tf_estimator.ModeKeys.TRAIN,
    "eval": tf_estimator.ModeKeys.EVAL,
    "predict": tf_estimator.ModeKeys.PREDICT,
}
_STEPS = 8  # Number of steps with features in the program; the number run is a variable.


class Program(NamedTuple):
    """A serialized HloModuleProto, its text, and the bytes of the trained variables."""

    serialized: bytes
    text: str
    trained_bytes: int


def lower(model, build, work, batch_size, length, replicas):
    """Returns the `Program` of one replica.

    Args:
      model: `model_fn.ModelSettings`.
      build: see `estimator.Estimator`.
      work: a key of `WORKS`.
      batch_size: int, of all replicas together; a multiple of their number.
      length: int, tokens.
      replicas: int.
    """
    features = workload.features(model.bert_config.vocab_size, batch_size // replicas, length)
    graph = tf.Graph()
    with graph.as_default():
        inputs = {name: tf.placeholder(tf.int32, a.shape) for name, a in features.items()}
        outputs = _step(model, build, work, inputs, batch_size // replicas, replicas)
        variables = tf.global_variables()
        trained = tuning.trained_variables(model.tuning) if work == "train" else []
    fed = {name: tensor.name for name, tensor in inputs.items()}
    definition = importable(graph, outputs)
    compiled = _in_a_loop(definition, outputs, fed, tensors_for(variables))
    stacked = {name: tf.constant(np.stack([a] * _STEPS)) for name, a in features.items()}
    program = compiled.experimental_get_compiler_ir(stacked)
    return Program(
        program(stage="hlo_serialized"),
        program(stage="hlo"),
        sum(v.shape.num_elements() * v.dtype.size for v in trained),
    )


def _step(model, build, work, inputs, batch_size, replicas):
    """Returns the Tensors that a step returns to the host, built in a TPU's contexts."""
    shards = tpu_function.tpu_shard_context(replicas)
    with whole_program(), shards, tf.variable_scope("", use_resource=True):
        tf.train.get_or_create_global_step()
        params = {"batch_size": batch_size, "use_tpu": True}
        spec = build(**vars(model))(inputs, None, WORKS[work], params)
        if work == "train":
            with tf.control_dependencies([spec.train_op]):
                outputs = [tf.identity(spec.loss)]
        elif work == "eval":
            outputs = [spec.loss, *spec.eval_metrics[1]]
        else:
            outputs = list(spec.predictions.values())
        return [tf.identity(output) for output in outputs]


@contextlib.contextmanager
def whole_program():
    """Makes new operations part of a program that XLA compiles as a whole, while entered."""
    context = control_flow_ops.XLAControlFlowContext()
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def importable(graph, outputs):
    """Returns the GraphDef of the step without placeholders and variables; see `imported`."""
    definition = tf.graph_util.extract_sub_graph(
        graph.as_graph_def(), [output.op.name for output in outputs]
    )
    nodes = [node for node in definition.node if node.op not in ("Placeholder", "VarHandleOp")]
    del definition.node[:]
    definition.node.extend(nodes)
    for node in definition.node:
        node.attr.pop("_class", None)  # Names a variable to be colocated with.
        if node.op == "CrossReplicaSum":
            _to_custom_call(node, graph.get_tensor_by_name(node.name + ":0"))
    return definition


def _to_custom_call(node, tensor):
    del node.input[1:]  # The groups; all replicas are one.
    node.op = "XlaCustomCallV2"
    node.ClearField("attr")
    node.attr["call_target_name"].s = b"CrossReplicaSum"
    node.attr["backend_config"].s = b""
    node.attr["has_side_effect"].b = False
    for name in ("operand_dtypes", "result_dtypes"):
        node.attr[name].list.type.append(tensor.dtype.as_datatype_enum)
    node.attr["result_shapes"].list.shape.append(tensor.shape.as_proto())


def tensors_for(variables):
    """Returns a dict from variables' names to zero variables outside of any graph."""
    return {v.op.name: tf.Variable(tf.zeros(v.shape, v.dtype)) for v in variables}


def imported(definition, outputs, fed, values):
    """Builds the step in a tf.function, and returns its outputs.

    Args:
      definition: the result of `importable`.
      outputs: list of the step's output Tensors.
      fed: dict from placeholders' names to Tensors.
      values: the result of `tensors_for`.

    Returns:
      list of Tensors, the outputs.
    """
    capture = tf.get_default_graph().capture
    given = {f"{name}:0": capture(variable.handle) for name, variable in values.items()}
    given.update(fed)
    used = {name.split(":")[0] for node in definition.node for name in node.input}
    given = {name: t for name, t in given.items() if name.split(":")[0] in used}
    names = [output.name for output in outputs]
    return tf.graph_util.import_graph_def(definition, given, names, name="")


def _in_a_loop(definition, outputs, fed, values):
    """Returns a tf.function of features [_STEPS, B, ...] that runs the step in a loop."""
    iterations = tf.Variable(_STEPS)

    @tf.function(jit_compile=True, autograph=False)
    def run(features):
        def body(index, *_):
            step = {fed[name]: tf.gather(tensor, index) for name, tensor in features.items()}
            return [index + 1, *imported(definition, outputs, step, values)]

        start = [0, *(tf.zeros(output.shape, output.dtype) for output in outputs)]
        return tf.while_loop(lambda index, *_: index < iterations, body, start)[1:]

    return run
