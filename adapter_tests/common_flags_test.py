"""Tests of common_flags.py: BERT's flags with BERT's types and defaults, ours, what they give."""

import ast
import os
import subprocess
import sys
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf
from absl import flags, logging

import common_flags
import distribution
import modeling
import run_classifier
import tuning
from adapter_tests import tiny
from errors import UserError

FOLDER = os.path.dirname(os.path.abspath(common_flags.__file__))

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


READERS = ("run_classifier", "classifier_flags", "jobs", "common_flags", "paths")


def defined():
    values = flags.FlagValues()
    run_classifier.define_flags(values)
    return values


def parsed(*arguments):
    """The flags of run_classifier after a command line."""
    values = defined()
    values(["run_classifier.py", *arguments])
    return values


def names_read(module):
    """What a module's code, but for the definitions of flags, names or reads of `values`."""
    with open(os.path.join(FOLDER, module + ".py")) as reader:
        tree = ast.parse(reader.read())
    functions = [node for node in tree.body if "define" not in getattr(node, "name", "")]
    names = set()
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", None) or getattr(node.value, "attr", None)
            if owner in ("values", "_values"):
                names.add(node.attr)
        elif type(node).__name__ in ("Str", "Constant"):
            names.add(node.s if type(node).__name__ == "Str" else node.value)
    return names


class DefineTest(tf.test.TestCase):
    def test_every_flag_of_bert_has_its_type_and_default(self):
        values = defined()
        for name, (kind, default) in BERT_FLAGS.items():
            self.assertEqual(
                (values[name].flag_type(), values[name].default), (kind, default), name
            )

    def test_ours_are_these_and_no_others(self):
        values = defined()
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

    def test_every_flag_is_read(self):
        read = set().union(*map(names_read, READERS))
        self.assertEqual([name for name in defined() if name not in read], [])
        self.assertNotIn("a_flag_that_is_not_there", read)

    def test_every_flag_says_what_it_is_for(self):
        values = defined()
        for name in values:
            self.assertRegex(values[name].help, r"^\S.*\.$", name)

    def test_the_flags_help_names_the_defaults_that_tuning_decides(self):
        values = defined()
        for name, parts in (("learning_rate", ("3e-4", "5e-5")), ("num_train_epochs", ("5", "3"))):
            for part in parts:
                self.assertIn(part, values[name].help)

    def test_two_scripts_in_one_process(self):
        first, second = flags.FlagValues(), flags.FlagValues()
        common_flags.define(first)
        common_flags.define(second)
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
            "--learning_rate=fast",
            "--tuning=lora",
            "--use_tpu=perhaps",
        ):
            with self.assertRaisesRegex(flags.IllegalFlagValueError, argument):
                parsed(argument)

    def test_help_shows_every_flag(self):
        script = os.path.join(FOLDER, "run_classifier.py")
        done = subprocess.run(
            [sys.executable, script, "--help"],
            capture_output=True,
            text=True,
        )
        for name in [*BERT_FLAGS, *OUR_FLAGS]:
            self.assertRegex(done.stdout, rf"\n  --(\[no\])?{name}: ")
        self.assertIn("adapters by default", done.stdout)
        self.assertNotIn("Traceback", done.stderr)


class StagesTest(tf.test.TestCase):
    def test_stages(self):
        for arguments, expected in (
            ([], ["train", "eval"]),
            (["--do_train"], ["train"]),
            (["--do_eval=true"], ["eval"]),
            (["--do_predict"], ["predict"]),
            (["--do_predict", "--do_train=false"], ["predict"]),
            (["--do_predict", "--do_eval", "--do_train"], ["train", "eval", "predict"]),
        ):
            self.assertEqual(common_flags.stages(parsed(*arguments)), expected)

    def test_all_off(self):
        with self.assertRaisesRegex(UserError, "--do_train, --do_eval and --do_predict"):
            common_flags.stages(parsed("--do_train=false"))


