"""Tests of saved_model.py: runs exported models, some in a process without this project's code."""

import functools
import json
import os
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from adapter_bert.model import configs
from adapter_bert.serving.export import in_graph_tokenizer, saved_model
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_features
from adapter_tests.support import alone, own_models, tiny

# Reads calls of a SavedModel's signatures from stdin and writes their results, both as JSON.
_CALL = """
import json, sys
import tensorflow as tf
path, text, calls = json.load(sys.stdin)
if text:
    import tensorflow_text

def result(signature, inputs):
    try:
        _, specs = signature.structured_input_signature
        found = signature(
            **{name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
        )
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    arrays = {name: value.numpy() for name, value in found.items()}
    texts = {name for name, array in arrays.items() if array.dtype == object}
    return {n: (a.astype("S").astype("U") if n in texts else a).tolist() for n, a in arrays.items()}

model = tf.saved_model.load(path)
names = [name for name in sys.modules if getattr(sys.modules[name], "__file__", None)]
assert "adapter_bert" not in names and "modeling" not in names
json.dump([result(model.signatures[name], inputs) for name, inputs in calls], sys.stdout)
"""
# Texts that two tokenizers may read differently.
TEXTS = [
    "the Dog sees a big bird .",
    "",
    "CAFÉ dogs, birds\u00a0and\u2028cats!\t?",
    "woman\u0000 likes \ufffd small\u200b 狗 man",
    "a " * 40,
    "the old dog's " * 3,
]


def called(path, calls, text=False):
    """Returns the results of signatures in a separate process; for an error, its text.

    Args:
      path: of the SavedModel.
      calls: list of (signature, dict of inputs as lists).
    """
    return alone.call(_CALL, path, text, calls, TF_CPP_MIN_LOG_LEVEL="3")


loaded = functools.lru_cache(maxsize=None)(tf.saved_model.load_v2)


def called_here(path, calls):
    """Returns what `called` does, but with arrays, from signatures in this process."""
    model, results = loaded(path), []
    for name, inputs in calls:
        signature = model.signatures[name]
        _, specs = signature.structured_input_signature
        tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
        try:
            results.append({name: value.numpy() for name, value in signature(**tensors).items()})
        except tf.errors.InvalidArgumentError as error:
            results.append(str(error))
    return results


def encode(texts, *_):
    """Encodes every text as the same three tokens."""
    ids = tf.tile([[2, 7, 3]], [tf.size(texts), 1])
    return ids, tf.ones_like(ids), tf.zeros_like(ids)


