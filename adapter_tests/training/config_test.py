"""Tests of config.py: BERT's flags with their types and defaults, our flags, and their values."""

import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import parameterized

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
        counts = ("train_batch_size", "eval_batch_size", "predict_batch_size", "num_tpu_cores")
        counts += ("gradient_accumulation_steps", "save_checkpoints_steps", "iterations_per_loop")
        for name in counts:
            self.assertEqual(getattr(classifier_flags(f"--{name}=1"), name), 1)
        invalid = [f"--{name}={value}" for name in counts for value in ("0", "-1", "8.5", "8x", "")]
        invalid += ["--random_seed=-1", "--random_seed=4294967296", "--learning_rate=fast"]
        invalid += [f"--worker_timeout={seconds}" for seconds in ("0.5", "1e7", "inf")]
        for argument in (*invalid, "--tuning=lora", "--use_tpu=perhaps"):
            with self.assertRaisesRegex(flags.IllegalFlagValueError, argument.split("=")[0]):
                classifier_flags(argument)

    def test_inputs_are_the_files_that_flags_name(self):
        names = ["data_dir", "bert_config_file", "vocab_file", "init_checkpoint", "adapter"]
        names.append("label_descriptions")
        config = classifier_config(*(f"--{name}=/{name}" for name in names), "--output_dir=/there")
        self.assertCountEqual(config.inputs(), [(f"--{name}", f"/{name}") for name in names])


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
        parts = ["--do_train", "--do_eval", "--do_predict"]
        self.assert_refused(parts, classifier_config, "--do_train=false")

    def test_training_flags_without_do_train_log_a_warning(self):
        with self.assertLogs("absl", "WARNING") as log:
            classifier_config("--do_eval", "--save_full_checkpoint", "--keep_best")
        for name, line in zip(("keep_best", "save_full_checkpoint"), log.output):
            self.assertIn(f"--{name} has no effect without --do_train.", line)
        self.assertLen(log.output, 2)


class TuningTest(RefusalTestCase):
    def settings(self, *arguments):
        config = classifier_config(*arguments)
        return config.tuning, config.adapter

    def test_flags_set_tuning_and_adapter(self):
        adapter = modeling.AdapterConfig
        values = {"size": 8, "activation": "leaky_relu", "init_scale": 0.01, "depth": 3}
        values.update(normalization="batch", sites="feed_forward", placement="parallel")
        values["interaction"] = "multiply"
        given = [f"--adapter_{name}={value}" for name, value in values.items()]
        top = ["--tuning=top_layers", "--num_top_layers=2"]
        for arguments, expected in (
            ([], (tuning.Tuning(), adapter())),
            (["--train_pooler"], (tuning.Tuning(train_pooler=True), adapter())),
            (given, (tuning.Tuning(), adapter(**values))),
            (["--tuning=full"], (tuning.Tuning("full"), None)),
            (["--tuning=layer_norm"], (tuning.Tuning("layer_norm"), None)),
            (["--tuning=head"], (tuning.Tuning("head"), None)),
            (top, (tuning.Tuning("top_layers", 2), None)),
        ):
            self.assertEqual(self.settings(*arguments), expected)

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
            self.assert_refused([part], self.settings, *arguments)


class ScheduleTest(RefusalTestCase, parameterized.TestCase):
    def schedule(self, *arguments, method="adapters", num_examples=3668):
        """Returns (learning_rate, num_train_steps, num_warmup_steps)."""
        top = ["--num_top_layers=1"] if method == "top_layers" else []
        config = classifier_config("--tuning=" + method, *top, *arguments)
        found = config.schedule(num_examples)
        self.assertEqual(set(found), {"learning_rate", "num_train_steps", "num_warmup_steps"})
        return found["learning_rate"], found["num_train_steps"], found["num_warmup_steps"]

    def test_each_method_has_its_default_schedule(self):
        # MRPC has 3668 rows: 3668 / 32 = 114.625 batches; a tenth of the steps is warm-up.
        expected = dict.fromkeys(("adapters", "layer_norm", "head"), (3e-4, 573, 57))
        expected.update(dict.fromkeys(("full", "top_layers"), (5e-5, 343, 34)))
        self.assertEqual(set(expected), set(configs.METHODS))
        flags = ["--learning_rate=1e-3", "--num_train_epochs=2", "--warmup_proportion=0.25"]
        for method, schedule in expected.items():
            self.assertEqual(self.schedule(method=method), schedule, method)
            given = self.schedule(*flags, "--train_batch_size=4", method=method, num_examples=100)
            self.assertEqual(given, (1e-3, 50, 12))

    @parameterized.parameters(
        (["--learning_rate=1e-5"], 3668, (1e-5, 573, 57)),
        (["--num_train_epochs=3"], 3668, (3e-4, 343, 34)),
        (["--warmup_proportion=0"], 3668, (3e-4, 573, 0)),
        # 15.9 batches are 15 steps. 0.13 of 15 is less than 2, but 0.13 of 15.9 is not.
        (
            ["--train_batch_size=10", "--num_train_epochs=1", "--warmup_proportion=0.13"],
            159,
            (3e-4, 15, 1),
        ),
        (
            ["--train_batch_size=1", "--num_train_epochs=1", "--warmup_proportion=0"],
            2**31 - 1,
            (3e-4, 2**31 - 1, 0),
        ),
    )
    def test_flags_decide_the_schedule(self, arguments, num_examples, expected):
        self.assertEqual(self.schedule(*arguments, num_examples=num_examples), expected)

    def test_evaluation_interval_follows_flag_or_is_one_epoch(self):
        for arguments, expected in (
            ([], 0),
            (["--eval_every_steps=7"], 7),
            (["--eval_every_steps=7", "--keep_best"], 7),
            (["--keep_best"], 114),  # An epoch of 3668 rows in batches of 32.
            (["--early_stopping_patience=2", "--train_batch_size=5000"], 1),
        ):
            self.assertEqual(classifier_config(*arguments).evaluation_interval(3668), expected)

    def test_invalid_schedule_flags_are_refused(self):
        for flag, values in (
            ("learning_rate", ("0", "-1e-3")),
            ("num_train_epochs", ("0", "-1", "0.001", "1e308")),
            ("warmup_proportion", ("2", "1", "-0.1")),
        ):
            for value in values:
                parts = [f"--{flag}", str(float(value))]
                self.assert_refused(parts, self.schedule, f"--{flag}={value}")
        for arguments, parts in (
            (["--train_batch_size=20000"], ["3668", "20000"]),
            (["--train_batch_size=1", "--num_train_epochs=585482"], ["2147483647"]),
        ):
            self.assert_refused(parts, self.schedule, *arguments)
