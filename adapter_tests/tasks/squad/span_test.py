"""Tests of span.py: logits and loss equal NumPy's, and padding is never an answer."""

import numpy as np
import tensorflow.compat.v1 as tf

import run_squad
from adapter_bert.tasks import heads
from adapter_bert.tasks.squad.span import KIND
from adapter_tests.support import tiny
from adapter_tests.support.head_case import fixed_encoder


class HeadTest(tf.test.TestCase):
    def test_logits_and_loss_equal_numpy(self):
        random = np.random.RandomState(0)
        sequence, weights = random.normal(size=[2, 5, 4]), random.normal(size=[2, 4])
        bias = np.array([0.5, -0.25])
        lengths, starts, ends = [5, 3], [1, 0], [4, 2]
        mask = (np.arange(5) < np.array(lengths)[:, None]).astype(np.int32)
        features = {"input_mask": mask, "start_positions": starts, "end_positions": ends}
        with tf.Graph().as_default(), tf.Session() as session:
            tensors = {name: tf.constant(values) for name, values in features.items()}
            config = tiny.config(hidden_size=4, num_attention_heads=1)
            with fixed_encoder(sequence):
                built = run_squad.create_model(config, True, *[None] * 3, False)
            masked = [heads.masked_logits(each, tensors["input_mask"]) for each in built]
            loss = heads.span_loss(masked, (tensors["start_positions"], tensors["end_positions"]))
            session.run(tf.global_variables_initializer())
            for variable, value in zip(tf.trainable_variables(), (weights, bias)):
                variable.load(value, session)
            names = [variable.op.name for variable in tf.trainable_variables()]
            loss, predictions = session.run((loss, masked))
        self.assertEqual(names, ["cls/squad/output_weights", "cls/squad/output_bias"])
        logits = np.moveaxis(sequence @ weights.T + bias, -1, 0)
        losses = []
        for row, length in enumerate(lengths):
            for kind, positions in enumerate((starts, ends)):
                odds = np.exp(logits[kind, row, :length])
                losses.append(-np.log(odds[positions[row]] / odds.sum()))
        self.assertAllClose(loss, np.mean(losses), rtol=1e-5)
        for found, expected in zip(predictions, logits):
            self.assertAllClose(found[0], expected[0], atol=1e-5)
            self.assertAllClose(found[1, :3], expected[1, :3], atol=1e-5)
            self.assertAllLess(found[1, 3:], -9000)
        self.assertEqual(
            KIND.head_shapes(0, 4),
            {"cls/squad/output_weights": (2, 4), "cls/squad/output_bias": (2,)},
        )

    def test_answer_for_input_ids_has_logits(self):
        outputs = KIND.decode(np.array([[1.0, 0.1], [2.0, -3.0]], np.float32))
        self.assertEqual(
            KIND.answer(outputs, ()), {"start_logits": [1.0, 2.0], "end_logits": [0.1, -3.0]}
        )
