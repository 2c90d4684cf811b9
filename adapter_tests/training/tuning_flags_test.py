"""Tests of tuning_flags.py: what trains, and the adapters, as flags say it."""

import dataclasses
import os
import tempfile

import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import tuning
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter
from adapter_bert.training import tuning_flags
from adapter_tests.support import command_lines, own_models, tiny


def parsed(*arguments):
    return command_lines.parsed(run_classifier.define_flags, *arguments)


class TuningSettingsTest(tf.test.TestCase):
    def settings(self, *arguments):
        return tuning_flags.tuning_settings(parsed(*arguments), tiny.config())

    def test_adapters(self):
        method, adapter = self.settings()
        self.assertEqual((method, adapter), (tuning.Tuning(), modeling.AdapterConfig()))
        method, adapter = self.settings(
            "--adapter_size=8",
            "--adapter_activation=relu",
            "--adapter_init_scale=0.01",
            "--train_pooler",
        )
        self.assertEqual(method, tuning.Tuning(train_pooler=True))
        self.assertEqual(adapter, modeling.AdapterConfig(8, "relu", 0.01, "feedforward_adapter"))

    def test_variants(self):
        _, adapter = self.settings(
            "--adapter_normalization=batch",
            "--adapter_depth=3",
            "--adapter_sites=feed_forward",
            "--adapter_placement=parallel",
            "--adapter_interaction=multiply",
            "--adapter_activation=leaky_relu",
        )
        expected = modeling.AdapterConfig(
            activation="leaky_relu",
            normalization="batch",
            depth=3,
            sites="feed_forward",
            placement="parallel",
            interaction="multiply",
        )
        self.assertEqual(adapter, expected)

    def test_the_help_names_every_activation(self):
        text = parsed()["adapter_activation"].help
        for name in ("elu", "gelu", "leaky_relu", "linear", "relu6", "sigmoid", "swish", "tanh"):
            self.assertIn(f" {name}", text)

    def test_some_layers(self):
        method, adapter = self.settings("--adapter_layers=1")
        self.assertEqual((method.layer_norms, adapter.layers), ("adapted", (1,)))
        method, adapter = self.settings("--adapter_layers=0-1", "--layer_norms=all")
        self.assertEqual((method.layer_norms, adapter.layers), ("all", (0, 1)))
        method, adapter = self.settings("--layer_norms=none")
        self.assertEqual((method.layer_norms, adapter.layers), ("none", None))

    def test_layers_are_indices_and_ranges(self):
        for text, layers in (
            ("6-11", (6, 7, 8, 9, 10, 11)),
            ("0,2,4-5", (0, 2, 4, 5)),
            (" 3 , 1 - 2, 2", (1, 2, 3)),
        ):
            self.assertEqual(tuning_flags.parse_layers(text, 12), layers)
        for text, part in (
            ("12", "the encoder has 12 layers"),
            ("6-12", "the encoder has 12 layers"),
            ("11-6", "'11-6' is no layer and no range"),
            ("upper", "'upper' is no layer"),
            ("1,,2", "'' is no layer"),
            ("", "'' is no layer"),
            ("-1", "'-1' is no layer"),
        ):
            with self.assertRaisesRegex(UserError, f"--adapter_layers={text}: .*{part}"):
                tuning_flags.parse_layers(text, 12)

    def test_other_methods_have_no_adapters(self):
        for arguments, expected in (
            (["--tuning=full"], tuning.Tuning("full")),
            (["--tuning=layer_norm"], tuning.Tuning("layer_norm")),
            (["--tuning=head"], tuning.Tuning("head")),
            (["--tuning=top_layers", "--num_top_layers=2"], tuning.Tuning("top_layers", 2)),
        ):
            self.assertEqual(self.settings(*arguments), (expected, None))

    def test_flags_of_adapters_that_other_methods_do_not_use_are_named(self):
        with self.assertLogs("absl", "WARNING") as logs:
            self.settings("--tuning=head", "--adapter_size=8", "--adapter_sites=attention")
        for flag, line in zip(("size=8", "sites=attention"), logs.output):
            self.assertIn(f"--adapter_{flag} is not used: --tuning=head has no adapters.", line)
        self.assertLen(logs.output, 2)

    def test_refused(self):
        for arguments, part in (
            (["--adapter_size=0"], "--adapter_size must be at least 1, but is 0"),
            (["--adapter_size=-3"], "--adapter_size must be at least 1, but is -3"),
            (["--adapter_fn=parallel"], "--adapter_fn=parallel"),
            (["--adapter_fn=none"], "--tuning=full"),
            (["--adapter_activation=swosh"], "--adapter_activation"),
            (["--adapter_depth=0"], "--adapter_depth=0: expected one of 1 to 100"),
            (["--adapter_normalization=layer", "--adapter_size=1"], "--adapter_normalization"),
            (["--adapter_init_scale=-1"], "--adapter_init_scale"),
            (["--adapter_init_scale=nan"], "--adapter_init_scale"),
            (["--tuning=top_layers"], "--num_top_layers"),
            (["--num_top_layers=2"], "--tuning=top_layers"),
            (["--tuning=top_layers", "--num_top_layers=0"], "--num_top_layers"),
            (["--tuning=top_layers", "--num_top_layers=3"], "the encoder has 2 layers"),
            (["--tuning=full", "--adapter_layers=1"], "--adapter_layers=1 goes with"),
            (["--tuning=head", "--layer_norms=none"], "--layer_norms=none goes with"),
            (["--tuning=layer_norm", "--layer_norms=all"], "--layer_norms=all goes with"),
        ):
            with self.assertRaises(UserError) as caught:
                self.settings(*arguments)
            self.assertIn(part, str(caught.exception))


class GivenAdapterTest(tf.test.TestCase):
    def test_it_answers_every_flag_of_adapters(self):
        root = tempfile.mkdtemp(dir=self.get_temp_dir())
        adapter = modeling.AdapterConfig(
            3,
            "relu",
            0.5,
            "Feedforward_adapter",
            (1,),
            "layer",
            2,
            "attention",
            "parallel",
            "multiply",
        )
        for field in dataclasses.fields(adapter):
            self.assertNotEqual(getattr(adapter, field.name), field.default, field.name)
        method = tuning.Tuning(train_pooler=True, layer_norms="none")
        made = own_models.task_adapter(
            tiny.write_bert(os.path.join(root, "bert")), adapter=adapter, method=method
        )
        task_adapter.save(os.path.join(root, "adapter"), made)
        values = parsed("--adapter=" + os.path.join(root, "adapter"))
        tuning_flags.given_adapter(values)
        found = tuning_flags.tuning_settings(values, tiny.config())
        self.assertEqual(found, (method, adapter))


if __name__ == "__main__":
    tf.test.main()
