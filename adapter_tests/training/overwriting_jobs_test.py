"""Tests of finetuning.py: what a run removes from its output_dir, and what it must not."""

import os
import shutil
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.formats import task_adapter
from adapter_tests.support.script_cases import ScriptTestCase, contents, read, write

RESULTS = ("eval_results.txt", "eval_results.json", "test_results.tsv", "predictions.tsv")
RESULTS += ("dev_predictions.tsv", "submission/MRPC.tsv")


class OverwritingTest(ScriptTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained = os.path.join(cls.root, "trained")
        train = ["--do_train", "--num_train_epochs=0.4", "--save_full_checkpoint"]
        code, _, stderr = cls.call(cls.trained, *train)
        assert code is None, stderr

    def assert_refused(self, output_dir, arguments, parts):
        before = contents(output_dir)
        code, _, stderr = self.call(output_dir, "--do_train", "--overwrite_output_dir", *arguments)
        with self.subTest(arguments=arguments, stderr=stderr):
            self.assert_one_sentence(code, stderr, parts)
            self.assertEqual(contents(output_dir), before)

    def test_what_it_reads_is_not_removed(self):
        shutil.copytree(self.trained, self.output_dir)
        data = shutil.copytree(self.data, self.path("eval/data"))
        config = os.path.join(self.bert, "bert_config.json")
        config = write(self.path("submission/bert_config.json"), read(config))
        vocabulary = os.path.join(self.bert, "vocab.txt")
        vocabulary = write(self.path("predictions_vocab.tsv"), read(vocabulary))
        given = shutil.copytree(self.path("adapter"), self.path("eval/given"))
        link = os.path.join(self.folder, "link")
        os.symlink(self.output_dir, link)
        for flag, path in (
            ("init_checkpoint", self.path("full_model.ckpt")),
            ("init_checkpoint", os.path.join(link, "full_model.ckpt")),
            ("data_dir", data),
            ("bert_config_file", config),
            ("vocab_file", vocabulary),
            ("adapter", given),
        ):
            named = f"--{flag}={path}"
            self.assert_refused(
                self.output_dir, [named], ["--overwrite_output_dir", named, "--output_dir"]
            )

    def test_what_it_reads_and_does_not_remove_may_lie_there(self):
        shutil.copytree(self.trained, self.output_dir)
        for name in os.listdir(self.data):
            shutil.copy(os.path.join(self.data, name), self.output_dir)
        for name in os.listdir(self.bert):
            shutil.copy(os.path.join(self.bert, name), self.output_dir)
        found = ["bert_config_file=bert_config.json", "vocab_file=vocab.txt"]
        found.append("init_checkpoint=bert_model.ckpt")
        flags = [f"--{flag}={self.path(name)}" for flag, name in (f.split("=") for f in found)]
        flags += ["--data_dir=" + self.output_dir, "--num_train_epochs=0.4"]
        self.succeed("--do_train", "--overwrite_output_dir", *flags)
        self.assertFalse(os.path.exists(self.path("full_model.ckpt.index")))

    def test_what_is_refused_removes_nothing(self):
        wider = os.path.join(self.trained, "full_model.ckpt")
        other = os.path.join(self.folder, "other")
        self.succeed("--do_train", "--num_train_epochs=0.4", "--tuning=head", output_dir=other)
        full = ["--init_checkpoint=" + wider, "--adapter_size=4"]
        part = "layer_0/attention/output/adapters/weights1 has the shape [8, 3]"
        self.assert_refused(other, full, [full[0].replace("=", " "), part, "[8, 4]"])
        remote = "--feature_cache_dir=gs://bucket/cache"
        self.assert_refused(other, [remote], [remote])
        no_room = OSError(28, "No space left on device")
        with mock.patch.object(tempfile, "mkdtemp", side_effect=no_room):
            none = "--feature_cache_dir=none"
            self.assert_refused(other, [none], ["temporary files", "No space left"])


class GoingOnTest(ScriptTestCase):
    def rewind(self, step):
        """Leaves what a training leaves that is killed after a step's checkpoint."""
        shutil.rmtree(self.path("adapter"))
        tf.train.update_checkpoint_state(self.output_dir, self.path(f"partial.ckpt-{step}"))

    def found(self):
        return {name for name in RESULTS if os.path.exists(self.path(name))}

    def test_results_of_other_weights_do_not_stay(self):
        train = ["--do_train", "--num_train_epochs=1", "--save_checkpoints_steps=1"]
        self.succeed(*train)
        self.rewind(step=1)
        self.succeed("--do_eval", "--do_predict")
        for name in ("predictions_old.tsv", "submission/all.zip"):
            write(self.path(name), "mine")
        labels = read(self.path("dev_labels.tsv"))
        self.assertEqual(self.found(), set(RESULTS))
        killed = mock.patch.object(task_adapter, "save", side_effect=KeyboardInterrupt)
        with killed:
            code, _, _ = self.call(self.output_dir, *train)
        self.assertEqual(code, 130)
        self.assertEqual(self.found(), set())
        for name in ("predictions_old.tsv", "submission/all.zip"):
            self.assertEqual(read(self.path(name)), "mine")
        self.assertEqual(read(self.path("dev_labels.tsv")), labels)
        # Those of the weights that lie there stay.
        self.succeed("--do_eval", "--do_predict")
        self.succeed(*train)
        self.assertEqual(self.found(), set(RESULTS))

    def test_what_was_stopped_early_is_not_trained_on(self):
        stopped = ["--num_train_epochs=5", "--learning_rate=1e-30", "--early_stopping_patience=1"]
        self.succeed(*stopped)
        self.succeed("--do_predict")
        self.assertEqual(self.found(), set(RESULTS))
        self.succeed(*stopped)
        self.assertEqual(self.found(), set(RESULTS))

    def test_more_epochs_go_on_from_the_finished_ones(self):
        """The schedule is that of the new length, from the old step; results are of its end."""
        self.succeed("--num_train_epochs=0.4", "--save_full_checkpoint")
        self.succeed("--do_predict")
        for name in ("ablation.json", "notes.txt"):
            write(self.path(name), "{}")
        with self.assertLogs("absl", "WARNING") as log:
            self.succeed("--do_train", "--num_train_epochs=1")
        self.assertRegex("\n".join(log.output), "of 1 steps continues to step 3")
        self.assertEqual(task_adapter.describe(self.path("adapter")).global_step, 3)
        self.assertEqual(self.found(), set())
        for name, stays in (("full_model.ckpt.index", False), ("ablation.json", False)):
            self.assertEqual(os.path.exists(self.path(name)), stays, name)
        self.assertTrue(os.path.exists(self.path("notes.txt")))
        # As a training of 3 steps that finds a checkpoint of step 1.
        resumed = os.path.join(self.folder, "resumed")
        self.succeed("--do_train", "--num_train_epochs=0.4", output_dir=resumed)
        settings = read(self.path("settings.json"))
        write(os.path.join(resumed, "settings.json"), settings)
        self.succeed("--do_train", "--num_train_epochs=1", output_dir=resumed)
        for name in ("adapter.safetensors", "adapter_config.json"):
            self.assertEqual(
                read(self.path("adapter/" + name), "rb"),
                read(os.path.join(resumed, "adapter", name), "rb"),
            )


if __name__ == "__main__":
    tf.test.main()
