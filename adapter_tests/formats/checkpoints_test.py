"""Tests of checkpoints.py: damaged checkpoints, and the checkpoints of a run."""

import os
import re
import tempfile
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.files import gfile
from adapter_bert.formats import checkpoints
from adapter_bert.model import model_variables
from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations, tiny
from adapter_tests.support.checkpoint_cases import TINY, CheckpointTestCase, changed
from adapter_tests.support.shared import SHARED, needs_shared


class OpenCheckpointTest(CheckpointTestCase):
    def test_reads_a_saved_checkpoint(self):
        self.save({"a": np.float32([1, 2]), "step": np.int64(7)})
        reader = checkpoints.open_checkpoint(self.prefix)
        self.assertAllEqual(reader.get_tensor("a"), [1, 2])
        self.assertEqual(reader.get_tensor("step"), 7)

    def test_relative_prefix_is_opened(self):
        self.save({"a": np.float32([1, 2])})
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        self.assertTrue(checkpoints.open_checkpoint("bert_model.ckpt").has_tensor("a"))
        self.assert_refused(["bert_model.ckpt."], checkpoints.open_checkpoint, "other")

    def test_names_of_folders_are_no_patterns(self):
        for name, other in (("b[e]rt", "bert"), ("b\\art", "bart"), ("[!a]x", "bx")):
            for folder, value in ((name, 1), (other, 2)):
                prefix = os.path.join(self.folder, folder, "bert_model.ckpt")
                os.makedirs(os.path.dirname(prefix))
                checkpoints.write(prefix, {"a": np.float32([value])})
                self.assertAllEqual(checkpoints.open_checkpoint(prefix).get_tensor("a"), [value])
                checkpoints.check_shapes(prefix, {"a": (1,)})
            prefix = os.path.join(self.folder, name, "bert_model.ckpt")
            self.assertAllEqual(checkpoints.open_checkpoint(prefix).get_tensor("a"), [1])
            os.remove(prefix + ".index")
            self.assert_refused([prefix], checkpoints.open_checkpoint, prefix)

    def test_string_tensors_pass_the_size_check(self):
        self.save({"words": np.array([b""] * 100)})
        self.assertTrue(checkpoints.open_checkpoint(self.prefix).has_tensor("words"))

    def test_folder_is_refused_and_its_checkpoints_are_listed(self):
        self.assert_refused(
            ["--init_checkpoint", "is a folder", "but this folder has none"],
            checkpoints.open_checkpoint,
            self.folder,
        )
        self.save({"a": np.float32([1, 2])})
        other = self.save({"a": np.float32([1, 2])}, os.path.join(self.folder, "another"))
        self.assert_refused(
            ["--weights", "is a folder", f"{other} or {self.prefix}."],
            checkpoints.open_checkpoint,
            self.folder,
            flag="--weights",
        )

    def test_a_partial_checkpoint_is_not_suggested(self):
        """`check_encoder` would reject it later."""
        self.save({"a": np.float32([1, 2])}, os.path.join(self.folder, "partial.ckpt-3"))
        for prefix in (self.folder, self.prefix):
            with self.assertRaisesRegex(UserError, "complete checkpoint") as caught:
                checkpoints.open_checkpoint(prefix)
            self.assertNotIn("partial", str(caught.exception))

    def test_name_of_a_single_checkpoint_file_is_refused(self):
        self.save({"a": np.float32([1, 2])})
        open(self.prefix + ".meta", "w").close()
        for ending in (".index", ".meta", ".data-00000-of-00001"):
            expected = f"one of a checkpoint's files; .*: {re.escape(self.prefix)}[.]$"
            with self.assertRaisesRegex(UserError, expected):
                checkpoints.open_checkpoint(self.prefix + ending)

    def test_missing_checkpoint_is_refused(self):
        self.save({"a": np.float32([1, 2])})
        wrong = os.path.join(self.folder, "bert_modle.ckpt")
        self.assert_refused(
            ["no file " + wrong + ".index", self.prefix], checkpoints.open_checkpoint, wrong
        )
        nowhere = os.path.join(self.folder, "no", "such")
        self.assert_refused([nowhere, "are: none"], checkpoints.open_checkpoint, nowhere)

    def test_missing_shards_are_refused(self):
        parts = [
            self.save({name: np.float32([1, 2])}, os.path.join(self.folder, "part_" + name))
            for name in "abc"
        ]
        with tf.Graph().as_default(), tf.Session() as session:
            session.run(
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=parts, destination_prefix=self.prefix
                )
            )
        self.assertTrue(checkpoints.open_checkpoint(self.prefix).has_tensor("b"))
        moved = os.path.join(self.folder, "moved")
        for index in range(3):
            shard = f"{self.prefix}.data-0000{index}-of-00003"
            os.rename(shard, moved)
            self.assert_refused(["incomplete"], checkpoints.open_checkpoint, self.prefix)
            os.rename(moved, shard)

    def test_truncated_data_are_refused(self):
        self.save({"a": np.float32([1, 2, 3]), "step": np.int64(7)})
        os.truncate(self.prefix + ".data-00000-of-00001", 19)
        self.assert_refused(
            ["incomplete", "have 19 bytes", "require 20."], checkpoints.open_checkpoint, self.prefix
        )

    def test_damaged_index_is_refused(self):
        self.save({"a": np.float32([1, 2, 3])})
        with open(self.prefix + ".index", "rb") as stream:
            index = stream.read()
        html = b"<html>Not found</html>" * 20
        for damaged in (b"", index[:-20], html, b"x" + index[1:], index[-60:]):
            with open(self.prefix + ".index", "wb") as stream:
                stream.write(damaged)
            self.assert_refused(
                [f"--init_checkpoint {self.prefix} is damaged or not a TensorFlow checkpoint"],
                checkpoints.open_checkpoint,
                self.prefix,
            )

    def test_unreadable_checkpoints_are_refused(self):
        self.save({"a": np.float32([1, 2, 3])})
        refused = mock.patch.object(gfile, "listdir", side_effect=PermissionError(13, "No leave"))
        for path in (self.prefix, self.folder):
            with refused:
                self.assert_refused([path, "No leave"], checkpoints.open_checkpoint, path)
        os.remove(self.prefix + ".index")
        os.mkdir(self.prefix + ".index")
        self.assert_refused(
            [f"--init_checkpoint {self.prefix}"], checkpoints.open_checkpoint, self.prefix
        )

    def test_files_of_other_formats_are_refused(self):
        path = os.path.join(self.folder, "other")
        for content in (b"", b"{}", "é".encode() * 1000, b"\x89PNG\r\n\x1a\n\0"):
            with open(path, "wb") as stream:
                stream.write(content)
            self.assert_refused(
                [f"{path} is not the prefix of a TensorFlow checkpoint"],
                checkpoints.open_checkpoint,
                path,
            )