class ScheduleTest(tf.test.TestCase):
    def schedule(self, *arguments, method="adapters", num_examples=3668):
        return common_flags.schedule(parsed(*arguments), method, num_examples)

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
        self.assertEqual(set(expected), set(tuning.METHODS))
        for method, schedule in expected.items():
            self.assertEqual(self.schedule(method=method), schedule, method)

    def test_the_users_values_win(self):
        arguments = ["--learning_rate=1e-3", "--num_train_epochs=2", "--warmup_proportion=0.25"]
        for method in tuning.METHODS:
            self.assertEqual(
                self.schedule(*arguments, "--train_batch_size=4", method=method, num_examples=100),
                {"learning_rate": 1e-3, "num_train_steps": 50, "num_warmup_steps": 12},
            )

    def test_each_default_stands_alone(self):
        rate = self.schedule("--learning_rate=1e-5")
        self.assertEqual((rate["learning_rate"], rate["num_train_steps"]), (1e-5, 573))
        epochs = self.schedule("--num_train_epochs=3")
        self.assertEqual((epochs["learning_rate"], epochs["num_train_steps"]), (3e-4, 343))

    def test_no_warmup(self):
        self.assertEqual(self.schedule("--warmup_proportion=0")["num_warmup_steps"], 0)

    def test_values_that_cannot_be(self):
        for arguments, part in (
            (["--learning_rate=0"], "--learning_rate must be a number above 0, but is 0.0"),
            (["--learning_rate=-1e-3"], "--learning_rate"),
            (["--learning_rate=nan"], "--learning_rate"),
            (["--learning_rate=inf"], "--learning_rate"),
            (["--num_train_epochs=0"], "--num_train_epochs must be a number above 0, but is 0.0"),
            (["--num_train_epochs=-1"], "--num_train_epochs"),
            (["--num_train_epochs=nan"], "--num_train_epochs"),
            (["--num_train_epochs=inf"], "--num_train_epochs"),
            (["--warmup_proportion=2"], "--warmup_proportion must lie in [0, 1), but is 2.0"),
            (["--warmup_proportion=1"], "--warmup_proportion"),
            (["--warmup_proportion=-0.1"], "--warmup_proportion"),
            (["--warmup_proportion=nan"], "--warmup_proportion"),
            (["--train_batch_size=20000"], "3668 training examples in batches of 20000"),
            (["--num_train_epochs=0.001"], "make no step"),
        ):
            with self.assertRaises(UserError) as caught:
                self.schedule(*arguments)
            self.assertIn(part, str(caught.exception))


class TuningSettingsTest(tf.test.TestCase):
    def settings(self, *arguments):
        return common_flags.tuning_settings(parsed(*arguments), tiny.config())

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
            self.assertEqual(common_flags.parse_layers(text, 12), layers)
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
                common_flags.parse_layers(text, 12)

    def test_other_methods_have_no_adapters(self):
        for arguments, expected in (
            (["--tuning=full"], tuning.Tuning("full")),
            (["--tuning=layer_norm"], tuning.Tuning("layer_norm")),
            (["--tuning=head"], tuning.Tuning("head")),
            (["--tuning=top_layers", "--num_top_layers=2"], tuning.Tuning("top_layers", 2)),
        ):
            self.assertEqual(self.settings(*arguments), (expected, None))

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


class PretrainedBertTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tiny.write_bert(tempfile.mkdtemp(dir=tf.test.get_temp_dir()))

    def test_by_flags_and_by_folder(self):
        file = {name: os.path.join(self.folder, name) for name in os.listdir(self.folder)}
        prefix = os.path.join(self.folder, "bert_model.ckpt")
        by_flags = parsed(
            "--bert_config_file=" + file["bert_config.json"],
            "--vocab_file=" + file["vocab.txt"],
            "--init_checkpoint=" + prefix,
        )
        for values, base in ((by_flags, ""), (parsed(), self.folder)):
            with mock.patch.dict(os.environ, {"BERT_BASE_DIR": base}):
                bert, tokenizer = common_flags.pretrained_bert(values)
            self.assertEqual(bert.config.to_dict(), tiny.config().to_dict())
            self.assertEqual(bert.init_checkpoint, prefix)
            self.assertEqual(list(tokenizer.vocab), tiny.VOCABULARY)
            self.assertEqual(tokenizer.tokenize("The DOG"), ["the", "dog"])

    def test_do_lower_case(self):
        with mock.patch.dict(os.environ, {"BERT_BASE_DIR": self.folder}):
            _, tokenizer = common_flags.pretrained_bert(parsed("--do_lower_case=false"))
        self.assertEqual(tokenizer.tokenize("The dog"), ["[UNK]", "dog"])


