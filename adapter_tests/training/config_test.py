"""Tests of config.py: BERT's flags with their types and defaults, our flags, and their values."""

import tensorflow.compat.v1 as tf
from absl import flags

import modeling
import run_classifier
import tuning
from adapter_bert.model import configs
from adapter_bert.shell.errors import UserError
from adapter_bert.training.config import FinetuningConfig
from adapter_tests.support.command_lines import classifier_config, classifier_flags
from adapter_tests.support.refusals import RefusalTestCase

# As in BERT's run_classifier.py; there the learning rate is 5e-5 and the epochs are 3.0.
BERT_FLAGS = {
    "data_dir": ("string", None),
    "bert_config_file": ("string", None),
    "task_name": ("string", None),
    "vocab_file": ("string", None),
    "output_dir": ("string", None),
    "init_checkpoint": ("string", None),
    "do_lower_case": ("bool", True),
    "max_seq_length": ("int", 128),
    "do_train": ("bool", False),
    "do_eval": ("bool", False),
    "do_predict": ("bool", False),
    "train_batch_size": ("int", 32),
    "eval_batch_size": ("int", 8),
    "predict_batch_size": ("int", 8),
    "learning_rate": ("float", None),
    "num_train_epochs": ("float", None),
    "warmup_proportion": ("float", 0.1),
    "save_checkpoints_steps": ("int", 1000),
    "iterations_per_loop": ("int", 1000),
    "use_tpu": ("bool", False),
    "tpu_name": ("string", None),
    "tpu_zone": ("string", None),
    "gcp_project": ("string", None),
    "master": ("string", None),
    "num_tpu_cores": ("int", 8),
}


class OutputDirTest(tf.test.TestCase):
    def test_each_method_has_its_own_output_folder(self):
        for arguments, expected in (
            ([], "output/mrpc"),
            (["--tuning=adapters", "--adapter_size=8"], "output/mrpc"),
            (["--tuning=full"], "output/mrpc_full"),
            (["--tuning=top_layers", "--num_top_layers=2"], "output/mrpc_top_layers"),
            (["--tuning=full", "--output_dir=there"], "there"),
        ):
            self.assertEqual(classifier_config(*arguments).folder_of("mrpc"), expected)


class DefineTest(tf.test.TestCase):
    def test_bert_flags_keep_their_types_and_defaults(self):
        values = classifier_flags()
        for name, (kind, default) in BERT_FLAGS.items():
            self.assertEqual(
                (values[name].flag_type(), values[name].default), (kind, default), name
            )

    def test_flags_of_two_scripts_are_independent(self):
        first, second = flags.FlagValues(), flags.FlagValues()
        FinetuningConfig.define_flags(first)
        FinetuningConfig.define_flags(second)
        run_classifier.define_flags(flags.FlagValues())
        first(["a", "--adapter_size=8"])
        second(["b"])
        self.assertEqual((first.adapter_size, second.adapter_size), (8, 64))

    def test_importing_a_script_defines_no_flags(self):
        self.assertNotIn("adapter_size", flags.FLAGS)

    def test_invalid_flag_values_are_refused(self):
        at_least_one = [
            "train_batch_size",
            "eval_batch_size",
            "predict_batch_size",
            "gradient_accumulation_steps",
            "save_checkpoints_steps",
            "iterations_per_loop",
            "num_tpu_cores",
        ]
        for name in at_least_one:
            self.assertEqual(getattr(classifier_flags(f"--{name}=1"), name), 1)
            for value in ("0", "-1", "8.5", "eight", ""):
                with self.assertRaisesRegex(flags.IllegalFlagValueError, "--" + name):
                    classifier_flags(f"--{name}={value}")
        for argument in (
            "--random_seed=-1",
            "--random_seed=4294967296",
            "--learning_rate=fast",
            "--tuning=lora",
            "--use_tpu=perhaps",
            "--worker_timeout=0.5",
            "--worker_timeout=1e7",
            "--worker_timeout=inf",
        ):
            with self.assertRaisesRegex(flags.IllegalFlagValueError, argument):
                classifier_flags(argument)


class StagesTest(RefusalTestCase):
    def test_stages_follow_the_do_flags(self):
        for arguments, expected in (
            ([], ["train", "eval"]),
            (["--do_train"], ["train"]),
            (["--do_eval=true"], ["eval"]),
            (["--do_predict"], ["predict"]),
            (["--do_predict", "--do_train=false"], ["predict"]),
            (["--do_predict", "--do_eval", "--do_train"], ["train", "eval", "predict"]),
        ):
            self.assertEqual(classifier_config(*arguments).stages, expected)

    def test_disabling_all_stages_is_refused(self):
        parts = ["--do_train", "--do_eval", "--do_predict"]
        self.assert_refused(parts, classifier_config, "--do_train=false")