class CheckEncoderTest(CheckpointTestCase):
    def test_other_tensors_are_ignored(self):
        checkpoints.check_encoder(
            self.save_encoder(
                TINY,
                **{
                    "cls/predictions/output_bias": np.zeros([11], np.float32),
                    "bert/pooler/dense/bias/adam_m": np.zeros([64], np.float32),
                    "global_step": np.int64(3),
                },
            ),
            TINY,
        )

    def test_checkpoint_without_bert_is_refused(self):
        self.save({"conv/kernel": np.float32([1]), "global_step": np.int64(3)})
        self.assert_refused(
            ["--init_checkpoint", self.prefix, "not contain a BERT", "conv/kernel, global_step"],
            checkpoints.check_encoder,
            self.prefix,
            TINY,
        )

    def test_error_names_at_most_three_tensors(self):
        for names, part in (("abc", "are a, b, c."), ("dcba", "a, b, c, ...."), ("", "nothing.")):
            with mock.patch.object(checkpoints, "open_checkpoint") as opened:
                opened.return_value.get_variable_to_shape_map.return_value = dict.fromkeys(names)
                self.assert_refused([part], checkpoints.check_encoder, self.prefix, TINY)

    def test_missing_tensors_are_refused(self):
        self.save_encoder(TINY)
        self.assert_refused(
            ["lacks 16 of the 55 tensors", "bert/encoder/layer_2/attention/self/query/kernel"],
            checkpoints.check_encoder,
            self.prefix,
            changed(TINY, num_hidden_layers=3),
        )

    def test_tensors_of_wrong_size_are_refused(self):
        self.save_encoder(TINY)
        self.assert_refused(
            ["does not match", "bert/embeddings/word_embeddings", "[11, 64]", "[12, 64]"],
            checkpoints.check_encoder,
            self.prefix,
            changed(TINY, vocab_size=12),
        )
        self.assert_refused(
            ["does not match", "layer_0/intermediate/dense/kernel", "[64, 96]", "[64, 128]"],
            checkpoints.check_encoder,
            self.prefix,
            changed(TINY, intermediate_size=128, num_hidden_layers=3),
        )

    def test_tensors_of_wrong_dtype_are_refused(self):
        name = "bert/embeddings/word_embeddings"
        self.save_encoder(TINY, **{name: np.zeros([11, 64], np.float16)})
        self.assert_refused(
            [f"expected float32, but {name} is float16"],
            checkpoints.check_encoder,
            self.prefix,
            TINY,
        )

    def test_extra_layers_are_refused(self):
        adapter = "bert/encoder/layer_0/output/adapters/weights1"
        self.save_encoder(changed(TINY, num_hidden_layers=11), **{adapter: np.float32([[0]])})
        self.assert_refused(
            ["does not match", "has 11 layers", "expected 2."],
            checkpoints.check_encoder,
            self.prefix,
            TINY,
        )

    def test_check_encoder_reads_no_tensor_data(self):
        self.save_encoder(TINY)
        data = self.prefix + ".data-00000-of-00001"
        size = os.path.getsize(data)
        with open(data, "wb") as stream:
            stream.write(b"\xff" * size)
        with self.assertRaises(tf.errors.OpError):  # Its checksum no longer matches.
            checkpoints.open_checkpoint(self.prefix).get_tensor("bert/pooler/dense/kernel")
        checkpoints.check_encoder(self.prefix, TINY)

    @needs_shared
    def test_real_checkpoints_pass_the_check(self):
        for model in ("minilm-l6-uncased", "keras-bert-tiny"):
            folder = os.path.join(SHARED, "checkpoints", model)
            config = modeling.BertConfig.from_json_file(os.path.join(folder, "bert_config.json"))
            checkpoints.check_encoder(os.path.join(folder, "bert_model.ckpt"), config)