class RunSettingsTest(tf.test.TestCase):
    def test_every_flag_arrives(self):
        values = parsed(
            "--train_batch_size=2",
            "--predict_batch_size=3",
            "--save_checkpoints_steps=4",
            "--iterations_per_loop=5",
            "--num_tpu_cores=6",
        )
        run, use_tpu = common_flags.run_settings(values, "out", eval_batch_size=7)
        self.assertFalse(use_tpu)
        self.assertEqual(
            (run.output_dir, run.train_batch_size, run.predict_batch_size, run.eval_batch_size),
            ("out", 2, 3, 7),
        )
        self.assertEqual(
            (run.save_checkpoints_steps, run.iterations_per_loop, run.num_tpu_cores), (4, 5, 6)
        )
        self.assertEqual((run.tpu_cluster, run.master), (None, None))

    def test_the_tpu(self):
        arguments = ["use_tpu", "tpu_name=n", "tpu_zone=z", "gcp_project=p", "master=grpc://h:1"]
        with mock.patch.object(
            common_flags.devices, "find_tpu", return_value=(True, "cluster")
        ) as find:
            run, use_tpu = common_flags.run_settings(
                parsed(*("--" + argument for argument in arguments)), "out", 8
            )
        find.assert_called_once_with(True, "n", "z", "p", "grpc://h:1", 8)
        self.assertTrue(use_tpu)
        self.assertEqual((run.tpu_cluster, run.master), ("cluster", "grpc://h:1"))

    def test_a_batch_without_equal_parts(self):
        def parts(count, batch_size, use_tpu=False):
            values = parsed(
                f"--gradient_accumulation_steps={count}", f"--train_batch_size={batch_size}"
            )
            with mock.patch.object(common_flags.devices, "find_tpu", return_value=(use_tpu, None)):
                common_flags.run_settings(values, "out", 8)

        parts(4, 12)
        parts(1, 7)
        parts(2, 32, use_tpu=True)  # Parts of 2 on each of 8 cores.
        message = "--gradient_accumulation_steps=5 does not divide --train_batch_size=12 into"
        with self.assertRaisesRegex(UserError, message):
            parts(5, 12)
        with self.assertRaisesRegex(UserError, "each of the 8 replicas of --num_tpu_cores=8"):
            parts(8, 32, use_tpu=True)

    def test_a_batch_that_replicas_cannot_share(self):
        def settings(*arguments, eval_batch_size=8, use_tpu=False, replicas=1):
            distributed = distribution.Distribution("mirrored", replicas)
            with mock.patch.object(
                common_flags.devices, "find_tpu", return_value=(use_tpu, None)
            ), mock.patch.object(common_flags.distribution, "choose", return_value=distributed):
                common_flags.run_settings(parsed(*arguments), "out", eval_batch_size)

        settings("--train_batch_size=12", replicas=3)
        settings("--train_batch_size=12", "--predict_batch_size=7", eval_batch_size=5, replicas=4)
        settings("--num_tpu_cores=4", "--predict_batch_size=4", eval_batch_size=4, use_tpu=True)
        for message, arguments, options in (
            ("train_batch_size=32 .* 3 replicas of --distribution=mirrored", (), {"replicas": 3}),
            ("train_batch_size=12 .* 8 replicas", ("--train_batch_size=12",), {"use_tpu": True}),
            ("eval_batch_size=12 .* 8", (), {"use_tpu": True, "eval_batch_size": 12}),
            ("predict_batch_size=6 .* 8", ("--predict_batch_size=6",), {"use_tpu": True}),
        ):
            with self.assertRaisesRegex(UserError, "--" + message + ".*choose a multiple"):
                settings(*arguments, **options)

    def test_paths_that_a_tpus_host_cannot_read(self):
        def check(output_dir, init_checkpoint, *arguments):
            common_flags.check_paths_for_tpu(parsed(*arguments), output_dir, init_checkpoint)

        check("out", "bert.ckpt")
        check("out", "bert.ckpt", "--tpu_name=local")
        check("gs://b/out", "gs://b/bert.ckpt", "--tpu_name=my-tpu")
        with self.assertRaisesRegex(UserError, "--output_dir=out: .* TPU my-tpu .* gs:// path"):
            check("out", "gs://b/bert.ckpt", "--tpu_name=my-tpu")
        with self.assertRaisesRegex(UserError, "--init_checkpoint=bert.ckpt: .* grpc://h:1"):
            check("gs://b/out", "bert.ckpt", "--master=grpc://h:1")


class CheckSequenceLengthTest(tf.test.TestCase):
    def test_room_for_a_text_and_within_the_position_table(self):
        config = tiny.config(max_position_embeddings=40)
        for length in (4, 40):
            values = parsed(f"--max_seq_length={length}")
            common_flags.check_sequence_length(values, config, shortest=4)
        for length, part in ((41, "40 positions"), (3, "4 or more"), (0, "short"), (-1, "short")):
            with self.assertRaises(UserError) as caught:
                common_flags.check_sequence_length(
                    parsed(f"--max_seq_length={length}"), config, shortest=4
                )
            self.assertIn(f"--max_seq_length={length} ", str(caught.exception))
            self.assertIn(part, str(caught.exception))


class MainTest(tf.test.TestCase):
    def test_a_place_of_no_file_system_is_a_users_error(self):
        main = common_flags.main_of(lambda values: tf.io.gfile.exists("nothing://bucket/folder"))
        silent = mock.patch.object(common_flags, "silence_tensorflow")
        with silent, self.assertRaisesRegex(UserError, "'nothing' not implemented.* cannot read"):
            main(["script.py"])


class SilenceTensorflowTest(tf.test.TestCase):
    def test_verbosity_brings_tensorflows_log_back(self):
        self.addCleanup(logging.set_verbosity, logging.get_verbosity())
        self.addCleanup(tf.logging.set_verbosity, tf.logging.get_verbosity())
        for verbosity, expected in (
            (logging.INFO, tf.logging.FATAL),
            (logging.DEBUG, tf.logging.INFO),
        ):
            logging.set_verbosity(verbosity)
            common_flags.silence_tensorflow()
            self.assertEqual(tf.logging.get_verbosity(), expected)


if __name__ == "__main__":
    tf.test.main()
