"""Tests of task_adapter.py against safetensors, TensorFlow and values computed by hand."""

import hashlib
import json
import os
import struct
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import safetensors
import safetensors.numpy
import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import tuning
from adapter_bert.files import json_objects
from adapter_bert.formats import safetensors_files, task_adapter
from adapter_bert.ops import layers
from adapter_bert.serving.inference import request_texts
from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations, own_models, tiny
from adapter_tests.support.task_adapters import TaskAdaptersTestCase, description, tensors

# Every field but `fn` and `scaling` differs from its default.
VARIANT = modeling.AdapterConfig(
    3, "elu", 0.1, "feedforward_adapter", (1,), "batch", 2, "attention", "parallel", "multiply"
)
# The adapter's fields in versions without variants.
FIELDS_OF_OLD = ("size", "activation", "init_scale", "fn", "layers")


class SaveTest(TaskAdaptersTestCase):
    def test_saved_adapter_loads_unchanged(self):
        for changes in (
            {},
            {"adapter": None, "tuning": tuning.Tuning("top_layers", num_top_layers=1)},
            {"kind": "regression", "labels": ()},
            {"adapter": modeling.AdapterConfig(layers=(1,)), "scores": {}},
            {"adapter": VARIANT},
            {"labels": ("", "ja", "Straße\n")},
        ):
            saved = self.save(**changes)
            self.assert_equal_adapters(task_adapter.load(self.folder), saved)
            self.assertEqual(task_adapter.describe(self.folder), saved.description)

    def test_adapter_replaced_while_it_is_read_loads(self):
        self.save(seed=1)
        read, later = safetensors_files.read, []

        def replace_first(*arguments, **options):
            if not later:
                later.append(self.save(seed=2))
            return read(*arguments, **options)

        with mock.patch.object(safetensors_files, "read", replace_first):
            self.assert_equal_adapters(task_adapter.load(self.folder), later[0])

    def test_tensors_are_sorted_by_name(self):
        names = list(self.save().tensors)
        self.assertEqual(list(task_adapter.load(self.folder).tensors), sorted(names))

    def test_files_hold_tensors_description_and_checksum(self):
        self.save(seed=1)
        first = [self.read(path) for path in (self.config_file, self.tensors_file)]
        self.save()
        saved = self.save(seed=1)  # Equal bytes.
        contents = [self.read(path) for path in (self.config_file, self.tensors_file)]
        self.assertEqual(contents, first)
        names = ["README.md", "adapter.safetensors", "adapter_config.json"]
        self.assertEqual(sorted(os.listdir(self.folder)), names)
        actual = safetensors.numpy.load_file(self.tensors_file)
        self.assertEqual(set(actual), set(saved.tensors))
        for name, value in saved.tensors.items():
            np.testing.assert_array_equal(actual[name], value)
        record = self.record()
        self.assertEqual(record["sha256"], hashlib.sha256(self.read(self.tensors_file)).hexdigest())
        self.assertEqual(record["adapter"]["size"], 4)
        self.assertEqual(record["labels"], ["0", "1"])
        with safetensors.safe_open(self.tensors_file, "np") as opened:
            copy = json.loads(opened.metadata()["adapter_config"])
        del record["sha256"]
        self.assertEqual(copy, record)

    def test_digest_depends_on_the_tensors(self):
        digests = {
            task_adapter.tensors_digest(task_adapter.TaskAdapter(description(), values))
            for values in (
                tensors(),
                tensors(),
                tensors(1),
                {**tensors(), "output_bias": np.zeros(2, np.float32)},
            )
        }
        self.assertLen(digests, 3)