class EncoderSizesTest(CheckpointTestCase):
    def test_sizes_equal_the_config(self):
        shapes = {name: list(shape) for name, shape in model_variables.encoder_shapes(TINY).items()}
        shapes["cls/predictions/output_bias"] = [11]
        self.assertEqual(checkpoints.encoder_sizes(shapes, "Here"), (11, 64, 2, 96, 16, 2))

    def test_missing_required_tensor_is_refused(self):
        shapes = model_variables.encoder_shapes(TINY)
        for name in (
            "bert/embeddings/word_embeddings",
            "bert/embeddings/position_embeddings",
            "bert/embeddings/token_type_embeddings",
            "bert/encoder/layer_0/intermediate/dense/kernel",
        ):
            others = {n: shape for n, shape in shapes.items() if n != name}
            self.assert_refused(
                ["Here expected", f"no {name}, only bert/embeddings/LayerNorm/beta, "],
                checkpoints.encoder_sizes,
                others,
                "Here",
            )

    def test_tensor_of_wrong_rank_is_refused(self):
        shapes = model_variables.encoder_shapes(TINY)
        for name, shape in (
            ("bert/embeddings/word_embeddings", [11]),
            ("bert/encoder/layer_0/intermediate/dense/kernel", [2, 64, 96]),
        ):
            self.assert_refused(
                [f"Here expected {name} to have rank 2, but its shape is {shape}."],
                checkpoints.encoder_sizes,
                {**shapes, name: shape},
                "Here",
            )


class CheckTensorsTest(CheckpointTestCase):
    def test_damage_in_any_tensor_is_refused(self):
        self.save({"a": np.zeros(100, np.float32), "b": np.zeros(100, np.float32)})
        checkpoints.check_tensors(self.prefix)
        data = self.prefix + ".data-00000-of-00001"
        for name, offset in (("b", 700), ("a", 100)):  # 400 bytes each, ordered by name.
            with open(data, "r+b") as stream:
                stream.seek(offset)
                stream.write(b"\xff")
            self.assert_refused(
                [f"--weights {self.prefix} is damaged: its {name} cannot be read"],
                checkpoints.check_tensors,
                self.prefix,
                "--weights",
            )


