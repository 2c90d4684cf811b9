"""Tests of adapterhub.py against a list of names, and against the package `adapters`.

The package needs PyTorch and its own environment, which `make .venv-peers/installed` creates;
ADAPTER_BERT_PEERS names its Python.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import numpy as np
import safetensors.numpy
import tensorflow.compat.v1 as tf

import convert_checkpoint
import modeling
import tuning
from adapter_bert.files import json_objects
from adapter_bert.formats import adapterhub, adapterhub_config, huggingface, task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations, own_models, tiny
from adapter_tests.support.refusals import RefusalTestCase
from adapter_tests.support.task_adapters import description, random_adapter

PEERS = os.environ.get("ADAPTER_BERT_PEERS")
GOLDENS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support")
GOLDENS = os.path.join(GOLDENS, "adapterhub")
PFEIFFER = {"activation": "relu", "sites": "feed_forward", "placement": "normalized"}
PARALLEL = {**PFEIFFER, "placement": "parallel", "scaling": 4.0}
NLI = ("no", "maybe", "yes")

# The code that to_adapterhub prints, and a forward pass.
FORWARD = """
import sys, json, numpy, torch
{loading}
batch = numpy.load(sys.argv[1])
with torch.no_grad():
    output = model(**{{name: torch.tensor(batch[name]).long() for name in batch.files}})
if "start_logits" in output:
    logits = torch.stack([output.start_logits, output.end_logits], dim=-1)
else:
    logits = output.logits