class ShapesTest(TaskAdaptersTestCase):
    """Checks the names and shapes of a task adapter's tensors."""

    def test_shapes_match_trained_variables(self):
        upper = modeling.AdapterConfig(size=3, layers=(1,))
        for changes in (
            {},
            {"adapter": upper},
            {"adapter": upper, "tuning": tuning.Tuning(layer_norms="adapted")},
            {"adapter": VARIANT, "tuning": tuning.Tuning(layer_norms="adapted")},
            {"adapter": modeling.AdapterConfig(3, normalization="layer", sites="feed_forward")},
            {"adapter": modeling.AdapterConfig(3, depth=3, interaction="multiply")},
            {"tuning": tuning.Tuning(layer_norms="none", train_pooler=True)},
            {"labels": ("a", "b", "c")},
            {"adapter": None, "tuning": tuning.Tuning("full")},
            {"adapter": None, "tuning": tuning.Tuning("top_layers", num_top_layers=1)},
            {"adapter": None, "tuning": tuning.Tuning("layer_norm")},
            {"adapter": None, "tuning": tuning.Tuning("head")},
        ):
            described = description(**changes)
            with self.subTest(changes=changes):
                self.assertEqual(task_adapter.shapes(described), self._in_the_graph(described))

    def _in_the_graph(self, described):
        adapter = described.adapter
        with tf.Graph().as_default():
            ids = [tf.zeros([1, 2], tf.int32)] * 3
            num_labels = len(described.labels)
            run_classifier.create_model(
                tiny.config(),
                False,
                *ids,
                tf.zeros([1], tf.int32),
                num_labels,
                False,
                adapter_fn=adapter,
            )
            trained = tuning.trained_variables(described.tuning)
            trained += layers.moving_variables()
            return {variable.op.name: tuple(variable.shape.as_list()) for variable in trained}

    def test_duplicate_labels_are_refused(self):
        with self.assertRaisesRegex(UserError, 'labels has "x" twice; expected distinct ones'):
            description(labels=("x", "y", "x"))

    def test_parameters_exclude_moving_statistics(self):
        shapes = task_adapter.shapes(description(adapter=VARIANT, tuning=tuning.Tuning()))
        scope = "bert/encoder/layer_1/attention/output/adapters/BatchNorm/"
        moving = {scope + "moving_mean", scope + "moving_variance"}
        self.assertEqual(set(shapes) - set(task_adapter.parameters(shapes)), moving)
        for name in moving:
            self.assertEqual(shapes[name], (3,))

    def test_bert_base_adapters_have_expected_sizes(self):
        config = modeling.BertConfig(vocab_size=30522)
        layer_norms, head = 2 * (1 + 2 * 12) * 768, 2 * 768 + 2
        for size, num_bytes in ((8, 1413896), (64, 9676808), (256, 38006792)):
            adapters = 2 * 12 * (768 * size + size + size * 768 + 768)
            saved = self.save(
                adapter=modeling.AdapterConfig(size),
                backbone=task_adapter.Backbone("bert_base", "f" * 64, config.to_dict()),
            )
            self.assertLen(saved.tensors, 2 * 12 * 4 + 2 * (1 + 2 * 12) + 2)
            self.assertEqual(num_bytes, 4 * (adapters + layer_norms + head))
            self.assertEqual(sum(value.nbytes for value in saved.tensors.values()), num_bytes)
            held = sum(os.path.getsize(path) for path in (self.config_file, self.tensors_file))
            self.assertBetween(held - num_bytes, 0, 32 << 10)


class EarlierVersionTest(TaskAdaptersTestCase):
    """Tests folders written by a version without variants of adapters."""

    def write_old(self, fields):
        """Saves a task adapter, then removes all fields of its adapter but these from its files."""
        saved = self.save()
        content, record = self.read(self.tensors_file), self.record()
        length = struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8 : 8 + length].decode()), content[8 + length :]
        del record["sha256"]
        record["adapter"] = {name: record["adapter"][name] for name in fields}
        header["__metadata__"]["adapter_config"] = json.dumps(record, sort_keys=True)
        text = json.dumps(header).encode()
        old = struct.pack("<Q", len(text)) + text + data
        self.write(self.tensors_file, old)
        self.write_record({**record, "sha256": hashlib.sha256(old).hexdigest()})
        return saved

    def test_missing_variant_fields_load_as_defaults(self):
        saved = self.write_old(FIELDS_OF_OLD)
        self.assertEqual(set(self.record()["adapter"]), set(FIELDS_OF_OLD))
        actual = task_adapter.load(self.folder)
        self.assert_equal_adapters(actual, saved)
        self.assertEqual(actual.description.adapter.variant(), {})
        self.assertEqual(
            task_adapter.compatibility_fields(actual.description),
            task_adapter.compatibility_fields(description()),
        )

    def test_original_fields_are_required(self):
        self.write_old(FIELDS_OF_OLD[1:])
        self.assert_refused("missing or unknown: size.")


