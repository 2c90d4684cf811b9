"""Tests of rematerialization.py: same gradients as plain code, but only inputs are saved."""

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.ops.dropout import DropoutKey, dropout
from adapter_bert.ops.rematerialization import recomputed

WIDTH = 4
GIVEN = ("Const", "VariableV2", "VarHandleOp", "ReadVariableOp", "Placeholder", "_Arg", "_Recv")


def layer(hidden, step, rate=0.3, tied=False):
    """Returns dropout(tanh(h W1)) W2 + h; if tied, W1 W1 replaces W1."""
    w1 = tf.get_variable("w1", [WIDTH, WIDTH])
    if tied:
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            w1 = tf.matmul(w1, tf.get_variable("w1", [WIDTH, WIDTH]))
    inner = tf.tanh(tf.matmul(hidden, w1))
    with tf.variable_scope(None, default_name="unnamed"):
        w2 = tf.get_variable("w2", [WIDTH, WIDTH])
        inner = dropout(inner, rate, key=DropoutKey(3, step))
        return tf.matmul(inner, w2) + hidden


class Stack:
    """Builds two layers for 5 rows, the loss and its gradients in the default graph."""

    def __init__(self, wrap, use_resource=False, trained="", tied=False):
        self.inputs = tf.placeholder(tf.float32, [5, WIDTH], "inputs")
        hidden = self.inputs
        step = tf.train.get_or_create_global_step()
        for index in range(2):
            with tf.variable_scope(f"layer_{index}", use_resource=use_resource):
                hidden = wrap(lambda h: layer(h, step, tied=tied), hidden)
        self.loss = tf.reduce_sum(hidden**2)
        self.variables = tf.trainable_variables()
        sources = [v for v in self.variables if trained in v.name]
        self.gradients = tf.gradients(self.loss, sources if trained else [self.inputs, *sources])

    def run(self, session, fetches, **options):
        random = np.random.RandomState(2)
        session.run(tf.global_variables_initializer())
        for variable in self.variables:
            variable.load(random.normal(size=variable.shape.as_list()), session)
        feed = {self.inputs: random.normal(size=[5, WIDTH])}
        return session.run(fetches, feed, **options)

    def optimized_nodes(self, session):
        """Returns the operations that TensorFlow executes for the gradients, by name."""
        options, metadata = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
        self.run(session, self.gradients, options=options, run_metadata=metadata)
        return {node.name: node for graph in metadata.partition_graphs for node in graph.node}


def plain(function, *inputs):
    return function(*inputs)


def data_inputs(node):
    return [name.split(":")[0] for name in node.input if not name.startswith("^")]


class RecomputedTest(tf.test.TestCase):
    def values(self, wrap, **options):
        with tf.Graph().as_default(), self.session() as session:
            stack = Stack(wrap, **options)
            names = [variable.op.name for variable in stack.variables]
            return names, stack.run(session, [stack.loss, *stack.gradients])

    def test_values_and_gradients_equal_plain_code(self):
        for options in ({}, {"use_resource": True}, {"tied": True}):
            names, expected = self.values(plain, **options)
            again, actual = self.values(recomputed, **options)
            self.assertEqual(names, again)
            self.assertLen(actual, 6)
            self.assertAllClose(expected, actual, rtol=1e-6, atol=1e-6)
            for gradient in actual[1:]:
                self.assertGreater(np.abs(gradient).max(), 0.1)

    def nodes(self, wrap, **options):
        with tf.Graph().as_default(), self.session() as session:
            return Stack(wrap, **options).optimized_nodes(session)

    def count(self, nodes, op):
        return sum(op in node.op for node in nodes.values())

    def saved(self, nodes):
        """Returns the outputs of the forward pass that the backward pass reads."""
        read = {
            source
            for name, node in nodes.items()
            if name.startswith("gradients")
            for source in data_inputs(node)
            if not source.startswith("gradients")
        }
        return {name for name in read if nodes[name].op not in GIVEN and "/read" not in name}

    def test_only_inputs_are_saved_and_passes_are_not_merged(self):
        nodes, plain_nodes = self.nodes(recomputed), self.nodes(plain)
        # The inputs of the second layer and the loss. Plain code also saves tanh, mask and dropout.
        self.assertLen(self.saved(nodes), 2)
        self.assertLen(self.saved(plain_nodes), 8)
        for op, times in (("StatelessRandomUniform", 2), ("Tanh", 4)):  # TanhGrad matches, too.
            self.assertEqual(self.count(plain_nodes, op), times)
            self.assertEqual(self.count(nodes, op), times + 2)

    def test_gradients_of_frozen_variables_are_not_computed(self):
        nodes = self.nodes(recomputed, trained="w2")
        # 4 forward; 2 recomputed for W1, as W2's outputs are not needed; 2 for the gradients of W2;
        # 2 for the gradient of layer 1's input. The frozen W1 would add 2.
        self.assertEqual(self.count(nodes, "MatMul"), 4 + 2 + 2 + 2)

    def test_layers_below_the_lowest_trained_one_are_not_recomputed(self):
        nodes = self.nodes(recomputed, trained="layer_1")
        self.assertEqual(self.count(nodes, "TanhGrad"), 1)
        self.assertEqual(self.count(nodes, "Tanh"), 2 + 1 + 1)

    def test_dropout_without_a_key_is_an_error(self):
        with tf.Graph().as_default():
            values = tf.constant([1.0, 2.0])
            dropped = recomputed(lambda x: tf.nn.dropout(x, rate=0.5), values)
            with self.assertRaisesRegex(ValueError, "dropout.*give dropout a key"):
                tf.gradients(dropped, values)

    def test_inputs_without_gradients_are_accepted(self):
        def masked(values, mask):
            weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
            return weight * values * tf.cast(mask, tf.float32)

        with tf.Graph().as_default(), self.session() as session:
            values = tf.constant([1.0, 2.0, 4.0])
            total = tf.reduce_sum(recomputed(masked, values, tf.constant([1, 0, 1])))
            gradients = tf.gradients(total, [values, tf.trainable_variables()[0]])
            session.run(tf.global_variables_initializer())
            self.assertAllClose([[1.0, 0.0, 1.0], 5.0], session.run(gradients))