numpy.save(sys.argv[2], logits.numpy())
model.save_adapter(sys.argv[3], name, use_safetensors=True)
"""


class AdapterHubTestCase(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def load(self, file):
        return safetensors.numpy.load_file(os.path.join(self.folder, file))

    def edit(self, file, **fields):
        path = os.path.join(self.folder, file)
        with open(path) as reader:
            record = json.load(reader)
        record["config"].update(fields)
        with open(path, "w") as writer:
            json.dump(record, writer)

    def assert_refused(self, part):
        super().assert_refused([part], adapterhub.read, self.folder, description())


class WriteTest(AdapterHubTestCase):
    def test_written_tensors_have_package_names_and_layouts(self):
        original = random_adapter()
        adapterhub.write(self.folder, original)
        self.assertEqual(set(os.listdir(self.folder)), set(adapterhub.FILES))
        adapters, head, norms = (
            self.load(name + ".safetensors") for name in ("adapter", "model_head", "layer_norms")
        )
        self.assertEqual((len(adapters), len(head), len(norms)), (2 * 2 * 4, 2, 2 * (1 + 2 * 2)))
        scope, site = (
            "bert/encoder/layer_1/attention/output/",
            "bert.encoder.layer.1.attention.output.",
        )
        np.testing.assert_array_equal(
            adapters[site + "adapters.MRPC.adapter_down.0.weight"],
            original.tensors[scope + "adapters/weights1"].T,
        )
        np.testing.assert_array_equal(
            adapters[site + "adapters.MRPC.adapter_up.bias"],
            original.tensors[scope + "adapters/biases2"][0],
        )
        np.testing.assert_array_equal(
            norms[site + "LayerNorm.weight"], original.tensors[scope + "LayerNorm/gamma"]
        )
        np.testing.assert_array_equal(
            head["heads.MRPC.1.weight"], original.tensors["output_weights"]
        )

    def test_supported_variants_are_written_to_the_config(self):
        sites_of = {"both": (True, True), "attention": (True, False), "feed_forward": (False, True)}
        for sites, placement in itertools.product(sites_of, ("sequential", "parallel")):
            adapterhub.write(self.folder, random_adapter(sites=sites, placement=placement))
            with open(os.path.join(self.folder, "adapter_config.json")) as reader:
                config = json.load(reader)["config"]
            self.assertEqual((config["mh_adapter"], config["output_adapter"]), sites_of[sites])
            self.assertEqual(config["is_parallel"], placement == "parallel")

    def test_reduction_factor_gives_the_size(self):
        for hidden in (8, 128, 384, 768, 1024):
            for size in range(1, min(hidden, 520) + 1):
                factor = adapterhub_config.reduction_factor(hidden, size)
                self.assertEqual(int(hidden // factor), size, (hidden, size))

    def test_unsupported_adapters_are_not_written(self):
        original = random_adapter()
        for changes, part in (
            ({"adapter": None, "tuning": tuning.Tuning("full")}, "--tuning=full"),
            ({"kind": "tagging", "tuning": tuning.Tuning(train_pooler=True)}, "token head"),
            ({"adapter": modeling.AdapterConfig(4, normalization="layer")}, "normalization=layer"),
            ({"adapter": modeling.AdapterConfig(4, normalization="batch")}, "normalization=batch"),
            ({"adapter": modeling.AdapterConfig(4, depth=2)}, "--adapter_depth=2"),
            ({"adapter": modeling.AdapterConfig(4, interaction="multiply")}, "=multiply"),
            ({"adapter": modeling.AdapterConfig(4, "elu")}, "--adapter_activation=elu"),
            # A PyTorch module's name must not contain a dot.
            ({"task": "conll.2003"}, "a dot in the task's name, conll.2003"),
        ):
            changed = original._replace(
                description=dataclasses.replace(original.description, **changes)
            )
            with self.assertRaisesRegex(UserError, part):
                adapterhub.write(self.folder, changed)


class ReadTest(AdapterHubTestCase):
    def test_round_trip_keeps_tensors_and_description(self):
        for options in (
            {},
            {"size": 3, "activation": "tanh"},
            {"activation": "leaky_relu", "sites": "attention", "placement": "parallel"},
            {"activation": "", "sites": "feed_forward"},
            {"activation": "gelu_erf"},
            {"layers": (1,), "layer_norms": "adapted"},
            {"layer_norms": "none"},
            {"labels": ()},
            {"labels": ("a", "b", "c")},
            {"labels": ("a", "b", "c"), "kind": "multilabel"},
            {"labels": ("O", "B-X", "I-X"), "kind": "tagging"},
            {"labels": (), "kind": "span"},
            {"train_pooler": True},
            {"labels": ("a",), "kind": "multilabel", "train_pooler": True},
            {"placement": "parallel", "scaling": 4.0, "activation": "relu"},
            {"placement": "normalized", "sites": "feed_forward", "activation": "relu"},
        ):
            original = random_adapter(**options)
            adapterhub.write(self.folder, original)
            if options.get("layer_norms") == "none":
                os.remove(os.path.join(self.folder, "layer_norms.safetensors"))
            given = description(task="", labels=(), adapter=None)
            actual = adapterhub.read(self.folder, given)
            self.assertEqual(
                dataclasses.replace(actual.description, adapter=None),
                dataclasses.replace(original.description, adapter=None),
            )
            adapter = original.description.adapter
            activation = adapter.activation or "linear"
            expected = dataclasses.replace(adapter, activation=activation)
            self.assertEqual(actual.description.adapter, expected)
            self.assertEqual(set(actual.tensors), set(original.tensors))
            for name, value in original.tensors.items():
                np.testing.assert_array_equal(actual.tensors[name], value, err_msg=name)

    def test_only_head_tensors_are_renamed_to_a_flexible_head(self):
        tensor = "bert.encoder.layer.0.output.adapters.a_classifier.adapter_down.0.weight"
        for name, expected in (
            (tensor, tensor),
            ("classifier.weight", "heads.a_classifier.1.weight"),
        ):
            found = adapterhub._current_name(name, "a_classifier", {}, "classifier")
            self.assertEqual(found, expected)

    def test_unsupported_adapters_are_not_read(self):
        for file, fields, part in (
            ("adapter_config.json", {"scaling": 0.0}, "must be a number above 0"),
            ("adapter_config.json", {"scaling": "much"}, "scaling"),
            ("adapter_config.json", {"architecture": "lora"}, "architecture must be None, but is"),
            ("adapter_config.json", {"ln_before": True}, "ln_before must be False, but is True"),
            ("adapter_config.json", {"phm_layer": True}, "phm_layer must be False, but is True"),
            ("adapter_config.json", {"inv_adapter": "nice"}, "inv_adapter must be None"),
            ("adapter_config.json", {"original_ln_after": False}, "are not supported"),
            (
                "adapter_config.json",
                {"original_ln_before": True, "residual_before_ln": "post_add"},
                '"residual_before_ln": "post_add"',
            ),
            ("adapter_config.json", {"is_parallel": "yes"}, 'with {"is_parallel": "yes",'),
            (
                "adapter_config.json",
                {"mh_adapter": False, "output_adapter": False},
                "are not supported",
            ),
            ("adapter_config.json", {"mh_adapter": [True]}, "are not supported"),
            ("adapter_config.json", {"mh_adapter": False}, "does not match the configs"),
            ("adapter_config.json", {"non_linearity": "mish"}, "non_linearity must be one of"),
            ("adapter_config.json", {"leave_out": [0]}, "does not match the configs"),
            ("head_config.json", {"layers": 2}, "but has layers 2, use_pooler True"),
            ("head_config.json", {"use_pooler": False}, "layers 1, use_pooler False"),
            ("head_config.json", {"head_type": "multiple_choice"}, "found multiple_choice"),
            ("head_config.json", {"num_labels": None}, "with None outputs"),
            ("head_config.json", {"num_labels": True}, "with True outputs"),
            ("head_config.json", {"num_labels": 2**31 - 1, "label2id": None}, "outputs"),
            ("adapter_config.json", {"scaling": 10**400}, "scaling"),
            ("adapter_config.json", {"scaling": True}, "scaling"),
            ("adapter_config.json", {"leave_out": 3}, "leave_out must be a list"),
            ("head_config.json", {"bias": "no"}, "bias no"),
            ("head_config.json", {"label2id": {"no": 0, "yes": 2}}, "label2id"),
        ):
            adapterhub.write(self.folder, random_adapter())
            self.edit(file, **fields)
            self.assert_refused(part)
        with open(os.path.join(self.folder, "head_config.json"), "w") as writer:
            json.dump({"model_class": []}, writer)
        self.assert_refused("expected an object config, or a model_class of")

    def test_missing_duplicate_and_misshapen_tensors_are_refused(self):
        name = "bert.encoder.layer.0.output.adapters.MRPC."
        path = os.path.join(self.folder, "adapter.safetensors")
        for fields, changes, part in (
            ({"scaling": "learned"}, {name + "scaling": np.ones(1, "f4")}, "scaling is missing"),
            ({}, {name + "adapter_up.weight": np.zeros([8, 5], "f4")}, "shape [8, 5]"),
        ):
            adapterhub.write(self.folder, random_adapter())
            self.edit("adapter_config.json", **fields)
            tensors = {**self.load("adapter.safetensors"), **changes}
            safetensors.numpy.save_file(tensors, path)
            self.assert_refused(part)

    def test_adapters_of_other_models_and_old_versions_are_refused(self):
        adapterhub.write(self.folder, random_adapter())
        path = os.path.join(self.folder, "adapter_config.json")
        record = json_objects.read_object(path)
        json_objects.write_object(path, {**record, "model_type": "roberta"})
        self.assert_refused("a model of the type roberta")
        json_objects.write_object(path, {**record, "config": "houlsby"})
        self.assert_refused("config must be an object")
        del record["version"]
        json_objects.write_object(path, record)
        self.assert_refused("is not of adapter-transformers 2.0 or later")

    def test_missing_and_truncated_files_are_refused(self):
        self.assert_refused("there is no")
        for file in adapterhub.FILES:
            adapterhub.write(self.folder, random_adapter())
            with open(os.path.join(self.folder, file), "r+b") as stream:
                stream.truncate(20)
            self.assert_refused(file)


def logits_of(bert, adapter, input_ids, input_mask, segment_ids):
    """Returns the logits of a `TaskAdapter` for a batch: [B, L], or [B, S, L] for a token head.

    The encoder is this project's; the head is NumPy's.

    Args:
      bert: folder of the backbone.
      adapter: `TaskAdapter`.
      input_ids, input_mask, segment_ids: int arrays [B, S].
    """
    description = adapter.description
    backbone = tf.train.NewCheckpointReader(os.path.join(bert, "bert_model.ckpt"))
    inputs = [np.asarray(value, np.int32) for value in (input_ids, input_mask, segment_ids)]
    settings = description.adapter
    with tf.Graph().as_default(), tf.Session() as session:
        encoder = modeling.BertModel(
            description.backbone.bert_config(),
            False,
            *map(tf.constant, inputs),
            scope="bert",
            adapter_fn=settings,
        )
        variables = tf.global_variables()
        names = [modeling.variable_name(variable) for variable in variables]
        own, read = adapter.tensors, backbone.get_tensor
        tiny.load(session, variables, [own[n] if n in own else read(n) for n in names])
        pooled, sequence = session.run([encoder.get_pooled_output(), encoder.get_sequence_output()])
    kind = task_kinds.get(description.kind)
    weights, bias = (own[kind.head_scope + name] for name in ("output_weights", "output_bias"))
    return (sequence if kind.reads_tokens else pooled) @ weights.T + bias


class GoldensTest(AdapterHubTestCase):
    """Compares with the package's files and logits; see `support/make_adapterhub_goldens.py`."""

    # Folder → (kind, labels, adapter, whether the head has a hidden layer).
    CASES = {
        "houlsby": ("classification", NLI, {"activation": "swish"}, True),
        "houlsby_pooler": ("classification", NLI, {}, False),
        "houlsby_learned": ("regression", (), {"activation": "swish"}, False),
        "pfeiffer": ("classification", NLI, PFEIFFER, False),
        "pfeiffer_tagging": (
            "tagging",
            ("O", "B-PER", "I-PER"),
            {**PFEIFFER, "layers": (1,)},
            False,
        ),
        "pfeiffer_multilabel": (
            "multilabel",
            NLI,
            {**PFEIFFER, "activation": "leaky_relu"},
            True,
        ),
        "parallel": ("classification", NLI, PARALLEL, True),
        "parallel_questions": ("span", (), {**PARALLEL, "sites": "both"}, False),
        "parallel_channel": (
            "multilabel",
            NLI,
            {**PARALLEL, "activation": "swish", "scaling": 1.0},
            True,
        ),
        "static_head": ("classification", NLI, PFEIFFER, False),
    }

    def setUp(self):
        super().setUp()
        self.bert = os.path.join(self.folder, "bert")
        self.output("from_huggingface", os.path.join(GOLDENS, "bert"), self.bert)

    def output(self, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            convert_checkpoint.main(list(arguments))
        return output.getvalue()

    def test_converted_adapters_give_the_packages_logits(self):
        batch = np.load(os.path.join(GOLDENS, "batch.npz"))
        inputs = [batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")]
        for name, (kind, labels, settings, is_hidden) in self.CASES.items():
            source, converted = os.path.join(GOLDENS, name), os.path.join(self.folder, name)
            flags = ["--max_seq_length=16", *(["--max_query_length=8"] if kind == "span" else [])]
            self.output("from_adapterhub", source, self.bert, converted, *flags)
            loaded = task_adapter.load(converted)
            self.assertEqual(loaded.description.kind, kind)
            self.assertEqual(loaded.description.labels, labels)
            self.assertEqual(loaded.description.adapter, modeling.AdapterConfig(4, **settings))
            self.assertEqual(loaded.description.tuning.train_pooler, is_hidden)
            expected = np.load(os.path.join(source, "logits.npy"))
            actual = logits_of(self.bert, loaded, *inputs)
            self.assertAllClose(actual, expected, rtol=1e-5, atol=1e-5, msg=name)

    def test_written_files_equal_the_packages_files(self):
        for name in ("houlsby_pooler", "pfeiffer_tagging", "parallel"):
            source, converted = os.path.join(GOLDENS, name), os.path.join(self.folder, name)
            self.output("from_adapterhub", source, self.bert, converted, "--max_seq_length=16")
            written = os.path.join(self.folder, "written", name)
            self.output("to_adapterhub", converted, written)
            for file in ("adapter.safetensors", "model_head.safetensors"):
                expected, actual = (
                    safetensors.numpy.load_file(os.path.join(folder, file))
                    for folder in (source, written)
                )
                self.assertEqual(set(actual), set(expected))
                for tensor, value in expected.items():
                    np.testing.assert_array_equal(actual[tensor], value, err_msg=tensor)
            for file in ("adapter_config.json", "head_config.json"):
                expected, actual = (
                    json_objects.read_object(os.path.join(folder, file))
                    for folder in (source, written)
                )
                self.assertEqual(set(actual), set(expected))
                # In the package a dropout of None means the model's dropout, 0.1 for a BERT. A head
                # of one layer has no activation, even if the config names one.
                ignored = {"dropout_prob", "activation_function"}
                for field in set(actual["config"]) - ignored:
                    self.assertEqual(actual["config"][field], expected["config"][field], field)

    def test_both_bert_weight_formats_give_equal_tensors(self):
        source, old = os.path.join(GOLDENS, "bert"), os.path.join(self.folder, "old_bert")
        os.mkdir(old)
        for name in ("config.json", "vocab.txt", "pytorch_model.bin"):
            shutil.copy(os.path.join(source, name), old)
        actual, expected = (huggingface.read(folder, "SOURCE_DIR") for folder in (old, source))
        self.assertEqual(set(actual.tensors), set(expected.tensors))
        for name, value in expected.tensors.items():
            np.testing.assert_array_equal(actual.tensors[name], value, err_msg=name)

    def test_describe_shows_architecture_and_labels(self):
        for name, parts in (
            (
                "houlsby",
                (
                    "houlsby, double_seq_bn, reduction factor 2, swish",
                    "Holds: 20 tensors, 403 parameters",
                    "Labels: no, maybe, yes, classification",
                ),
            ),
            ("pfeiffer_tagging", ("seq_bn", "O, B-PER, I-PER, tagging")),
            ("parallel", ("par_bn",)),
            ("static_head", ("pfeiffer, seq_bn, reduction factor 2, relu", "classification")),
        ):
            output = self.output("describe", os.path.join(GOLDENS, name))
            for part in parts:
                self.assertIn(part, output)

    def test_adapter_of_another_hidden_size_is_refused(self):
        wide = tiny.write_bert(os.path.join(self.folder, "wide"), hidden_size=16)
        arguments = ("from_adapterhub", os.path.join(GOLDENS, "houlsby"), wide, self.folder + "/x")
        with self.assertRaisesRegex(UserError, "has the shape .* requires"):
            self.output(*arguments, "--max_seq_length=16")


@unittest.skipUnless(PEERS, "needs the package adapters: ADAPTER_BERT_PEERS is not set")
class PackageTest(AdapterHubTestCase):
    def test_package_gives_equal_logits_and_saves_equal_adapters(self):
        bert = os.path.join(self.folder, "bert")
        arrays = tiny.arrays()
        for options in (
            {},
            {"layers": (1,), "size": 3},
            {"labels": ()},
            {"sites": "attention", "activation": "leaky_relu"},
            {"activation": "gelu_erf"},
            {"sites": "feed_forward", "activation": "sigmoid"},
            {"placement": "parallel", "activation": "swish"},
            {"placement": "parallel", "sites": "attention", "activation": "relu6"},
            {"placement": "parallel", "scaling": 4.0, "sites": "feed_forward"},
            {"placement": "normalized", "sites": "feed_forward", "activation": "relu"},
            {"placement": "normalized", "scaling": 0.5, "train_pooler": True},
            {"kind": "multilabel", "labels": ("a", "b", "c")},
            {"kind": "tagging", "labels": ("O", "B-X", "I-X")},
            {"kind": "span", "labels": ()},
        ):
            original = random_adapter(**options)
            source = os.path.join(self.folder, "source")
            os.makedirs(source, exist_ok=True)
            adapterhub.write(source, original)
            batch = [arrays[n] for n in ("input_ids", "input_mask", "segment_ids")]
            expected = logits_of(tiny.write_bert(bert), original, *batch)
            actual = self._package_forward(bert, source, arrays)
            self.assertAllClose(actual, expected, rtol=1e-5, atol=1e-5)
            saved = os.path.join(self.folder, "saved")
            os.replace(
                os.path.join(source, "layer_norms.safetensors"),
                os.path.join(saved, "layer_norms.safetensors"),
            )
            read = adapterhub.read(saved, original.description)
            self.assertEqual(read.description, original.description)
            for name, value in original.tensors.items():
                np.testing.assert_array_equal(read.tensors[name], value, err_msg=name)

    def _package_forward(self, bert, source, arrays):
        """Returns the package's logits; also saves the adapter with the package."""
        reader = tf.train.NewCheckpointReader(os.path.join(bert, "bert_model.ckpt"))
        names = huggingface.google_shapes(tiny.config(), ())
        huggingface.write_model(
            bert, tiny.config(), {name: reader.get_tensor(name) for name in names}
        )
        batch, logits = (os.path.join(self.folder, name) for name in ("batch.npz", "logits.npy"))
        np.savez(
            batch,
            input_ids=arrays["input_ids"],
            attention_mask=arrays["input_mask"],
            token_type_ids=arrays["segment_ids"],
        )
        loading = adapterhub.LOADING.format(folder=source, hidden_act="gelu_new").replace(
            "BERT", repr(bert)
        )
        code = FORWARD.format(loading=loading)
        saved = os.path.join(self.folder, "saved")
        subprocess.run([PEERS, "-c", code, batch, logits, saved], check=True)
        return np.load(logits)


class DamagedFilesTest(tf.test.TestCase):
    def check(self, bert, contents):
        """Checks that damaged files of an adapter are converted or rejected."""

        def read(folder):
            convert_checkpoint.main(["describe", folder])
            converted = os.path.join(folder, "made")
            convert_checkpoint.main(
                ["from_adapterhub", folder, bert, converted, "--max_seq_length=16"]
            )

        mutations.check(contents, read, (*contents, *adapterhub.FILES, "SOURCE_DIR", "PATH"))

    def test_damaged_own_files_are_converted_or_rejected(self):
        bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
        adapter = own_models.build_task_adapter(bert)
        self.check(bert, mutations.written_by(lambda folder: adapterhub.write(folder, adapter)))

    def test_damaged_package_files_are_converted_or_rejected(self):
        bert = os.path.join(self.get_temp_dir(), "bert")
        convert_checkpoint.main(["from_huggingface", os.path.join(GOLDENS, "bert"), bert])
        for name in ("houlsby_learned", "static_head"):
            self.check(bert, mutations.files_in(os.path.join(GOLDENS, name)))