def with_header(header, data):
    """Returns the content of a safetensors file."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def hostile_changes(record):
    """Returns changes to the JSON of `description`, each a dict."""
    adapter, backbone = record["adapter"], record["backbone"]

    def sizes(**changes):
        return {"backbone": {**backbone, "config": {**backbone["config"], **changes}}}

    return (
        {"scores": {"x": 10**400}},
        {"global_step": 10**30},
        {"task": "\ud800"},
        {"adapter": {**adapter, "layers": []}},
        {"adapter": {**adapter, "layers": [7]}},
        {"adapter": {**adapter, "layers": [-1]}},
        {"adapter": {**adapter, "size": 10**18}},
        {"adapter": {**adapter, "depth": 10**9}},
        {"adapter": {**adapter, "depth": 2}},
        {"adapter": {**adapter, "depth": 1.0}},
        {"adapter": {**adapter, "sites": "attention"}},
        {"adapter": {**adapter, "sites": ["both"]}},
        {"adapter": {**adapter, "normalization": "batch"}},
        {"adapter": {**adapter, "placement": None}},
        {"adapter": {**adapter, "fn": "os.system"}},
        {"adapter": {**adapter, "fn": "none"}},
        {"adapter": None},
        {"backbone": {**backbone, "config": {}}},
        sizes(vocab_size="many"),
        sizes(hidden_size=10**12),
        sizes(num_hidden_layers=0),
        sizes(num_hidden_layers=None),
        sizes(num_attention_heads=3),
        sizes(__class__=1),
        sizes(to_dict=1),
        sizes(layer_norm_eps=1e-5),
        {"tuning": {**record["tuning"], "method": "full"}},
    )


class RefusedTest(TaskAdaptersTestCase):
    def test_missing_files_are_refused(self):
        self.assert_refused("there is no", "adapter_config.json")
        self.save()
        os.remove(self.tensors_file)
        self.assert_refused("adapter.safetensors cannot be read (No such file")
        os.mkdir(self.tensors_file)
        self.assert_refused(self.tensors_file, "cannot be read")

    def test_files_of_different_adapters_are_refused(self):
        other = os.path.join(self.root, "other")
        self.save(seed=1, folder=other)
        self.save()
        os.replace(os.path.join(other, "adapter.safetensors"), self.tensors_file)
        self.assert_refused("SHA-256")

    def test_edited_description_is_refused(self):
        self.save()
        for name, value in (("task", "RTE"), ("labels", ["1", "0"]), ("scores", {"f1": 1.0})):
            self.write_record({**self.record(), name: value})
            self.assert_refused("adapter_config.json", "differs")
            self.save()

    def test_invalid_config_fields_are_refused(self):
        self.save()
        record = self.record()
        for changes, part in (
            ({"format": "other"}, "adapter-bert task adapter"),
            ({"format_version": 2}, "format_version is 2"),
            ({"sha256": 5}, "sha256"),
            ({"extra": 1}, "extra"),
            ({"labels": "01"}, "labels"),
            ({"labels": [0, 1]}, "labels"),
            ({"kind": "ranking"}, "kind=ranking: expected one of classification, regression,"),
            ({"global_step": "12"}, "global_step"),
            ({"global_step": True}, "global_step"),
            ({"adapter": {**record["adapter"], "size": 0}}, "at least 1"),
            (
                {"adapter": {**record["adapter"], "normalization": "group"}},
                "--adapter_normalization=group: expected one of none, layer, batch",
            ),
            ({"adapter": {**record["adapter"], "gate": 1}}, "missing or unknown: gate"),
            ({"tuning": {**record["tuning"], "method": "magic"}}, "magic"),
        ):
            self.write_record({**record, **changes})
            self.assert_refused(part)
        self.write_record({name: value for name, value in record.items() if name != "labels"})
        self.assert_refused("labels")
        self.write(self.config_file, b"{")  # As `json_objects` refuses it.
        self.assert_refused("adapter_config.json: is not valid JSON")

    def test_deep_json_is_refused(self):
        self.save()
        record = self.record()
        for depth, is_refused in ((90, False), (120, True), (300, True)):
            nested = json.loads('{"a":' * depth + "0" + "}" * depth)
            self.write(self.config_file, json.dumps({**record, "training": nested}).encode())
            if is_refused:
                for function in (task_adapter.load, task_adapter.describe):
                    with self.assertRaisesRegex(UserError, "more than 100 levels"):
                        function(self.folder)
            else:
                task_adapter.card_of(
                    task_adapter.TaskAdapter(task_adapter.describe(self.folder), {})
                )

    def test_savable_descriptions_can_be_loaded(self):
        def described(count):
            return description(labels=tuple(f'"é{number}"' * 8 for number in range(count)))

        most = 18_000
        with self.assertRaisesRegex(UserError, f"its {most:,} labels and settings have [0-9,]+"):
            task_adapter.check_savable(described(most))
        savable = described(most - 2_000)
        task_adapter.check_savable(savable)
        shapes = task_adapter.shapes(savable)
        values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        task_adapter.save(self.folder, task_adapter.TaskAdapter(savable, values))
        self.assertEqual(task_adapter.load(self.folder).description.labels, savable.labels)

    def test_copies_of_the_description_must_be_equal(self):
        self.save()
        record, (header, data) = self.record(), self.header_and_data()
        for metadata in ({"adapter_config": "{}"}, {}):
            content = with_header({**header, "__metadata__": metadata}, data)
            self.write(self.tensors_file, content)
            self.write_record({**record, "sha256": hashlib.sha256(content).hexdigest()})
            self.assert_refused("its copy in that file differs")

    def header_and_data(self):
        """Returns the two parts of the tensors' file: header and data."""
        content = self.read(self.tensors_file)
        length = struct.unpack("<Q", content[:8])[0]
        return json.loads(content[8 : 8 + length].decode()), content[8 + length :]

    def test_missing_extra_or_misshapen_tensors_are_refused(self):
        name = "bert/encoder/layer_1/output/adapters/weights1"
        for changes, part in (
            ({name: None}, f'lacks "{name}"'),
            ({"output_weights": None}, 'lacks "output_weights"'),
            ({name: np.zeros([8, 5], np.float32)}, f"{name} has the shape [8, 5], expected [8, 4]"),
            ({"output_bias": np.zeros(3, np.float32)}, "output_bias has the shape [3]"),
            ({"global_step": np.zeros([], np.float32)}, 'holds "global_step"'),
            ({"": np.zeros(2, np.float32)}, 'holds ""'),
            ({"bert/pooler/dense/bias": np.zeros(8, np.float32)}, 'holds "bert/pooler'),
        ):
            changed = {k: v for k, v in {**tensors(), **changes}.items() if v is not None}
            task_adapter.save(self.folder, task_adapter.TaskAdapter(description(), changed))
            self.assert_refused("adapter.safetensors", part)

    def test_larger_files_than_described_are_refused_unread(self):
        self.save()
        content = self.read(self.tensors_file)
        self.write(self.tensors_file, content + bytes(json_objects.MAX_JSON_BYTES + 1))
        with mock.patch.object(safetensors, "deserialize", side_effect=AssertionError):
            self.assert_refused("adapter.safetensors has", "bytes; expected at most")

    def test_hostile_descriptions_are_refused(self):
        """Both files agree and all digests match, so only the description is invalid."""
        saved = self.save()
        record, (header, data) = self.record(), self.header_and_data()
        del record["sha256"]
        for changes in hostile_changes(record):
            changed = {**record, **changes}
            header["__metadata__"]["adapter_config"] = json.dumps(changed, sort_keys=True)
            hostile = with_header(header, data)
            self.write(self.tensors_file, hostile)
            self.write_record({**changed, "sha256": hashlib.sha256(hostile).hexdigest()})
            with self.subTest(changes=changes):
                self.assert_refused("adapter")
        task_adapter.save(self.folder, saved)
        self.assert_equal_adapters(task_adapter.load(self.folder), saved)

    def test_integer_score_loads_as_float(self):
        self.save()
        self.write_record({**self.record(), "scores": {"f1": 1}})
        (score,) = task_adapter.describe(self.folder).scores.values()
        self.assertEqual(repr(score), "1.0")


