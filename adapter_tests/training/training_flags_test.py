"""Tests of training_flags.py: BERT's flags with BERT's types and defaults, ours, what they give."""

from unittest import mock

import tensorflow.compat.v1 as tf
from absl import flags

import modeling
import run_classifier
import run_squad
from adapter_bert.common import configs
from adapter_bert.training import distribution, training_flags
from adapter_tests.support import command_lines
from adapter_tests.support.refusals import RefusalTestCase

# As BERT's run_classifier.py defines them; there the learning rate is 5e-5 and the epochs are 3.0.
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

OUR_FLAGS = {
    "bert_hub_module_handle": ("string", None),
    "spm_model_file": ("string", None),
    "adapter": ("string", None),
    "save_full_checkpoint": ("bool", False),
    "distribution": ("string enum", "none"),
    "worker_timeout": ("float", 300.0),
    "eval_every_steps": ("int", 0),
    "keep_best": ("bool", False),
    "text_column": ("string", None),
    "text_b_column": ("string", None),
    "label_column": ("string", None),
    "label_type": ("string enum", "class"),
    "class_weights": ("string", None),
    "feature_cache_dir": ("string", None),
    "early_stopping_patience": ("int", 0),
    "overwrite_output_dir": ("bool", False),
    "random_seed": ("int", 12345),
    "gradient_accumulation_steps": ("int", 1),
    "recompute_activations": ("bool", False),
    "precision": ("string enum", "auto"),
    "tuning": ("string enum", "adapters"),
    "num_top_layers": ("int", None),
    "train_pooler": ("bool", False),
    "adapter_fn": ("string", "feedforward_adapter"),
    "adapter_size": ("int", 64),
    "adapter_activation": ("string", "gelu"),
    "adapter_init_scale": ("float", 1e-3),
    "adapter_layers": ("string", None),
    "adapter_normalization": ("string enum", "none"),
    "adapter_depth": ("int", 1),
    "adapter_sites": ("string enum", "both"),
    "adapter_placement": ("string enum", "sequential"),
    "adapter_interaction": ("string enum", "add"),
    "layer_norms": ("string enum", None),
}


def parsed(*arguments):
    return command_lines.parsed(run_classifier.define_flags, *arguments)


class OutputDirTest(tf.test.TestCase):
    def test_each_method_has_a_folder_of_its_own(self):
        for arguments, expected in (
            ([], "output/mrpc"),
            (["--tuning=adapters", "--adapter_size=8"], "output/mrpc"),
            (["--tuning=full"], "output/mrpc_full"),
            (["--tuning=top_layers", "--num_top_layers=2"], "output/mrpc_top_layers"),
            (["--tuning=full", "--output_dir=there"], "there"),
        ):
            values = command_lines.parsed(training_flags.define, *arguments)
            self.assertEqual(training_flags.output_dir(values, "mrpc"), expected)


class DefineTest(tf.test.TestCase):
    def test_every_flag_of_bert_has_its_type_and_default(self):
        values = parsed()
        for name, (kind, default) in BERT_FLAGS.items():
            self.assertEqual(
                (values[name].flag_type(), values[name].default), (kind, default), name
            )

    def test_ours_are_these_and_no_others(self):
        values = parsed()
        found = {
            name: (values[name].flag_type(), values[name].default)
            for name in values
            if name not in BERT_FLAGS
        }
        self.assertEqual(found, OUR_FLAGS)

    def test_adapters_default_to_adapter_berts(self):
        adapter = modeling.AdapterConfig()
        self.assertEqual(
            (adapter.size, adapter.activation, adapter.init_scale, adapter.fn),
            (64, "gelu", 1e-3, "feedforward_adapter"),
        )

    def test_the_flags_help_names_the_defaults_that_tuning_decides(self):
        values = parsed()
        for name, parts in (("learning_rate", ("3e-4", "5e-5")), ("num_train_epochs", ("5", "3"))):
            for part in parts:
                self.assertIn(part, values[name].help)

    def test_two_scripts_in_one_process(self):
        first, second = flags.FlagValues(), flags.FlagValues()
        training_flags.define(first)
        training_flags.define(second)
        run_classifier.define_flags(flags.FlagValues())
        first(["a", "--adapter_size=8"])
        second(["b"])
        self.assertEqual((first.adapter_size, second.adapter_size), (8, 64))

    def test_importing_a_script_defines_nothing(self):
        self.assertNotIn("adapter_size", flags.FLAGS)

    def test_an_unknown_flag_stops_the_run(self):
        with self.assertRaisesRegex(flags.UnrecognizedFlagError, "Did you mean: adapter_size"):
            parsed("--adaptr_size=8")

    def test_bounds(self):
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
            self.assertEqual(getattr(parsed(f"--{name}=1"), name), 1)
            for value in ("0", "-1", "8.5", "eight", ""):
                with self.assertRaisesRegex(flags.IllegalFlagValueError, "--" + name):
                    parsed(f"--{name}={value}")
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
                parsed(argument)


