"""Tests of tf_estimator.py: what it provides on this TensorFlow and refuses on others."""

import importlib
import signal
import subprocess
import sys
import unittest
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.files import paths
from adapter_bert.shell import tf_estimator
from adapter_tests.support.tensorflows import HAS_ESTIMATOR

pytestmark = pytest.mark.estimator

if sys.version_info >= (3, 8):
    from importlib import metadata


class LoadTest(tf.test.TestCase):
    def test_estimator_api_that_bert_code_calls_is_available(self):
        self.assertTrue(issubclass(tf_estimator.tpu.TPUEstimator, tf_estimator.Estimator))
        for name in ("TPUConfig", "TPUEstimatorSpec", "RunConfig", "InputPipelineConfig"):
            self.assertTrue(callable(getattr(tf_estimator.tpu, name)))
        self.assertIs(tf.estimator.Estimator, tf_estimator.Estimator)
        with self.assertRaises(AttributeError):
            tf_estimator.NoSuchName  # noqa: B018

    def test_a_training_on_a_tpu_keeps_the_handler_of_ctrl_c(self):
        before = signal.getsignal(signal.SIGINT)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        tpu_estimator = importlib.import_module(tf_estimator.tpu.TPUEstimator.__module__)
        tpu_estimator.InstallSignalHandlerHook().before_run(None)
        self.assertEqual(signal.getsignal(signal.SIGINT), before)

    def test_a_model_trains_evaluates_and_predicts(self):
        """Gradient descent on (w - 3)^2 from 0 at rate 0.25 halves the distance at each step."""

        def model_fn(features, labels, mode, params):
            w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
            loss = (w - 3.0) ** 2
            optimizer = tf.train.GradientDescentOptimizer(0.25)
            return tf_estimator.tpu.TPUEstimatorSpec(
                mode,
                loss=loss,
                train_op=optimizer.minimize(loss, tf.train.get_global_step()),
                predictions={"w": w + 0 * features["x"]},
            )

        def input_fn(params):
            data = tf.data.Dataset.from_tensor_slices({"x": [0.0] * 8})
            return data.batch(params["batch_size"], drop_remainder=True)

        estimator = tf_estimator.tpu.TPUEstimator(
            model_fn,
            config=tf_estimator.tpu.RunConfig(model_dir=self.get_temp_dir()),
            use_tpu=False,
            train_batch_size=2,
            eval_batch_size=2,
            predict_batch_size=2,
        )
        estimator.train(input_fn, max_steps=2)
        self.assertAllClose(estimator.evaluate(input_fn, steps=1)["loss"], 0.75**2)
        self.assertAllClose(next(estimator.predict(input_fn))["w"], 2.25)


@unittest.skipIf(HAS_ESTIMATOR, "this TensorFlow has an Estimator of its own")
class StandInTest(tf.test.TestCase):
    def test_removed_classes_raise_not_implemented_error(self):
        from tensorflow.python.tpu import tpu_embedding

        for name in ("AdamParameters", "TPUEmbedding"):
            with self.assertRaisesRegex(NotImplementedError, rf"{name} is not in TensorFlow 2\."):
                getattr(tpu_embedding, name)(0.1)

    def test_estimator_wheel_can_be_loaded_twice(self):
        code = (
            "import importlib, sys; from adapter_bert.shell import tf_estimator;"
            "import tensorflow.compat.v1 as tf; del tf.estimator;"
            "importlib.reload(tf_estimator); print(tf_estimator.tpu.TPUEstimator.__name__)"
        )
        folder = paths.PROJECT
        said = subprocess.check_output([sys.executable, "-c", code], cwd=folder, text=True)
        self.assertEqual(said, "TPUEstimator\n")

    def test_missing_or_other_estimator_wheel_is_refused(self):
        for found, shown in ((lambda name: "2.12.0", "2.12.0"), (self.not_found, "none")):
            with mock.patch("importlib.metadata.version", found), self.assertRaisesRegex(
                ImportError, f"needs tensorflow-estimator 2.15, but {shown} is installed; run"
            ):
                tf_estimator._check_wheel()

    def not_found(self, name):
        raise metadata.PackageNotFoundError(name)

    def test_untested_tensorflow_logs_a_warning(self):
        with mock.patch.object(tf, "__version__", "2.99.0"), self.assertLogs("absl") as logged:
            tf_estimator._check_wheel()
        (line,) = logged.output
        self.assertRegex(line, r"^WARNING:.*TensorFlow 2\.99\.0 is newer than 2\.\d+")