class CompatibilityFieldsTest(tf.test.TestCase):
    def test_compatibility_fields_omit_default_variants(self):
        """With defaults, the compatibility fields are exactly those of earlier versions."""
        self.assertEqual(
            {
                name
                for name in task_adapter.compatibility_fields(description())
                if name.startswith("adapter_")
            },
            {"adapter_fn", "adapter_size", "adapter_activation", "adapter_layers"},
        )
        variant = task_adapter.compatibility_fields(description(adapter=VARIANT))
        self.assertEqual(
            [variant["adapter_" + name] for name in ("normalization", "depth", "sites")],
            ["batch", 2, "attention"],
        )


class OldFilesTest(tf.test.TestCase):
    def test_adapter_of_earlier_version_loads(self):
        """Loads the adapter in support/old_files, which commit c5f2c13 wrote."""
        folder = os.path.join(os.path.dirname(tiny.__file__), "old_files")
        with open(os.path.join(folder, "expected.json")) as reader:
            expected = json.load(reader)
        adapter = task_adapter.load(os.path.join(folder, "adapter"))
        self.assertEqual(task_adapter.tensors_digest(adapter), expected["tensors"])
        self.assertEqual(adapter.description.task, expected["task"])
        self.assertEqual(list(adapter.description.labels), expected["labels"])
        self.assertEqual(adapter.description.adapter.depth, 2)
        self.assertTrue(adapter.description.tuning.train_pooler)


