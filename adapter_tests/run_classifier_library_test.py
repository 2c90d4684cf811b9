"""Tests of run_classifier.py's functions, called as BERT's users call them."""

import os
import shutil
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import tokenization
from adapter_bert.common import tf_estimator
from adapter_bert.ops import xla
from adapter_tests.support import tiny
from adapter_tests.support.script_cases import write

SEQ_LENGTH = 16

WEATHER = "".join(
    f"{label}\t{word} likes the dog .\n"
    for word in ("woman", "man")
    for label in ("sun", "rain", "snow")
)


class WeatherProcessor(run_classifier.DataProcessor):
    """A task of a user's own, written as BERT's README tells."""

    def get_train_examples(self, data_dir):
        return self._create_examples(self._read_tsv(os.path.join(data_dir, "train.tsv")), "train")

    def get_dev_examples(self, data_dir):
        return self._create_examples(self._read_tsv(os.path.join(data_dir, "dev.tsv")), "dev")

    def get_labels(self):
        return ["sun", "rain", "snow"]

    def _create_examples(self, lines, set_type):
        return [
            run_classifier.InputExample(
                guid=f"{set_type}-{i}",
                text_a=tokenization.convert_to_unicode(line[1]),
                text_b=None,
                label=tokenization.convert_to_unicode(line[0]),
            )
            for i, line in enumerate(lines)
        ]