class StagesTest(RefusalTestCase):
    def test_stages(self):
        for arguments, expected in (
            ([], ["train", "eval"]),
            (["--do_train"], ["train"]),
            (["--do_eval=true"], ["eval"]),
            (["--do_predict"], ["predict"]),
            (["--do_predict", "--do_train=false"], ["predict"]),
            (["--do_predict", "--do_eval", "--do_train"], ["train", "eval", "predict"]),
        ):
            self.assertEqual(training_flags.stages(parsed(*arguments)), expected)

    def test_all_off(self):
        parts = ["--do_train", "--do_eval", "--do_predict"]
        self.assert_refused(parts, training_flags.stages, parsed("--do_train=false"))


class ScheduleTest(RefusalTestCase):
    def schedule(self, *arguments, method="adapters", num_examples=3668):
        return training_flags.schedule(parsed(*arguments), method, num_examples)

    def test_defaults_of_each_method(self):
        # MRPC has 3668 rows: 3668 / 32 = 114.625 batches of 32; a tenth of the steps warms up.
        small = {"learning_rate": 3e-4, "num_train_steps": 573, "num_warmup_steps": 57}
        berts = {"learning_rate": 5e-5, "num_train_steps": 343, "num_warmup_steps": 34}
        expected = {
            "adapters": small,
            "layer_norm": small,
            "head": small,
            "full": berts,
            "top_layers": berts,
        }
        self.assertEqual(set(expected), set(configs.METHODS))
        for method, schedule in expected.items():
            self.assertEqual(self.schedule(method=method), schedule, method)

    def test_the_users_values_win(self):
        arguments = ["--learning_rate=1e-3", "--num_train_epochs=2", "--warmup_proportion=0.25"]
        for method in configs.METHODS:
            self.assertEqual(
                self.schedule(*arguments, "--train_batch_size=4", method=method, num_examples=100),
                {"learning_rate": 1e-3, "num_train_steps": 50, "num_warmup_steps": 12},
            )

    def test_each_default_stands_alone(self):
        rate = self.schedule("--learning_rate=1e-5")
        self.assertEqual((rate["learning_rate"], rate["num_train_steps"]), (1e-5, 573))
        epochs = self.schedule("--num_train_epochs=3")
        self.assertEqual((epochs["learning_rate"], epochs["num_train_steps"]), (3e-4, 343))

    def test_a_rate_of_full_fine_tuning_for_adapters_that_nobody_asked_for(self):
        for rate in ("2e-5", "1e-4"):
            with self.assertLogs("absl", "WARNING") as log:
                self.schedule("--learning_rate=" + rate)
            self.assertRegex(log.output[0], "Adapters.*3e-4.*--tuning=full")
            self.assertLen(log.output, 1)
        for arguments in (
            ["--learning_rate=2e-5", "--tuning=adapters"],
            ["--learning_rate=2e-5", "--adapter=folder"],
            ["--learning_rate=3e-4"],
            [],
        ):
            with self.assertRaises(AssertionError), self.assertLogs("absl", "WARNING"):
                self.schedule(*arguments)
        with self.assertRaises(AssertionError), self.assertLogs("absl", "WARNING"):
            self.schedule("--learning_rate=2e-5", "--tuning=full", method="full")

    def test_no_warmup(self):
        self.assertEqual(self.schedule("--warmup_proportion=0")["num_warmup_steps"], 0)

    def test_warmup_is_of_whole_steps(self):
        # 15 of 15.9 batches: 0.13 of 15 is less than 2, 0.13 of 15.9 is not.
        arguments = ["--train_batch_size=10", "--num_train_epochs=1", "--warmup_proportion=0.13"]
        found = self.schedule(*arguments, num_examples=159)
        self.assertEqual((found["num_train_steps"], found["num_warmup_steps"]), (15, 1))

    def test_the_most_steps(self):
        most = self.schedule("--train_batch_size=1", "--num_train_epochs=1", num_examples=2**31 - 1)
        self.assertEqual(most["num_train_steps"], 2**31 - 1)

    def test_values_that_cannot_be(self):
        for flag, values in (
            ("learning_rate", ("0", "-1e-3", "nan", "inf")),
            ("num_train_epochs", ("0", "-1", "nan", "inf", "0.001", "1e308")),
            ("warmup_proportion", ("2", "1", "-0.1", "nan")),
        ):
            for value in values:
                parts = [f"--{flag}", str(float(value))]
                self.assert_refused(parts, self.schedule, f"--{flag}={value}")
        for arguments, parts in (
            (["--train_batch_size=20000"], ["3668", "20000"]),
            (["--train_batch_size=1", "--num_train_epochs=585482"], ["2147483647"]),
        ):
            self.assert_refused(parts, self.schedule, *arguments)