@pytest.mark.slow
class SavedModelsTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if tf.__version__.startswith("1."):
            raise cls.skipTest(cls, "SavedModels are written by TensorFlow 2 alone.")
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert = tiny.write_bert(os.path.join(cls.root, "bert"), initializer_range=0.4)
        cls.models = own_models.SingleTaskModels(cls.bert)
        kinds = {"kind": "span", "labels": ()}, {"kind": "regression", "labels": ()}
        cls.mixed = cls.adapters({}, *kinds)
        cls.paths = [cls.write(each, encode) for each in (cls.adapters({}), cls.mixed)]

    @classmethod
    def adapters(cls, *changes):
        return {
            f"task{seed}": own_models.build_task_adapter(cls.bert, seed, **some)
            for seed, some in enumerate(changes)
        }

    @classmethod
    def write(cls, adapters, encode=None):
        folder = tempfile.mkdtemp(dir=cls.root)
        os.mkdir(os.path.join(folder, "7"))  # An earlier export.
        prefix = os.path.join(cls.bert, "bert_model.ckpt")
        return saved_model.write(folder, tiny.config(), prefix, adapters, encode)

    def test_single_task_is_exported_under_the_next_number(self):
        adapters = self.adapters({"labels": ("no", "yes", "perhaps")})
        path = self.write(adapters)
        self.assertEqual(os.path.basename(path), "8")
        rows = [[2, 7, 9, 11, 3], [2, 8, 3]]
        (found,) = called_here(path, [("serving_default", own_models.padded(rows))])
        for index, row in enumerate(rows):
            expected = self.models.predictions(adapters["task0"], row)["probabilities"]
            self.assertAllClose(found["probabilities"][index], expected, atol=1e-5)
            self.assertEqual(found["label"][index], (b"no", b"yes", b"perhaps")[expected.argmax()])
        self.assertAllEqual(found["labels"], [[b"no", b"yes", b"perhaps"]] * 2)
        with open(os.path.join(path, saved_model.TASKS_FILE)) as reader:
            self.assertEqual(json.load(reader)["task0"]["labels"], ["no", "yes", "perhaps"])

    def test_all_task_kinds_match_their_single_task_models(self):
        adapters = self.adapters(
            {"adapter": modeling.AdapterConfig(3)},
            {"adapter": modeling.AdapterConfig(8), "labels": ("a", "b", "c")},
            {"kind": "multilabel", "labels": ("x", "y", "z")},
            {"kind": "regression", "labels": ()},
            {"kind": "span", "labels": (), "adapter": modeling.AdapterConfig(1, sites="attention")},
            {"method": "layer_norm"},
            {
                "kind": "tagging",
                "labels": tuple("vwxyz"),
                "adapter": modeling.AdapterConfig(7, layers=(1,)),
            },
        )
        tasks = [*reversed(list(adapters))] * 2
        rows = [[2, 7, 9, 11, 3]] * 7 + [[2, 8, 3]] * 7
        inputs = {**own_models.padded(rows), "task": tasks}
        unknown = {**own_models.padded(rows[:1] * 2), "task": ["task0", "cola"]}
        found, refused = called(
            self.write(adapters), [("serving_default", inputs), ("serving_default", unknown)]
        )
        self.assertIn("There is no such task", refused)
        self.assertIn("cola", refused)
        for index, (task, row) in enumerate(zip(tasks, rows)):
            for name, value in self.models.predictions(adapters[task], row).items():
                if name == "tag_ids":
                    tags = ["vwxyz"[tag] for tag in value]
                    self.assertEqual(found["tags"][index][: len(row)], tags)
                    continue
                actual = found[name][index]
                if name == "probabilities":
                    self.assertFalse(any(actual[len(value) :]))
                if np.ndim(value):  # The rest belongs to other labels or padding.
                    actual = actual[: len(value)]
                self.assertAllClose(actual, value, atol=1e-5, msg=task)
        self.assertEqual(found["labels"][tasks.index("task0")], ["0", "1", "", "", ""])
        self.assertEqual([p != 0 for p in found["prediction"]], [task == "task3" for task in tasks])
        spans = [any(logits) for logits in found["start_logits"]]
        self.assertEqual(spans, [task == "task4" for task in tasks])
        tagged = [any(tags) for tags in found["tags"]]
        self.assertEqual(tagged, [task == "task6" for task in tasks])

    def test_an_adapter_function_of_ones_own_is_exported(self):
        def gate(input_tensor, hidden_size, init_scale, *, place):
            del hidden_size, init_scale
            with tf.variable_scope("adapters"):
                zeros, options = tf.zeros_initializer(), {"collections": [modeling.ADAPTERS]}
                gates = place.parameters.get_for_rows("gates", input_tensor, zeros, **options)
            return place.combine(gates * input_tensor)

        function = mock.patch.object(modeling, "gate", gate, create=True)
        variables = {"gates": configs.AdapterVariable(("D",))}
        with function, mock.patch.dict(configs.FUNCTIONS, gate=lambda _: variables):
            settings = modeling.AdapterConfig(fn="gate")
            adapters = self.adapters({"adapter": settings}, {"adapter": settings})
            path = self.write(adapters)
            rows = [[2, 7, 9, 11, 3], [2, 8, 3]]
            expected = [
                self.models.predictions(*pair)["probabilities"]
                for pair in zip(adapters.values(), rows)
            ]
        inputs = {**own_models.padded(rows), "task": list(adapters)}
        (found,) = called_here(path, [("serving_default", inputs)])
        self.assertAllClose(found["probabilities"], expected, atol=1e-5)

    def test_text_signatures_match_the_python_tokenizer(self):
        if in_graph_tokenizer.tensorflow_text is None:
            self.skipTest("tensorflow-text is not installed.")
        tokenizer = tokenization.FullTokenizer(os.path.join(self.bert, "vocab.txt"), True)
        adapters = self.adapters({"max_seq_length": 9}, {"max_seq_length": 16})
        path = self.write(adapters, in_graph_tokenizer.make_encoder(tokenizer))
        others = TEXTS[1:] + TEXTS[:1]
        tasks = ["task0", "task1"] * 3
        single, pair = called(
            path,
            [
                ("text", {"text": TEXTS, "task": tasks}),
                ("text_pair", {"text": TEXTS, "text_b": others, "task": tasks}),
            ],
            text=True,
        )
        for found, seconds in ((single, [None] * 6), (pair, others)):
            for index, (task, *texts) in enumerate(zip(tasks, TEXTS, seconds)):
                length = adapters[task].description.max_seq_length
                example = classifier_features.InputExample("", *texts, label="0")
                features = classifier_features.convert_single_example(
                    9, example, ["0"], length, tokenizer
                )
                ids, segments = (
                    list(np.compress(features.input_mask, values))
                    for values in (features.input_ids, features.segment_ids)
                )
                expected = self.models.predictions(adapters[task], ids, segments)
                self.assertAllClose(
                    found["probabilities"][index], expected["probabilities"], msg=texts
                )

    def test_numbers_out_of_range_and_other_shapes_fail(self):
        words, types = len(tiny.VOCABULARY), tiny.config().type_vocab_size
        inputs, wrong = own_models.padded([[2, 7, 9, 11, 3], [2, 8, 3]]), []
        for name, values in (
            ("input_ids", (-1, words)),
            ("segment_ids", (-1, types)),
            ("input_mask", (-1, 2)),
        ):
            for value in values:
                changed = [list(row) for row in inputs[name]]
                changed[1][1] = value
                wrong.append((name, changed))
            if name != "input_ids":
                wrong += [(name, inputs[name][:1]), (name, [row[:1] for row in inputs[name]])]
        for path, several in zip(self.paths, ({}, {"task": ["task1", "task0"]})):
            calls = [{**inputs, **several, name: value} for name, value in wrong]
            results = called_here(path, [("serving_default", call) for call in calls])
            for (name, value), result in zip(wrong, results):
                self.assertRegex(str(result), f"{name}: expected numbers from 0 to", msg=value)

    def test_zero_rows_get_zero_rows(self):
        for path, several in zip(self.paths, ({}, {"task": []})):
            calls = [("text", {"text": [], **several})]
            for length in (4, 0, tiny.config().max_position_embeddings):
                ids = np.zeros([0, length], np.int32)
                inputs = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ids)
                calls.append(("serving_default", {**inputs, **several}))
            for result in called_here(path, calls):
                self.assertEqual(set(map(len, result.values())), {0}, result)

    def test_bert_of_a_single_segment_id_has_no_signature_of_pairs(self):
        bert = tiny.write_bert(os.path.join(self.root, "one_type"), type_vocab_size=1)
        adapters = {"task": own_models.build_task_adapter(bert)}
        path = saved_model.write(
            os.path.join(self.root, "one"),
            tiny.config(type_vocab_size=1),
            os.path.join(bert, "bert_model.ckpt"),
            adapters,
            encode,
        )
        names = tf.saved_model.load_v2(path).signatures
        self.assertCountEqual(names, ["serving_default", "text"])

    def test_text_signatures_refuse_other_kinds_of_tasks(self):
        found, refused = called_here(
            self.paths[1],
            [("text", {"text": TEXTS[:2], "task": ["task0", name]}) for name in ("task0", "task1")],
        )
        expected = self.models.predictions(self.mixed["task0"], [2, 7, 3], [0] * 3)["probabilities"]
        self.assertAllClose(found["probabilities"], [expected, expected])
        self.assertRegex(refused, "no such task that reads texts:.*task1")

    def test_mixed_adapters_and_unwritable_paths_are_refused(self):
        adapters = self.adapters({}, {"adapter": modeling.AdapterConfig(4, "relu")})
        expected = r"Adapters of different activation \(gelu and relu\) cannot .* separately"
        with self.assertRaisesRegex(UserError, expected):
            self.write(adapters)
        adapters = self.adapters({})
        with open(os.path.join(self.root, "file"), "w"):
            pass
        with self.assertRaisesRegex(UserError, "file.* cannot be written"):
            saved_model.write(
                os.path.join(self.root, "file", "model"),
                tiny.config(),
                os.path.join(self.bert, "bert_model.ckpt"),
                adapters,
            )