class LibraryTest(tf.test.TestCase):
    """Code as it was written for BERT's run_classifier."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.bert = tiny.write_bert(os.path.join(self.folder, "bert"))
        self.init_checkpoint = os.path.join(self.bert, "bert_model.ckpt")
        self.tokenizer = tokenization.FullTokenizer(
            vocab_file=os.path.join(self.bert, "vocab.txt"), do_lower_case=True
        )
        self.config = modeling.BertConfig.from_json_file(
            os.path.join(self.bert, "bert_config.json")
        )

    def estimator(self, model_fn, output_dir="output"):
        run_config = tf_estimator.tpu.RunConfig(
            model_dir=os.path.join(self.folder, output_dir),
            save_checkpoints_steps=1000,
            keep_checkpoint_max=1,
            tpu_config=tf_estimator.tpu.TPUConfig(iterations_per_loop=1000, num_shards=8),
        )
        return tf_estimator.tpu.TPUEstimator(
            use_tpu=False,
            model_fn=model_fn,
            config=run_config,
            train_batch_size=4,
            eval_batch_size=4,
            predict_batch_size=4,
            export_to_tpu=False,
        )

    def record_file(self, name, examples):
        """The path of a TFRecord file of the weather's examples."""
        path = os.path.join(self.folder, name + ".tf_record")
        run_classifier.file_based_convert_examples_to_features(
            examples, WeatherProcessor().get_labels(), SEQ_LENGTH, self.tokenizer, path
        )
        return path

    def test_a_task_of_ones_own(self):
        data_dir, processor = os.path.join(self.folder, "data"), WeatherProcessor()
        for split in ("train", "dev"):
            write(os.path.join(data_dir, split + ".tsv"), WEATHER)
        model_fn = run_classifier.model_fn_builder(
            bert_config=self.config,
            num_labels=len(processor.get_labels()),
            init_checkpoint=self.init_checkpoint,
            learning_rate=1e-3,
            num_train_steps=2,
            num_warmup_steps=0,
            use_tpu=False,
            use_one_hot_embeddings=False,
        )
        estimator = self.estimator(model_fn)

        train_file = self.record_file("train", processor.get_train_examples(data_dir))
        train_input_fn = run_classifier.file_based_input_fn_builder(
            input_file=train_file, seq_length=SEQ_LENGTH, is_training=True, drop_remainder=True
        )
        estimator.train(input_fn=train_input_fn, max_steps=2)

        eval_examples = processor.get_dev_examples(data_dir)
        while len(eval_examples) % 4:
            eval_examples.append(run_classifier.PaddingInputExample())
        eval_input_fn = run_classifier.file_based_input_fn_builder(
            self.record_file("eval", eval_examples), SEQ_LENGTH, False, True
        )
        result = estimator.evaluate(input_fn=eval_input_fn, steps=2)
        self.assertEqual(set(result), {"eval_accuracy", "eval_loss", "global_step", "loss"})
        self.assertEqual(result["global_step"], 2)

        rows = list(estimator.predict(input_fn=eval_input_fn))
        self.assertLen(rows, 8)
        self.assertEqual({name for row in rows for name in row}, {"probabilities"})
        probabilities = np.array([row["probabilities"] for row in rows])[:6]
        labels = [0, 1, 2, 0, 1, 2]
        self.assertAllClose(probabilities.sum(axis=1), np.ones(6))
        # The padding rows, two of eight, weigh nothing.
        self.assertAllClose(
            result["eval_accuracy"], np.mean(probabilities.argmax(axis=1) == labels)
        )
        losses = -np.log(probabilities[np.arange(6), labels])
        self.assertAllClose(result["eval_loss"], losses.mean(), rtol=1e-5)

    def test_positional_arguments_and_features_in_memory(self):
        data = tiny.write_mrpc(os.path.join(self.folder, "data"), rows=6)
        processor = run_classifier.MrpcProcessor()
        features = run_classifier.convert_examples_to_features(
            processor.get_dev_examples(data), processor.get_labels(), SEQ_LENGTH, self.tokenizer
        )
        self.assertIsInstance(features[0], run_classifier.InputFeatures)
        self.assertEqual([feature.label_id for feature in features], [0, 1, 0, 1, 0, 1])
        model_fn = run_classifier.model_fn_builder(
            self.config, 2, self.init_checkpoint, 5e-5, 2, 1, False, False
        )
        estimator = self.estimator(model_fn)
        with self.assertLogs("absl", "WARNING") as log:
            estimator.train(
                run_classifier.input_fn_builder(features, SEQ_LENGTH, True, True), max_steps=2
            )
        warnings = [line for line in log.output if "learning rate of 5e-05" in line]
        self.assertLen(warnings, 1)
        self.assertIn("adapter_fn=None for full fine-tuning", warnings[0])
        input_fn = run_classifier.input_fn_builder(features, SEQ_LENGTH, False, False)
        self.assertEqual(estimator.evaluate(input_fn)["global_step"], 2)
        self.assertLen(list(estimator.predict(input_fn)), 6)
        names = estimator.get_variable_names()
        for name in (
            "bert/encoder/layer_1/output/adapters/weights2",
            "bert/encoder/layer_1/output/adapters/weights2/adam_m",
            "output_weights/adam_v",
        ):
            self.assertIn(name, names)
        # What does not train is read from the pretrained checkpoint, and never written.
        self.assertNotIn("bert/pooler/dense/kernel", names)
        # Of those before the first step and after the last, keep_checkpoint_max leaves one.
        saved = tf.io.gfile.glob(os.path.join(estimator.model_dir, "*.index"))
        self.assertEqual([os.path.basename(path) for path in saved], ["partial.ckpt-2.index"])
        self.check_export(estimator, features, input_fn)

    def check_export(self, estimator, features, input_fn):
        """A SavedModel predicts what its estimator does, wherever the BERT has gone."""
        names = ("input_ids", "input_mask", "segment_ids")

        def receiver():
            tensors = {name: tf.placeholder(tf.int32, [None, SEQ_LENGTH]) for name in names}
            ones = tf.ones_like(tensors["input_ids"][:, 0])
            own = {**tensors, "label_ids": ones, "is_real_example": ones}
            return tf_estimator.export.ServingInputReceiver(own, tensors)

        expected = [row["probabilities"] for row in estimator.predict(input_fn)]
        with xla.portable():
            path = estimator.export_saved_model(os.path.join(self.folder, "export"), receiver)
        shutil.rmtree(self.bert)
        shutil.rmtree(estimator.model_dir)
        with tf.Graph().as_default(), tf.Session() as session:
            loaded = tf.saved_model.loader.load(session, ["serve"], path.decode())
            signature = loaded.signature_def["serving_default"]
            self.assertEqual(list(signature.outputs), ["probabilities"])
            feeds = {
                signature.inputs[name].name: [getattr(row, name) for row in features]
                for name in names
            }
            found = session.run(signature.outputs["probabilities"].name, feeds)
        self.assertAllClose(found, expected, atol=1e-6)

    def test_create_model(self):
        arrays = tiny.arrays(rows=5, num_labels=3)
        labels = arrays["label_ids"]
        with tf.Graph().as_default(), tf.Session() as session:
            outputs = run_classifier.create_model(
                self.config,
                False,
                arrays["input_ids"],
                arrays["input_mask"],
                arrays["segment_ids"],
                labels,
                3,
                False,
            )
            session.run(tf.global_variables_initializer())
            weights, bias = (
                next(v for v in tf.trainable_variables() if v.op.name == name)
                for name in ("output_weights", "output_bias")
            )
            bias.load(np.float32([0.5, -1.0, 2.0]), session)
            weights.load(np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8), session)
            self.assertEqual(set(tf.get_collection("head")), {weights, bias})
            self.assertLen(tf.get_collection("adapters"), 2 * 2 * 4)
            pooled = tf.get_default_graph().get_tensor_by_name("bert/pooler/dense/Tanh:0")
            pooled, loss, per_example_loss, logits, probabilities = session.run((pooled, *outputs))
        expected = pooled @ np.linspace(-1, 1, 24).reshape(3, 8).T + [0.5, -1.0, 2.0]
        odds = np.exp(expected)
        expected_losses = -np.log(odds[np.arange(5), labels] / odds.sum(axis=1))
        self.assertAllClose(logits, expected, atol=1e-5)
        self.assertAllClose(probabilities, odds / odds.sum(axis=1, keepdims=True), atol=1e-5)
        self.assertAllClose(per_example_loss, expected_losses, atol=1e-5)
        self.assertAllClose(loss, expected_losses.mean(), atol=1e-5)


if __name__ == "__main__":
    tf.test.main()
