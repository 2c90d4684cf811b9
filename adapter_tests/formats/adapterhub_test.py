"""Tests of adapterhub.py: against names written out by hand, and against the package itself.

The package `adapters` needs PyTorch, in an environment of its own: ADAPTER_BERT_PEERS names its
Python, as `make .venv-peers/installed` makes it.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import tempfile
import unittest

import numpy as np
import safetensors.numpy
import tensorflow.compat.v1 as tf

import convert_checkpoint
import modeling
import tuning
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_checkpoints, adapterhub, huggingface
from adapter_bert.tasks import heads
from adapter_tests.support import mutations, own_models, tiny
from adapter_tests.support.refusals import RefusalTestCase
from adapter_tests.support.task_adapters import description, random_adapter

PEERS = os.environ.get("ADAPTER_BERT_PEERS")

# The lines that to_adapterhub prints, and a forward pass.
FORWARD = """
import sys, json, numpy, torch
{loading}
batch = numpy.load(sys.argv[1])
with torch.no_grad():
    logits = model(**{{name: torch.tensor(batch[name]).long() for name in batch.files}}).logits
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
    def test_names_and_layouts(self):
        made = random_adapter()
        adapterhub.write(self.folder, made)
        self.assertEqual(set(os.listdir(self.folder)), set(adapterhub.FILES))
        adapters, head, norms = (
            self.load(name + ".safetensors") for name in ("adapter", "model_head", "layer_norms")
        )
        self.assertEqual((len(adapters), len(head), len(norms)), (2 * 2 * 4, 2, 2 * (1 + 2 * 2)))
        own, site = (
            "bert/encoder/layer_1/attention/output/",
            "bert.encoder.layer.1.attention.output.",
        )
        np.testing.assert_array_equal(
            adapters[site + "adapters.MRPC.adapter_down.0.weight"],
            made.tensors[own + "adapters/weights1"].T,
        )
        np.testing.assert_array_equal(
            adapters[site + "adapters.MRPC.adapter_up.bias"],
            made.tensors[own + "adapters/biases2"][0],
        )
        np.testing.assert_array_equal(
            norms[site + "LayerNorm.weight"], made.tensors[own + "LayerNorm/gamma"]
        )
        np.testing.assert_array_equal(head["heads.MRPC.1.weight"], made.tensors["output_weights"])

    def test_the_variants_that_the_package_has(self):
        sites_of = {"both": (True, True), "attention": (True, False), "feed_forward": (False, True)}
        for sites, placement in itertools.product(sites_of, ("sequential", "parallel")):
            adapterhub.write(self.folder, random_adapter(sites=sites, placement=placement))
            with open(os.path.join(self.folder, "adapter_config.json")) as reader:
                config = json.load(reader)["config"]
            self.assertEqual((config["mh_adapter"], config["output_adapter"]), sites_of[sites])
            self.assertEqual(config["is_parallel"], placement == "parallel")

    def test_the_width_comes_out_of_the_reduction_factor(self):
        for hidden in (8, 128, 384, 768, 1024):
            for size in range(1, min(hidden, 520) + 1):
                factor = adapterhub.reduction_factor(hidden, size)
                self.assertEqual(int(hidden // factor), size, (hidden, size))

    def test_what_the_format_has_no_place_for(self):
        made = random_adapter()
        for changes, part in (
            ({"adapter": None, "tuning": tuning.Tuning("full")}, "--tuning=full"),
            ({"tuning": tuning.Tuning(train_pooler=True)}, "--train_pooler"),
            ({"adapter": modeling.AdapterConfig(4, normalization="layer")}, "normalization=layer"),
            ({"adapter": modeling.AdapterConfig(4, normalization="batch")}, "normalization=batch"),
            ({"adapter": modeling.AdapterConfig(4, depth=2)}, "--adapter_depth=2"),
            ({"adapter": modeling.AdapterConfig(4, interaction="multiply")}, "=multiply"),
            ({"adapter": modeling.AdapterConfig(4, "elu")}, "--adapter_activation=elu"),
        ):
            changed = made._replace(description=dataclasses.replace(made.description, **changes))
            with self.assertRaisesRegex(UserError, part):
                adapterhub.write(self.folder, changed)


class ReadTest(AdapterHubTestCase):
    def test_what_was_written(self):
        for options in (
            {},
            {"size": 3, "activation": "tanh"},
            {"activation": "leaky_relu", "sites": "attention", "placement": "parallel"},
            {"activation": "", "sites": "feed_forward"},
            {"layers": (1,), "layer_norms": "adapted"},
            {"layer_norms": "none"},
            {"labels": ()},
            {"labels": ("a", "b", "c")},
        ):
            made = random_adapter(**options)
            adapterhub.write(self.folder, made)
            if options.get("layer_norms") == "none":
                os.remove(os.path.join(self.folder, "layer_norms.safetensors"))
            told = description(task="", labels=(), adapter=None)
            found = adapterhub.read(self.folder, told)
            self.assertEqual(
                dataclasses.replace(found.description, adapter=None),
                dataclasses.replace(made.description, adapter=None),
            )
            adapter = made.description.adapter
            activation = adapter.activation or "linear"
            expected = dataclasses.replace(adapter, activation=activation)
            self.assertEqual(found.description.adapter, expected)
            self.assertEqual(set(found.tensors), set(made.tensors))
            for name, value in made.tensors.items():
                np.testing.assert_array_equal(found.tensors[name], value, err_msg=name)

    def test_other_adapters(self):
        for file, fields, part in (
            ("adapter_config.json", {"scaling": 4.0}, "scaling 1.0, these 4.0"),
            ("adapter_config.json", {"is_parallel": "yes"}, 'with {"is_parallel": "yes"}'),
            ("adapter_config.json", {"mh_adapter": False, "output_adapter": False}, "no adapters"),
            ("adapter_config.json", {"mh_adapter": [True]}, "no adapters"),
            ("adapter_config.json", {"mh_adapter": False}, "has no place"),
            ("adapter_config.json", {"non_linearity": "mish"}, "non_linearity must be one of"),
            ("adapter_config.json", {"leave_out": [0]}, "has no place"),
            ("head_config.json", {"layers": 2}, "layers 1, this one 2"),
            ("head_config.json", {"label2id": {"no": 0, "yes": 2}}, "label2id"),
        ):
            adapterhub.write(self.folder, random_adapter())
            self.edit(file, **fields)
            self.assert_refused(part)

    def test_damaged_files(self):
        self.assert_refused("there is no")
        for file in adapterhub.FILES:
            adapterhub.write(self.folder, random_adapter())
            with open(os.path.join(self.folder, file), "r+b") as stream:
                stream.truncate(20)
            self.assert_refused(file)

    def test_another_shape(self):
        adapterhub.write(self.folder, random_adapter())
        tensors = self.load("adapter.safetensors")
        name = "bert.encoder.layer.0.output.adapters.MRPC.adapter_up.weight"
        tensors[name] = np.zeros([8, 5], np.float32)
        safetensors.numpy.save_file(tensors, os.path.join(self.folder, "adapter.safetensors"))
        self.assert_refused("shape [8, 5]")


@unittest.skipUnless(PEERS, "needs the package adapters: ADAPTER_BERT_PEERS is not set")
class PackageTest(AdapterHubTestCase):
    def test_equal_logits_and_back(self):
        bert = os.path.join(self.folder, "bert")
        arrays = tiny.arrays()
        for options in (
            {},
            {"layers": (1,), "size": 3},
            {"labels": ()},
            {"sites": "attention", "activation": "leaky_relu"},
            {"sites": "feed_forward", "activation": "sigmoid"},
            {"placement": "parallel", "activation": "swish"},
            {"placement": "parallel", "sites": "attention", "activation": "relu6"},
        ):
            made = random_adapter(**options)
            source = os.path.join(self.folder, "source")
            os.makedirs(source, exist_ok=True)
            adapterhub.write(source, made)
            expected = self._forward(tiny.write_bert(bert), made, arrays)
            found = self._package_forward(bert, source, arrays)
            self.assertAllClose(found, expected, rtol=1e-4, atol=1e-4)
            saved = os.path.join(self.folder, "saved")
            os.replace(
                os.path.join(source, "layer_norms.safetensors"),
                os.path.join(saved, "layer_norms.safetensors"),
            )
            read = adapterhub.read(saved, made.description)
            self.assertEqual(read.description, made.description)
            for name, value in made.tensors.items():
                np.testing.assert_array_equal(read.tensors[name], value, err_msg=name)

    def _forward(self, bert, made, arrays):
        """Our logits."""
        prefix = os.path.join(self.folder, "full.ckpt")
        checkpoint = os.path.join(bert, "bert_model.ckpt")
        backbone = adapter_checkpoints.backbone_of(checkpoint, tiny.config())
        described = dataclasses.replace(made.description, backbone=backbone)
        adapter_checkpoints.to_full_checkpoint(
            made._replace(description=described), checkpoint, prefix
        )
        adapter = made.description.adapter
        with tf.Graph().as_default(), tf.Session() as session:
            encoder = modeling.BertModel(
                tiny.config(),
                False,
                *(tf.constant(arrays[n]) for n in ("input_ids", "input_mask", "segment_ids")),
                adapter_fn=adapter.build(),
            )
            _, _, logits, _ = heads.classification_loss(
                encoder.get_pooled_output(),
                tf.zeros([len(arrays["input_ids"])], tf.int32),
                len(made.description.labels) or 1,
                False,
            )
            tf.train.Saver().restore(session, prefix)
            return session.run(logits)

    def _package_forward(self, bert, source, arrays):
        """The package's logits; saves the adapter with the package, too."""
        reader = tf.train.NewCheckpointReader(os.path.join(bert, "bert_model.ckpt"))
        names = huggingface.google_shapes(tiny.config(), ())
        huggingface.write(bert, tiny.config(), {name: reader.get_tensor(name) for name in names})
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
    def test_a_damaged_adapter_is_converted_or_refused(self):
        bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
        adapter = own_models.build_task_adapter(bert)

        def read(folder):
            convert_checkpoint.main(["describe", folder])
            made = os.path.join(folder, "made")
            convert_checkpoint.main(["from_adapterhub", folder, bert, made, "--max_seq_length=16"])

        contents = mutations.written_by(lambda folder: adapterhub.write(folder, adapter))
        mutations.check(contents, read, (*adapterhub.FILES, "SOURCE_DIR", "PATH"))


if __name__ == "__main__":
    tf.test.main()