@st.composite
def resealed(draw, contents):
    """Draws task adapters with a changed description or header and matching checksums."""
    config, content = (contents[name] for name in task_adapter.FILES)
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length].decode())
    record = json.loads(config.decode())
    record.pop("sha256")
    if draw(st.integers(0, 9)) < 7:
        record = draw(mutations.damaged_value(record))
    else:
        header = draw(mutations.damaged_value(header))
    if isinstance(header, dict):
        text = json.dumps(record, sort_keys=True)
        header = {**header, "__metadata__": {"adapter_config": text}}
    packed = mutations.json_bytes(header)
    content = struct.pack("<Q", len(packed)) + packed + content[8 + length :]
    if isinstance(record, dict):
        record = {**record, "sha256": hashlib.sha256(content).hexdigest()}
    return dict(zip(task_adapter.FILES, (mutations.json_bytes(record), content)))


class PresentationTest(TaskAdaptersTestCase):
    def test_presentation_is_loaded_and_can_be_edited(self):
        presentation = task_adapter.Presentation({"0": "no"}, ("text",), {"text": "a"})
        self.save(presentation=presentation)
        self.assertEqual(task_adapter.load(self.folder).description.presentation, presentation)
        with open(self.config_file) as reader:
            record = json.load(reader)
        record["presentation"] = {"label_descriptions": {"1": "yes"}}
        with open(self.config_file, "w") as writer:
            json.dump(record, writer)
        edited = task_adapter.Presentation({"1": "yes"})
        self.assertEqual(task_adapter.load(self.folder).description.presentation, edited)
        record["presentation"] = {"label_descriptions": {"1": 2}}
        with open(self.config_file, "w") as writer:
            json.dump(record, writer)
        with self.assertRaisesRegex(UserError, "presentation.label_descriptions.1: expected str"):
            task_adapter.load(self.folder)

    def test_presentation_has_examples_and_license_if_they_are_set(self):
        self.save(presentation=task_adapter.Presentation({"0": "no"}, ("text",)))
        with open(os.path.join(self.folder, "adapter_config.json")) as reader:
            stored = json.load(reader)["presentation"]
        # As of versions without them, which refuse unknown fields.
        self.assertEqual(stored, {"label_descriptions": {"0": "no"}, "fields": ["text"]})
        presentation = task_adapter.Presentation(examples=({"text": "a"},), license="mit")
        self.save(presentation=presentation)
        self.assertEqual(task_adapter.load(self.folder).description.presentation, presentation)

    def test_presentation_is_not_in_the_tensors_file(self):
        self.save()
        with open(self.config_file) as reader:
            self.assertNotIn("presentation", reader.read())
        without = self.read(self.tensors_file)
        self.save(presentation=task_adapter.Presentation({"0": "no"}))
        self.assertEqual(self.read(self.tensors_file), without)


class DamagedFilesTest(tf.test.TestCase):
    def test_a_damaged_or_resealed_adapter_is_loaded_or_rejected(self):
        bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
        tokenizers = request_texts.Tokenizers(os.path.join(bert, "vocab.txt"))
        encoding = request_texts.TextEncoding(tiny.config(), tokenizers, 1000)

        def read(folder):
            adapter = task_adapter.load(folder)
            request_texts.TaskTexts(adapter.description, encoding, "The task")
            json.dumps(task_adapter.compatibility_fields(adapter.description))

        span = {"kind": "span", "labels": ()}
        span["training"] = {"doc_stride": 3, "max_query_length": 4}
        names = (*task_adapter.FILES, "--adapter", "ADAPTER_DIR", "PATH", "The task")
        for options in ({}, span):
            adapter = own_models.build_task_adapter(bert, task="task", **options)
            contents = mutations.written_by(
                lambda folder, adapter=adapter: task_adapter.save(folder, adapter)
            )
            for damage in (mutations.damaged_files, resealed):
                with self.subTest(adapter.description.kind, damage=damage.__name__):
                    mutations.check(contents, read, names, damage)
