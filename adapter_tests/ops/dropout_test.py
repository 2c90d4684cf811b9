"""Tests of dropout.py: masks depend only on seed, step and variable scope."""

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.ops import dropout
from adapter_tests.support.ways import both_ways


class DropoutTest(tf.test.TestCase):
    def draw(self, *key, scope="a", shape=(100, 200), rate=0.1):
        with tf.Graph().as_default(), self.session() as session, tf.variable_scope(scope):
            seed, *steps = key
            key = dropout.DropoutKey(seed, *[tf.constant(step, tf.int64) for step in steps])
            return session.run(dropout.dropout(tf.ones(shape), rate, key=key))

    def test_dropout_has_expected_rate_and_scale(self):
        for way in both_ways():
            with way:
                dropped = self.draw(1, 5)
            self.assertAllClose(np.unique(dropped), [0, 256 / 230])
            # 20,000 draws: 26 / 256 with a standard error of 0.0021.
            self.assertNear(np.mean(dropped == 0), 26 / 256, 0.009)

    def test_rate_near_one_scales_kept_elements_by_256(self):
        self.assertAllEqual(np.unique(self.draw(1, 5, rate=0.999)), [0, 256])

    def test_mask_depends_only_on_seed_steps_and_scope(self):
        mask = self.draw(1, 5)
        self.assertAllEqual(mask, self.draw(1, 5))
        for other in (self.draw(2, 5), self.draw(1, 6), self.draw(1, 5, scope="b")):
            # Independent masks agree on 0.9 * 0.9 + 0.1 * 0.1 of the elements.
            self.assertNear(np.mean((mask == 0) == (other == 0)), 0.82, 0.02)
        self.assertAllEqual(mask, self.draw(1, 5, 0))
        other = self.draw(1, 5, 1)
        self.assertNear(np.mean((mask == 0) == (other == 0)), 0.82, 0.02)

    def test_replicas_draw_different_masks(self):
        mask = self.draw(1, 5)
        self.assertAllEqual(mask, self.draw(1, 5, 0, 0))
        others = [self.draw(1, 5, 0, replica) for replica in (1, 2)]
        for one, other in ((mask, others[0]), (mask, others[1]), others):
            self.assertNear(np.mean((one == 0) == (other == 0)), 0.82, 0.02)

    def test_mixed_keys_are_distinct_in_xla_programs(self):
        def key_of(site, *parts):
            return session.run(dropout._mix_key(site, dropout.DropoutKey(0, *parts)))

        with tf.Graph().as_default(), self.session() as session:
            variants = [(7, 1), (8, 1), (7, 2), (7, 1, 1), (7, 1, 0, 1), (7, 1, 1, 1), (7, 0, 0, 0)]
            keys = [tuple(key_of(*variant)) for variant in variants]
        numbers = [number for key in keys for number in key]
        self.assertLen(set(numbers), 2 * len(variants))

    def test_construction_order_does_not_change_masks(self):
        def masks(scopes):
            with tf.Graph().as_default(), self.session() as session:
                actual = {}
                for scope in scopes:
                    with tf.variable_scope(scope):
                        key = dropout.DropoutKey(7, tf.constant(3))
                        actual[scope] = dropout.dropout(tf.ones([50]), 0.5, key=key)
                return session.run(actual)

        self.assertAllEqual(masks(["a", "b"])["b"], masks(["b", "a"])["b"])

    def test_gradient_uses_the_same_mask(self):
        with tf.Graph().as_default(), self.session() as session:
            x = tf.ones([40])
            dropped = dropout.dropout(x, 0.5, key=dropout.DropoutKey(7, 3))
            dropped, gradient = session.run([dropped, tf.gradients(dropped, x)[0]])
        self.assertAllEqual(dropped, gradient)

    def test_hashed_bytes_look_random(self):
        with tf.Graph().as_default(), self.session() as session:
            key = tf.placeholder(tf.int32, [2])
            hashed = dropout._hash_bytes(tf.constant([512, 512]), key)
            draws = [session.run(hashed, {key: k}) for k in ([0, 0], [0, 1], [1, 0], [-9, 2**30])]
        for draw in draws:
            # Chi-squared with 255 degrees of freedom has mean 255 and standard deviation 22.6.
            counts = np.bincount(draw.ravel(), minlength=256)
            self.assertBetween(np.sum((counts - 1024.0) ** 2 / 1024), 255 - 113, 255 + 113)
        shifted = [np.roll(draws[0], shift, axis) for shift in (1, 2, 16) for axis in (0, 1)]
        for other in draws[1:] + shifted:
            correlation = np.corrcoef(draws[0].ravel(), other.ravel())[0, 1]
            self.assertLess(abs(correlation), 5 / 512)

    def test_zero_rate_returns_the_input(self):
        x = tf.ones([3])
        self.assertIs(dropout.dropout(x, 0.0), x)

    def test_dropout_without_key_draws_a_new_mask_each_time(self):
        with tf.Graph().as_default(), self.session() as session:
            dropped = dropout.dropout(tf.ones([10000]), 0.5)
            self.assertNear(np.mean(session.run(dropped) == 0), 0.5, 0.05)
            self.assertNotAllEqual(session.run(dropped), session.run(dropped))