class TuningTest(RefusalTestCase):
    def settings(self, *arguments):
        config = classifier_config(*arguments)
        return config.tuning, config.adapter

    def test_flags_set_tuning_and_adapter(self):
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

    def test_variant_flags_set_the_adapter_config(self):
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

    def test_adapter_layers_set_default_of_layer_norms(self):
        method, adapter = self.settings("--adapter_layers=1")
        self.assertEqual((method.layer_norms, adapter.layers), ("adapted", (1,)))
        method, adapter = self.settings("--adapter_layers=0-1", "--layer_norms=all")
        self.assertEqual((method.layer_norms, adapter.layers), ("all", (0, 1)))
        method, adapter = self.settings("--layer_norms=none")
        self.assertEqual((method.layer_norms, adapter.layers), ("none", None))

    def test_adapter_layers_accept_indices_and_ranges(self):
        for text, layers in (
            ("6-11", (6, 7, 8, 9, 10, 11)),
            ("0,2,4-5", (0, 2, 4, 5)),
            (" 3 , 1 - 2, 2", (1, 2, 3)),
        ):
            self.assertEqual(configs.parse_layers(text), layers)
        for text, part in (
            ("11-6", "'11-6' is neither a layer nor a range"),
            ("upper", "'upper' is neither a layer"),
            ("1,,2", "'' is neither a layer"),
            ("", "'' is neither a layer"),
            ("-1", "'-1' is neither a layer"),
            ("0-1000000000", "'0-1000000000' is neither a layer"),
        ):
            with self.assertRaisesRegex(UserError, f"--adapter_layers={text}: .*{part}"):
                configs.parse_layers(text)

    def test_layers_beyond_the_encoder_are_refused(self):
        for text, refused in (("0-11", False), ("12", True), ("6-12", True)):
            _, adapter = self.settings("--adapter_layers=" + text)
            if refused:
                self.assert_refused(["--adapter_layers", "12 layers"], adapter.check_layers, 12)
            else:
                adapter.check_layers(12)

    def test_other_methods_have_no_adapters(self):
        for arguments, expected in (
            (["--tuning=full"], tuning.Tuning("full")),
            (["--tuning=layer_norm"], tuning.Tuning("layer_norm")),
            (["--tuning=head"], tuning.Tuning("head")),
            (["--tuning=top_layers", "--num_top_layers=2"], tuning.Tuning("top_layers", 2)),
        ):
            self.assertEqual(self.settings(*arguments), (expected, None))

    def test_redundant_train_pooler_logs_a_warning(self):
        with self.assertLogs("absl", "WARNING") as logs:
            self.settings("--tuning=full", "--train_pooler")
        self.assertIn("--train_pooler has no effect: --tuning=full", logs.output[0])

    def test_ignored_adapter_flags_log_warnings(self):
        with self.assertLogs("absl", "WARNING") as logs:
            self.settings("--tuning=head", "--adapter_size=8", "--adapter_sites=attention")
        for flag, line in zip(("sites=attention", "size=8"), logs.output):
            self.assertIn(f"--adapter_{flag} is ignored: --tuning=head", line)
        self.assertLen(logs.output, 2)

    def test_invalid_settings_are_refused(self):
        for arguments, part in (
            (["--adapter_size=0"], "--adapter_size must be at least 1, but is 0"),
            (["--adapter_fn=none"], "--tuning=full"),
            (["--tuning=top_layers"], "--num_top_layers"),
            (["--keep_best", "--do_train"], "--keep_best requires --do_eval"),
            (["--eval_every_steps=2", "--do_train"], "--eval_every_steps requires --do_eval"),
            (["--early_stopping_patience=1", "--do_train"], "_patience requires --do_eval"),
            (
                ["--adapter_normalization=batch", "--gradient_accumulation_steps=32"],
                "more than one row",
            ),
            (["--tuning=full", "--adapter_layers=1"], "--adapter_layers=1 requires"),
            (["--tuning=head", "--layer_norms=none"], "--layer_norms=none requires"),
        ):
            with self.assertRaises(UserError) as caught:
                self.settings(*arguments)
            self.assertIn(part, str(caught.exception))
