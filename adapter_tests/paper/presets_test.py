"""Tests of presets.py: grids equal numbers copied by hand from Houlsby et al. 2019."""

import csv
import os

import tensorflow.compat.v1 as tf

import run_classifier
import run_squad
import run_tagger
from adapter_bert.paper.presets import PRESETS
from adapter_bert.sweeps import grids
from adapter_bert.tasks.text import custom_tasks, glue
from adapter_tests.support import command_lines

GLUE = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE"]


def trials_of(name, **only):
    """Returns the flags, as dicts, of a preset's trials with these values.

    Trials with adapters have no flag `tuning`.
    """
    flags = [dict(trial.flags) for trial in grids.expand_grids(PRESETS[name][1])]
    return [one for one in flags if all(one.get(flag) == value for flag, value in only.items())]


class PaperTest(tf.test.TestCase):
    def check(self, trials, seeds, **axes):
        """Checks that the trials are all combinations of these values, each once per seed."""
        for flag, values in {**axes, "random_seed": range(1, seeds + 1)}.items():
            self.assertEqual({trial[flag] for trial in trials}, set(values), flag)
        count = seeds
        for values in axes.values():
            count *= len(values)
        self.assertLen(trials, count)

    def test_init_scale_and_batch_size_equal_section_3_1(self):
        """All adapters are initialized with a standard deviation of 1e-2.

        "In our main experiments the weights in the adapter module were drawn from a zero-mean
        Gaussian with standard deviation 10^-2, truncated to two standard deviations." (3.6)
        "a batch size of 32" (3.1) is the scripts' default.
        """
        for name in set(PRESETS) - {"init_scales"}:
            for trial in trials_of(name, tuning=None):
                self.assertEqual(trial["adapter_init_scale"], 0.01, name)
            for trial in trials_of(name):
                self.assertNotIn("train_batch_size", trial)
        for script in (run_classifier, run_squad):
            values = command_lines.parsed(script.define_flags)
            self.assertEqual(values.train_batch_size, 32)

    def test_glue_grid_equals_section_3_2(self):
        """Adapters on GLUE, and full fine-tuning as in Devlin et al. 2018.

        "We sweep learning rates in {3·10^-5, 3·10^-4, 3·10^-3}, and number of epochs in {3, 20}.
        We test both using a fixed adapter size [...], and selecting the best size per task from
        {8, 64, 256}. [...] Finally, due to training instability, we re-run 5 times with different
        random seeds and select the best model on the validation set."
        """
        self.check(
            trials_of("glue", tuning=None),
            seeds=5,
            task_name=GLUE,
            adapter_size=[8, 64, 256],
            learning_rate=[0.00003, 0.0003, 0.003],
            num_train_epochs=[3, 20],
        )
        # "fine-tune for 3 epochs over the data for all GLUE tasks. For each task, we selected the
        # best fine-tuning learning rate (among 5e-5, 4e-5, 3e-5, and 2e-5) on the Dev set."
        self.check(
            trials_of("glue", tuning="full"),
            seeds=5,
            task_name=GLUE,
            learning_rate=[0.00005, 0.00004, 0.00003, 0.00002],
            num_train_epochs=[3],
        )
        # "we report the test metrics provided by the submission website" (3.1)
        self.assertTrue(all(trial["do_predict"] for trial in trials_of("glue")))

    def test_top_layers_grid_on_glue_equals_section_3_4(self):
        """Figures 1 and 3, left.

        "across nine tasks from the GLUE benchmark", of which MNLI_m and MNLI_mm have one training;
        "fine-tuning the top n layers, for varying n". Figure 4: "the top k layers for k = 1...12".
        "The learning rate is tuned using the range presented in Section 3.2."
        """
        self.check(
            trials_of("glue_top_layers", tuning="top_layers"),
            seeds=3,
            task_name=GLUE,
            num_top_layers=[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
            learning_rate=[0.00003, 0.0003, 0.003],
            num_train_epochs=[3, 20],
        )

    def test_further_task_grids_equal_section_3_3(self):
        """Adapters, full fine-tuning and variable fine-tuning on the further tasks.

        "we sweep a wide range of learning rates: {1·10^-5, 3·10^-5, 1·10^-4, 3·10^-3}. [...] we
        select the number of training epochs from the set {20, 50, 100} manually [...] We test
        adapters sizes in {2, 4, 8, 16, 32, 64}. [...] We sweep n ∈ {1, 2, 3, 5, 7, 9, 11, 12}."
        """
        rates = [0.00001, 0.00003, 0.0001, 0.003]
        adapters = trials_of("further_tasks", tuning=None)
        full = trials_of("further_tasks", tuning="full")
        layers = trials_of("variable_fine_tuning", tuning="top_layers")
        self.assertLen({trial["task_name"] for trial in adapters}, 17)
        self.assertTrue(all(trial["do_predict"] for trial in adapters + full + layers))
        for task in {trial["task_name"] for trial in adapters + full + layers}:
            for trials, axes in (
                (adapters, {"adapter_size": [2, 4, 8, 16, 32, 64]}),
                (full, {}),
                (layers, {"num_top_layers": [1, 2, 3, 5, 7, 9, 11, 12]}),
            ):
                task_trials = [trial for trial in trials if trial["task_name"] == task]
                self.check(task_trials, seeds=5, learning_rate=rates, **axes)

    def test_epochs_of_further_tasks_equal_table_4(self):
        """Epochs of fine-tuning and of adapters for each of the further tasks."""
        data = os.environ.get("ADAPTER_BERT_DATA")
        path = os.path.join(data or "", "paper", "table4_epochs.tsv")
        if not (data and os.path.exists(path)):
            self.skipTest("ADAPTER_BERT_DATA has no paper/table4_epochs.tsv")
        with open(path) as reader:
            rows = list(csv.DictReader(reader, delimiter="\t"))
        names = {
            "20 newsgroups": "newsgroups",
            "Customer complaint database": "customer_complaints",
            "News aggregator dataset": "news_aggregator",
            "SMS spam collection": "sms_spam",
        }
        self.assertLen(rows, 17)
        for row in rows:
            crowdflower = row["dataset"].replace("Crowdflower ", "").lower().replace(" ", "_")
            task = names.get(row["dataset"], crowdflower)
            for preset, tuning, column in (
                ("further_tasks", None, "epochs_adapters"),
                ("further_tasks", "full", "epochs_fine_tune"),
                ("variable_fine_tuning", "top_layers", "epochs_fine_tune"),
            ):
                epochs = {
                    trial["num_train_epochs"]
                    for trial in trials_of(preset, task_name=task, tuning=tuning)
                }
                self.assertEqual(epochs, {int(row[column])}, task)

    def test_sizes_grid_equals_section_3_4(self):
        """Figure 4.

        "(i) Fine-tuning of only the top k layers of BERT_BASE. (ii) Tuning only the layer
        normalization parameters. The learning rate is tuned using the range presented in
        Section 3.2." Figure 4: "adapter sizes 2^n for n = 0...9", "the top k layers for
        k = 1...12", "±1 s.e.m. across three random seeds".
        """
        axes = {
            "task_name": ["MNLI", "CoLA"],
            "learning_rate": [0.00003, 0.0003, 0.003],
            "num_train_epochs": [3, 20],
        }
        sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
        layers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        self.check(trials_of("sizes", tuning=None), seeds=3, adapter_size=sizes, **axes)
        top_layers = trials_of("sizes", tuning="top_layers")
        self.check(top_layers, seeds=3, num_top_layers=layers, **axes)
        self.check(trials_of("sizes", tuning="layer_norm"), seeds=3, **axes)
        self.assertLen(trials_of("sizes"), 2 * 3 * 2 * 3 * (10 + 12 + 1))

    def test_squad_grid_equals_section_3_5(self):
        """Figure 5.

        "For fine-tuning, we sweep the number of trained layers, learning rate in {3·10^-5,
        5·10^-5, 1·10^-4}, and number of epochs in {2, 3, 5}. For adapters, we sweep the adapter
        size, learning rate in {3·10^-5, 1·10^-4, 3·10^-4, 1·10^-3}, and number of epochs in
        {3, 10, 20}." Figure 5: "the s.e.m. across three seeds".
        """
        self.check(
            trials_of("squad", tuning=None),
            seeds=3,
            adapter_size=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
            learning_rate=[0.00003, 0.0001, 0.0003, 0.001],
            num_train_epochs=[3, 10, 20],
        )
        self.check(
            trials_of("squad", tuning="top_layers"),
            seeds=3,
            num_top_layers=[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
            learning_rate=[0.00003, 0.00005, 0.0001],
            num_train_epochs=[2, 3, 5],
        )
        self.assertLen(trials_of("squad"), 3 * (10 * 4 * 3 + 12 * 3 * 3))

    def test_init_scales_grid_equals_section_3_6(self):
        """Figure 6, right: "we test standard deviations in the interval [10^-7, 1]"."""
        self.check(
            trials_of("init_scales"),
            seeds=3,
            task_name=["MNLI", "CoLA"],
            adapter_init_scale=[0.0000001, 0.000001, 0.00001, 0.0001, 0.001, 0.01, 0.1, 1],
            learning_rate=[0.00003, 0.0003, 0.003],
            num_train_epochs=[3, 20],
        )

    def test_variants_grid_contains_extensions_of_section_3_6(self):
        """The extensions of the adapter.

        "(i) adding a batch/layer normalization to the adapter, (ii) increasing the number of layers
        per adapter, (iii) different activation functions, such as tanh, (iv) inserting adapters
        only inside the attention layer, (v) adding adapters in parallel to the main layers, and
        possibly with a multiplicative interaction."
        """
        designs = {
            tuple(
                (flag[len("adapter_") :], value)
                for flag, value in sorted(trial.items())
                if flag.startswith("adapter_") and flag != "adapter_init_scale"
            )
            for trial in trials_of("variants")
        }
        paper = {
            (),
            *((("normalization", "batch"),), (("normalization", "layer"),)),
            *((("depth", 2),), (("depth", 3),), (("activation", "tanh"),)),
            *((("sites", "attention"),), (("placement", "parallel"),)),
            (("interaction", "multiply"), ("placement", "parallel")),
        }
        others = {
            *((("activation", "relu"),), (("activation", "swish"),)),
            *((("sites", "feed_forward"),), (("interaction", "multiply"),)),
        }
        self.assertEqual(designs, paper | others)
        self.assertLen(trials_of("variants"), 2 * 3 * 3 * 2 * len(designs))

    def test_learning_rates_grid_equals_appendix_b(self):
        """Figure 7.

        "We ran experiments with learning rates in the range [2·10^-5, 10^-3], and selected the
        best hyperparameters for each method at each learning rate." "the s.e.m. across three random
        seeds"
        """
        rates = [0.00002, 0.00005, 0.0001, 0.0003, 0.0005, 0.001]
        axes = {
            "task_name": ["MNLI", "CoLA"],
            "learning_rate": rates,
            "num_train_epochs": [3, 20],
        }
        adapters = trials_of("learning_rates", tuning=None)
        self.check(adapters, seeds=3, adapter_size=[8, 64, 256], **axes)
        self.check(trials_of("learning_rates", tuning="full"), seeds=3, **axes)


class FlagsTest(tf.test.TestCase):
    def test_scripts_accept_tasks_and_flags_of_every_preset(self):
        scripts = {"run_classifier.py": run_classifier, "run_squad.py": run_squad}
        scripts["run_tagger.py"] = run_tagger
        self.assertEqual(set(scripts), set(grids.scripts()))
        tasks = {*(task.name for task in glue.TASKS.values()), *custom_tasks.LAYOUTS}
        for name, (_, trial_grids) in PRESETS.items():
            seen = set()
            for trial in grids.expand_grids(trial_grids):
                signature = trial.script, tuple(flag for flag, _ in trial.flags), trial.task
                if signature in seen:
                    continue
                seen.add(signature)
                arguments = [f"--{flag}={value}" for flag, value in trial.flags]
                values = command_lines.parsed(scripts[trial.script].define_flags, *arguments)
                if trial.script == "run_classifier.py":
                    self.assertIn(values.task_name, tasks, name)
            self.assertNotEmpty(seen)