class RunSettingsTest(RefusalTestCase):
    def test_every_flag_arrives(self):
        values = parsed(
            "--train_batch_size=2",
            "--predict_batch_size=3",
            "--save_checkpoints_steps=4",
            "--iterations_per_loop=5",
            "--num_tpu_cores=6",
        )
        run, use_tpu = training_flags.run_settings(values, "out", eval_batch_size=7)
        self.assertFalse(use_tpu)
        self.assertEqual(
            (run.output_dir, run.train_batch_size, run.predict_batch_size, run.eval_batch_size),
            ("out", 2, 3, 7),
        )
        self.assertEqual(
            (run.save_checkpoints_steps, run.iterations_per_loop, run.num_tpu_cores), (4, 5, 6)
        )
        self.assertEqual((run.tpu_cluster, run.master), (None, None))

    def test_a_batch_without_equal_parts(self):
        def parts(count, batch_size, use_tpu=False):
            values = parsed(
                f"--gradient_accumulation_steps={count}", f"--train_batch_size={batch_size}"
            )
            with mock.patch.object(
                training_flags.device_flags.devices, "find_tpu", return_value=(use_tpu, None)
            ):
                training_flags.run_settings(values, "out", 8)

        parts(4, 12)
        parts(1, 7)
        parts(2, 32, use_tpu=True)  # Parts of 2 on each of 8 cores.
        named = ["--gradient_accumulation_steps=5", "--train_batch_size=12"]
        self.assert_refused(named, parts, 5, 12)
        self.assert_refused(["--num_tpu_cores=8"], parts, 8, 32, use_tpu=True)

    def test_a_tpu_under_tensorflow_1_recomputes_nothing(self):
        def settings(version, use_tpu=True):
            devices = training_flags.device_flags.devices
            found = mock.patch.object(devices, "find_tpu", return_value=(use_tpu, None))
            with found, mock.patch.object(devices.tf, "__version__", version):
                training_flags.run_settings(parsed("--recompute_activations"), "out", 8)

        settings("2.15.1")
        settings("1.15.5", use_tpu=False)
        self.assert_refused(["--recompute_activations", "TPU"], settings, "1.15.5")

    def test_a_batch_that_replicas_cannot_share(self):
        def settings(*arguments, eval_batch_size=8, use_tpu=False, replicas=1):
            distributed = distribution.Distribution("mirrored", replicas)
            with mock.patch.object(
                training_flags.device_flags.devices, "find_tpu", return_value=(use_tpu, None)
            ), mock.patch.object(training_flags.distribution, "choose", return_value=distributed):
                training_flags.run_settings(parsed(*arguments), "out", eval_batch_size)

        settings("--train_batch_size=12", replicas=3)
        settings("--train_batch_size=12", "--predict_batch_size=7", eval_batch_size=5, replicas=4)
        settings("--num_tpu_cores=4", "--predict_batch_size=4", eval_batch_size=4, use_tpu=True)
        for parts, arguments, options in (
            (["--train_batch_size=32", "3", "--distribution=mirrored"], [], {"replicas": 3}),
            (["--train_batch_size=12", "8"], ["--train_batch_size=12"], {"use_tpu": True}),
            (["--eval_batch_size=12", "8"], [], {"use_tpu": True, "eval_batch_size": 12}),
            (["--predict_batch_size=6", "8"], ["--predict_batch_size=6"], {"use_tpu": True}),
        ):
            self.assert_refused(parts, settings, *arguments, **options)
        # The refusal names a flag that the script has.
        values = command_lines.parsed(run_squad.define_flags, "--predict_batch_size=6")
        with mock.patch.object(
            training_flags.device_flags.devices, "find_tpu", return_value=(True, None)
        ):
            parts = ["--predict_batch_size=6", "8"]
            self.assert_refused(parts, training_flags.run_settings, values, "out", 6)


if __name__ == "__main__":
    tf.test.main()