class RunTest(CheckpointTestCase):
    """Reads the checkpoints of a run."""

    def save_step(self, step, **tensors):
        with tf.Graph().as_default(), tf.Session() as session:
            for name, value in {"global_step": np.int64(step), **tensors}.items():
                tf.get_variable(name, initializer=value, use_resource=False)
            session.run(tf.global_variables_initializer())
            prefix = os.path.join(self.folder, "model.ckpt")
            return tf.train.Saver().save(session, prefix, global_step=step, write_meta_graph=False)

    def test_saver_keeping_all_updates_the_latest_checkpoint(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        with tf.Graph().as_default(), self.session() as session:
            tf.get_variable("v", [2])
            session.run(tf.global_variables_initializer())
            saver = checkpoints.Saver(max_to_keep=0)
            for step in (1, 2):
                saver.save(session, os.path.join(folder, "model.ckpt"), step)
        self.assertEqual(tf.train.latest_checkpoint(folder), os.path.join(folder, "model.ckpt-2"))

    def test_last_step_is_0_without_a_checkpoint(self):
        nowhere = os.path.join(self.folder, "nowhere")
        for output_dir in (None, "", self.folder, nowhere):
            self.assertEqual(checkpoints.last_step(output_dir), 0)

    def test_last_step_is_of_the_last_written_checkpoint(self):
        for step in (900, 1000, 7):  # The last one written counts, regardless of its step.
            self.save_step(step)
            self.assertEqual(checkpoints.last_step(self.folder), step)

    def test_step_of_returns_global_step_or_0(self):
        self.assertEqual(checkpoints.step_of(self.save_step(12)), 12)
        self.assertEqual(checkpoints.step_of(self.save({"a": np.zeros(1)})), 0)

    def test_trained_tensors_are_those_listed(self):
        tensors = {
            "output_weights": np.ones([4, 9], np.float32),
            "output_weights/any_slot": np.zeros([4, 9], np.float32),
            "power": np.float32(1),
        }
        prefix = self.save_step(5, **tensors)
        actual = checkpoints.trained_tensors(prefix, ["output_weights"])
        self.assertEqual(set(actual), {"output_weights"})
        self.assertAllEqual(actual["output_weights"], tensors["output_weights"])
        names = ["output_weights", "output_bias"]
        lacks = ["--output_dir", 'lacks "output_bias", which its description requires']
        self.assert_refused(lacks, checkpoints.trained_tensors, prefix, names)
        with open(prefix + ".data-00000-of-00001", "r+b") as stream:
            stream.write(b"\xff" * 10)
        self.assert_refused(
            ["--output_dir", "damaged"], checkpoints.trained_tensors, prefix, names[:1]
        )

    def test_slots_of_any_optimizer_are_no_adapters(self):
        own, other = "bert/encoder/layer_0/output/adapters/w", "bert/x/adapters/v"
        names = [own, own + "/Momentum", other, other + "/Adam_1", "output_bias", "beta1_power"]
        self.assertEqual(checkpoints.unlisted_adapter_tensors(names, {own}), [other])
        self.assertEqual(checkpoints.unlisted_adapter_tensors(names, {own, other}), [])

    def test_training_checkpoint_is_refused_as_a_bert(self):
        weights = np.zeros(2, np.float32)
        for slots in ((), ("/adam_m", "/adam_v"), ("/Momentum",)):
            tensors = {"output_weights" + slot: weights for slot in ("", *slots)}
            self.assert_refused(
                ["only the trained weights of a task", "--adapter"],
                checkpoints.check_encoder,
                self.save_step(5, **tensors),
                TINY,
            )


class WriteTest(CheckpointTestCase):
    def test_round_trip(self):
        tensors = {
            "a/b": np.arange(6, dtype=np.float32).reshape(2, 3),
            "global_step": np.array(7, np.int64),
        }
        checkpoints.write(self.prefix, tensors)
        reader = tf.train.NewCheckpointReader(self.prefix)
        self.assertEqual(set(reader.get_variable_to_shape_map()), set(tensors))
        for name, value in tensors.items():
            actual = reader.get_tensor(name)
            self.assertEqual(actual.dtype, value.dtype)
            self.assertAllEqual(actual, value)

    def test_no_gpu_is_used(self):
        with mock.patch.object(tf, "Session", side_effect=tf.Session) as session:
            checkpoints.write(self.prefix, {"a": np.zeros(3)})
        self.assertEqual(dict(session.call_args[1]["config"].device_count), {"GPU": 0})

    def test_existing_checkpoint_is_replaced(self):
        for value in (1.0, 2.0):
            checkpoints.write(self.prefix, {"a": np.full(3, value)})
            actual = tf.train.NewCheckpointReader(self.prefix).get_tensor("a")
            self.assertAllEqual(actual, [value] * 3)
        self.assertLen(os.listdir(self.folder), 2)

    def test_an_old_index_is_never_next_to_new_data(self):
        checkpoints.write(self.prefix, {"a": np.zeros(3)})
        rename = gfile.rename

        def killed(old, new, overwrite):
            if new.endswith(".index"):
                raise KeyboardInterrupt
            rename(old, new, overwrite)

        with mock.patch.object(gfile, "rename", killed), self.assertRaises(KeyboardInterrupt):
            checkpoints.write(self.prefix, {"a": np.ones(3)})
        self.assertNotIn("bert_model.ckpt.index", os.listdir(self.folder))

    def test_an_interrupt_leaves_no_partial_files(self):
        def killed(old, new, overwrite):
            raise KeyboardInterrupt

        with mock.patch.object(gfile, "rename", killed), self.assertRaises(KeyboardInterrupt):
            checkpoints.write(self.prefix, {"a": np.ones(3)})
        self.assertEqual(os.listdir(self.folder), [])

    def test_unwritable_folder_is_refused(self):
        file = self.save({"a": np.zeros(1)}) + ".index"
        prefix = os.path.join(file, "inside")
        self.assert_refused(
            [prefix + " cannot be written"], checkpoints.write, prefix, {"a": np.zeros(1)}
        )


@st.composite
def other_tensors(draw, contents):
    """Draws valid checkpoints with missing or renamed tensors, or other shapes and dtypes."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "bert_model.ckpt")
        for name, content in contents.items():
            with open(os.path.join(folder, name), "wb") as writer:
                writer.write(content)
        reader = tf.train.NewCheckpointReader(prefix)
        names = sorted(reader.get_variable_to_shape_map())
        tensors = {name: reader.get_tensor(name) for name in names}
        odd = ("x", "bert", "global_step", "/", "bert/encoder/layer_99/x")
        for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=5, unique=True)):
            value = tensors.pop(name)
            changes = [value.astype(dtype) for dtype in (np.float64, np.int64, np.complex64)]
            changes += [value > 0, np.full(value.shape, b"text", object), value * np.nan]
            changes += [value[..., None], value[:1], value[:0], value.reshape(-1), np.float32(3)]
            changes.append(None)  # None deletes the tensor.
            change = changes[draw(st.integers(0, len(changes) - 1))]
            if change is not None:
                tensors[draw(st.sampled_from((*[name] * 5, name + "x", *odd)))] = change
        checkpoints.write(prefix, tensors)
        return mutations.files_in(folder)


class DamagedFilesTest(tf.test.TestCase):
    def test_a_damaged_checkpoint_is_loaded_or_rejected(self):
        def read(folder):
            prefix = os.path.join(folder, "bert_model.ckpt")
            checkpoints.check_encoder(prefix, tiny.config())
            checkpoints.check_tensors(prefix)
            checkpoints.step_of(prefix)
            checkpoints.trained_tensors(prefix, model_variables.encoder_shapes(tiny.config()))

        contents = mutations.written_by(tiny.write_bert)
        contents = {name: contents[name] for name in contents if ".ckpt." in name}
        for damage in (mutations.damaged_files, other_tensors):
            mutations.check(contents, read, ("bert_model.ckpt",), damage)
