"""The XLA program that TPUEstimator would have a TPU run: the model_fn's step in a loop.

Built from model_fn.model_fn_builder's own graph, on a CPU. As TPUEstimator does, it replicates the
step, keeps variables on the device, and takes many steps a call in a loop on the device, so that
XLA can take out of it what no step changes. Two things differ. The features of the loop's steps
are arguments, where a TPU has its infeed. And TensorFlow's CPU build cannot lower CrossReplicaSum:
it becomes a custom call of that name, for which tpu_compiler.py puts XLA's all-reduce.
"""

import contextlib
import os
import sys
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.tpu import tpu_function

from adapter_bert.common import tf_estimator
from adapter_bert.training import model_fn

# The step to compare with, and the features, are those of the benchmarks.
sys.path.append(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "benchmarks")
)

import plain_bert
import workload

WORKS = {
    "train": tf_estimator.ModeKeys.TRAIN,
    "eval": tf_estimator.ModeKeys.EVAL,
    "predict": tf_estimator.ModeKeys.PREDICT,
}
_STEPS = 8  # Of which the program holds features; how many it takes is a variable.


class Program(NamedTuple):
    """A program, as XLA's serialized HloModuleProto and as text, and the bytes of what trains."""

    serialized: bytes
    text: str
    trained_bytes: int


def lower(model, head, work, batch_size, length, replicas):
    """Makes the `Program` of one replica.

    Args:
      model: `model_fn.ModelSettings`.
      head: see `model_fn.model_fn_builder`.
      work: a key of `WORKS`.
      batch_size: int, of all replicas together; divisible by their number.
      length: int, tokens.
      replicas: int.
    """
    features = workload.features(model.bert_config.vocab_size, batch_size // replicas, length)
    graph = tf.Graph()
    with graph.as_default():
        inputs = {name: tf.placeholder(tf.int32, a.shape) for name, a in features.items()}
        outputs = _step(model, head, work, inputs, batch_size // replicas, replicas)
        variables = tf.global_variables()
    trained = [v for v in variables if v.op.name.endswith("/adam_m")]
    fed = {name: tensor.name for name, tensor in inputs.items()}
    definition = importable(graph, outputs)
    compiled = _in_a_loop(definition, outputs, fed, tensors_for(variables))
    stacked = {name: np.stack([a] * _STEPS) for name, a in features.items()}
    return _program(compiled, stacked, trained)


def lower_plain(sizes, batch_size, length):
    """The `Program` of a gradient step of plain_bert.py, by itself: no loop, nothing updated."""
    features = workload.features(sizes["vocab_size"], batch_size, length)
    with tf.Graph().as_default() as graph:
        inputs = {name: tf.placeholder(tf.int32, a.shape) for name, a in features.items()}
    with graph.as_default(), whole_program(), tf.variable_scope("", use_resource=True):
        loss, _ = plain_bert.classifier(sizes, inputs, one_hot=True)
        trained = plain_bert.trained_variables()
        outputs = [tf.identity(tensor) for tensor in [loss, *tf.gradients(loss, trained)]]
        variables = tf.global_variables()
    definition, values = importable(graph, outputs), tensors_for(variables)

    @tf.function(jit_compile=True, autograph=False)
    def run(features):
        fed = {inputs[name].name: tensor for name, tensor in features.items()}
        return imported(definition, outputs, fed, values)

    return _program(run, features, trained)


def _program(run, features, trained):
    """The `Program` of a tf.function of features."""
    given = {name: tf.constant(array) for name, array in features.items()}
    program = run.experimental_get_compiler_ir(given)
    return Program(
        program(stage="hlo_serialized"),
        program(stage="hlo"),
        sum(v.shape.num_elements() * v.dtype.size for v in trained),
    )


def _step(model, head, work, inputs, batch_size, replicas):
    """The Tensors that one step returns to the host, by the model_fn in a TPU's contexts."""
    shards = tpu_function.tpu_shard_context(replicas)
    with whole_program(), shards, tf.variable_scope("", use_resource=True):
        tf.train.get_or_create_global_step()
        params = {"batch_size": batch_size, "use_tpu": True}
        spec = model_fn.model_fn_builder(model, head)(inputs, None, WORKS[work], params)
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
    """Where a graph's operations become part of a program that XLA compiles whole."""
    context = control_flow_ops.XLAControlFlowContext()
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def importable(graph, outputs):
    """The GraphDef of the step alone, without its placeholders and variables: see `imported`."""
    definition = tf.graph_util.extract_sub_graph(
        graph.as_graph_def(), [output.op.name for output in outputs]
    )
    nodes = [node for node in definition.node if node.op not in ("Placeholder", "VarHandleOp")]
    del definition.node[:]
    definition.node.extend(nodes)
    for node in definition.node:
        node.attr.pop("_class", None)  # Names the variable that it would lie beside.
        if node.op == "CrossReplicaSum":
            _to_custom_call(node, graph.get_tensor_by_name(node.name + ":0"))
    return definition


def _to_custom_call(node, tensor):
    del node.input[1:]  # The groups: all replicas are one.
    node.op = "XlaCustomCallV2"
    node.ClearField("attr")
    node.attr["call_target_name"].s = b"CrossReplicaSum"
    node.attr["backend_config"].s = b""
    node.attr["has_side_effect"].b = False
    for name in ("operand_dtypes", "result_dtypes"):
        node.attr[name].list.type.append(tensor.dtype.as_datatype_enum)
    node.attr["result_shapes"].list.shape.append(tensor.shape.as_proto())


def tensors_for(variables):
    """A dict of a graph's variables' names to variables of zeros outside of any graph."""
    return {v.op.name: tf.Variable(tf.zeros(v.shape, v.dtype)) for v in variables}


def imported(definition, outputs, fed, values):
    """Builds the step within a tf.function.

    Args:
      definition: what `importable` returned.
      outputs: list of the step's output Tensors.
      fed: dict of placeholders' names to Tensors.
      values: what `tensors_for` returned.

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
    """The tf.function of features [_STEPS, B, ...] that takes the step again and again."""
    iterations = tf.Variable(_STEPS)

    @tf.function(jit_compile=True, autograph=False)
    def run(features):
        def body(index, *_):
            step = {fed[name]: tf.gather(tensor, index) for name, tensor in features.items()}
            return [index + 1, *imported(definition, outputs, step, values)]

        start = [0, *(tf.zeros(output.shape, output.dtype) for output in outputs)]
        return tf.while_loop(lambda index, *_: index < iterations, body, start)[1:]

    return run
