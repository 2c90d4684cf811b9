"""Tests of run_folder.py: which run may use a folder, and which files it removes there."""

import copy
import dataclasses
import errno
import fcntl
import fnmatch
import json
import os
import shutil
import socket
import tempfile
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.files import atomic, gfile
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text.classifier_data import ClassifierConfig
from adapter_bert.training import record, run_folder
from adapter_bert.training.run_folder import RunFolder
from adapter_tests.support import mutations, own_models, tiny
from adapter_tests.support.refusals import RefusalTestCase
from adapter_tests.support.script_cases import ScriptTestCase, read, write
from adapter_tests.support.task_adapters import description, random_adapter

SETTINGS = {
    "model": {
        "task": "MRPC",
        "labels": ("0", "1"),
        "adapter": {"fn": "feedforward_adapter", "size": 64},
        "do_lower_case": True,
    },
    "training": {"learning_rate": 3e-4, "num_train_steps": 50, "tuning": {"method": "adapters"}},
}


def claim_in(folder, settings, is_training, overwrite=False, reads=()):
    """Claims a folder; returns its RunFolder, which holds the lock of a training."""
    output = RunFolder(folder)
    output.claim(record.of_sections(settings, ClassifierConfig), is_training, overwrite, reads)
    return output


def changed(section, **values):
    settings = copy.deepcopy(SETTINGS)
    settings[section].update(values)
    return settings


class RunDirectoryTestCase(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "output", "mrpc")
        self.settings_file = os.path.join(self.folder, "settings.json")

    def claim(self, settings=SETTINGS, is_training=True, overwrite=False):
        return claim_in(self.folder, settings, is_training, overwrite)

    def train(self, settings=SETTINGS, step=5, name="partial.ckpt", identity=None):
        """Writes the files of a run that saved a checkpoint."""
        self.claim(settings)
        tensors = {"global_step": np.int64(step)}
        if identity:
            tensors[checkpoints.IDENTITY] = np.array(identity, "S")
        checkpoints.write(self.path(f"{name}-{step}"), tensors)
        checkpoints.write_record(self.folder, [f"{name}-{step}"])

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, *names):
        for name in names:
            write(self.path(name), "of an earlier run")

    def recorded(self):
        return json.loads(read(self.settings_file))

    def assert_refused(self, *parts, **claim):
        """Checks that a claim fails with one sentence that has all parts; returns it."""
        return str(super().assert_refused(parts, self.claim, **claim))


class TemporaryCheckpointTest(RunDirectoryTestCase):
    def test_temporary_checkpoint_is_removed_with_its_folder_object(self):
        bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
        adapter = own_models.build_task_adapter(bert)
        remote = [] if tf.__version__.startswith("1.") else ["ram://bucket/asked"]
        for path in (self.folder, *remote):
            folder = RunFolder(path)
            first, second = folder.as_checkpoint(adapter), folder.as_checkpoint(adapter)
            self.assertNotEqual(first, second)  # Two evaluations may use the folder at once.
            if path in remote:  # A TPU's host reads it there; overwriting removes it.
                self.assertEqual(os.path.dirname(first), path)
                self.assertTrue(
                    fnmatch.fnmatch(os.path.basename(first) + ".index", "task_*.ckpt.*")
                )
            else:
                self.assertFalse(os.path.exists(path))
            self.assertTrue(gfile.exists(first + ".index"))
            del folder
            self.assertFalse(gfile.exists(first + ".index"))
            self.assertFalse(gfile.exists(second + ".index"))

    def test_full_temporary_folder_is_reported(self):
        full = OSError(28, "No space left on device")
        place = mock.patch.object(run_folder.tempfile, "mkdtemp", side_effect=full)
        message = "folder for temporary files .*No space left"
        with place, self.assertRaisesRegex(UserError, message):
            RunFolder(self.folder).as_checkpoint(None)


class ClaimTest(RunDirectoryTestCase):
    def test_training_records_its_settings(self):
        remove = gfile.remove
        # Another process may remove the probe of writing first.
        with mock.patch.object(gfile, "remove", lambda path: (remove(path), remove(path))):
            self.claim(is_training=False)
        self.assertEqual(os.listdir(self.folder), [])
        self.claim()
        self.assertEqual(os.listdir(self.folder), ["settings.json"])
        self.assertEqual(self.recorded(), json.loads(json.dumps(SETTINGS)))

    def test_training_restores_adapter_replaced_before_a_kill(self):
        self.train()
        self.write("adapter.replaced/adapter_config.json", "adapter.partial/half_written")
        self.claim(is_training=False)
        self.assertTrue(os.path.exists(self.path("adapter.partial")))
        self.claim()
        self.assertFalse(os.path.exists(self.path("adapter.partial")))
        self.assertEqual(os.listdir(self.path("adapter")), ["adapter_config.json"])

    def test_adapter_without_checkpoints_is_not_replaced(self):
        self.claim()
        self.write("adapter/adapter_config.json")
        self.assert_refused("adapter", "--output_dir")
        self.claim(is_training=False)
        self.claim(overwrite=True)
        self.assertFalse(os.path.exists(self.path("adapter")))

    def test_first_training_does_not_remove_results_of_another_run(self):
        self.write("test_results.tsv", "notes.txt")
        self.assert_refused("test_results.tsv", "another run", "--overwrite_output_dir")
        self.claim(is_training=False)
        self.assertIn("test_results.tsv", os.listdir(self.folder))
        self.claim(overwrite=True)
        self.assertEqual(sorted(os.listdir(self.folder)), ["notes.txt", "settings.json"])

    def test_folder_names_with_wildcards_are_refused(self):
        for name in ("run[1]", "what?", "a*"):
            self.folder = os.path.join(self.get_temp_dir(), name)
            self.assert_refused(self.folder, "TensorFlow")
            self.assertFalse(os.path.exists(self.folder))

    def test_training_removes_partial_files_of_a_killed_run(self):
        self.train()
        left = ["partial.ckpt-9.index.tempstate1", "checkpoint.tmp5"]
        left.append("full_model.ckpt.partial.index")
        rename = mock.Mock(side_effect=SystemExit)
        killed = mock.patch.multiple(gfile, rename=rename, remove=mock.DEFAULT)
        with killed, self.assertRaises(SystemExit):
            atomic.write_atomically(self.settings_file, "half written")
        left += [name for name in os.listdir(self.folder) if ".partial" in name]
        self.assertLen(left, 4)
        self.write(*left)
        self.claim()
        self.assertEqual(set(os.listdir(self.folder)) & set(left), set())

    def test_training_removes_evaluations_without_checkpoints(self):
        """If evaluations.json stayed, its steps would count as evaluated."""
        scores = self.path("evaluations.json")
        self.write("evaluations.json")
        self.claim(is_training=False)
        self.assertTrue(os.path.exists(scores))
        self.claim()
        self.assertFalse(os.path.exists(scores))
        self.train()
        self.write("evaluations.json")
        self.claim()
        self.assertTrue(os.path.exists(scores))

    def test_overwriting_removes_scores_before_checkpoints(self):
        self.train()
        scores = ("evaluations.json", "eval_results.txt", "eval_results.json")
        self.write(*scores)
        removed = []

        def remove(path):
            removed.append(os.path.basename(path))
            if path.endswith("/checkpoint"):  # The first of the weights.
                raise KeyboardInterrupt
            os.remove(path)

        with mock.patch.object(gfile, "remove", remove), self.assertRaises(KeyboardInterrupt):
            self.claim(overwrite=True)
        self.assertContainsSubset({*scores, "checkpoint"}, removed)
        self.assertNoCommonElements(scores, os.listdir(self.folder))

    def test_same_settings_may_reuse_the_folder(self):
        self.train()
        before = sorted(os.listdir(self.folder))
        for trains in (True, False):
            self.claim(copy.deepcopy(SETTINGS), trains)
            self.assertEqual(sorted(os.listdir(self.folder)), before)
            self.assertEqual(self.recorded(), json.loads(json.dumps(SETTINGS)))

    def test_changed_model_settings_are_refused(self):
        self.train()
        for trains in (True, False):
            message = self.assert_refused(
                self.settings_file,
                'task (--task_name, --name) was "MRPC", is now "CoLA"',
                "--overwrite_output_dir",
                settings=changed("model", task="CoLA"),
                is_training=trains,
            )
            # Only an evaluation needs --do_train. run_baseline.py lacks this flag.
            self.assertEqual("--do_train" in message, not trains)
        self.assertEqual(self.recorded()["model"]["task"], "MRPC")

    def test_changed_training_settings_are_refused_in_training(self):
        self.train()
        settings = changed("training", learning_rate=1e-3)
        self.assert_refused("learning_rate was 0.0003, is now 0.001", settings=settings)
        self.claim(settings, is_training=False)
        self.assertEqual(self.recorded()["training"]["learning_rate"], 3e-4)

    def test_adapter_without_checkpoints_binds_evaluations(self):
        self.claim(changed("training", max_seq_length=16))
        self.write("adapter/adapter_config.json")
        for settings in (changed("training", max_seq_length=20), changed("training")):
            self.assert_refused("--max_seq_length was 16", settings=settings, is_training=False)
        # The adapter itself describes its model.
        other = changed("training", max_seq_length=16, learning_rate=1)
        other["model"] = {}
        self.claim(other, is_training=False)

    def test_finished_training_continues_to_more_steps(self):
        self.train(step=50)
        longer = changed("training", num_train_steps=80, num_warmup_steps=8)
        for settings, part in (
            (changed("training", num_train_steps=40), "(--num_train_epochs) was 50, is now 40"),
            (changed("training", num_train_steps=80, seed=1), "seed was not set, is now 1"),
        ):
            self.assert_refused(part, settings=settings)
        with self.assertLogs("absl", "WARNING") as log:
            self.claim(longer)
        (line,) = log.output
        self.assertRegex(line, r"of 50 steps continues to step 80\b.*learning rate.*--output_dir")
        self.assertEqual(self.recorded()["training"]["num_train_steps"], 80)
        # This is now a training of 80 steps that was stopped at 50.
        with self.assertRaises(AssertionError), self.assertLogs("absl", "WARNING"):
            self.claim(longer)
        longest = changed("training", num_train_steps=90, num_warmup_steps=8)
        self.assert_refused("(--num_train_epochs) was 80, is now 90", settings=longest)

    def test_settings_may_change_before_first_checkpoint(self):
        self.claim()
        self.claim(changed("training", max_seq_length=20), is_training=False)
        self.write("eval_results.txt")  # Of BERT without training.
        self.claim(changed("model", task="CoLA"))
        self.assertEqual(self.recorded()["model"]["task"], "CoLA")

    def test_training_refuses_checkpoints_without_settings(self):
        self.train()
        os.remove(self.settings_file)
        self.assert_refused(self.settings_file, "missing", "--overwrite_output_dir")
        self.claim(is_training=False)
        self.assertFalse(os.path.exists(self.settings_file))

    def test_invalid_settings_files_are_refused(self):
        self.train()
        for content in (b"", b"\xff\xfe\x00", b"[1]", b'{"model": null}', b'{"training": 5}'):
            write(self.settings_file, content, "wb")
            self.assertEqual(RunFolder(self.folder).recorded("training"), {})
            for trains in (True, False):
                self.assert_refused(self.settings_file, is_training=trains)

    def test_concurrent_training_in_the_folder_is_refused(self):
        def lock():
            descriptor = os.open(self.folder, os.O_RDONLY)  # Conflicts as in another process.
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            return descriptor

        self.claim(is_training=False)
        others = lock()
        self.assert_refused("another process", "--output_dir", is_training=True)
        self.claim(is_training=False)
        os.close(others)
        held = self.claim(is_training=True)
        self.claim(is_training=True)  # The same process may claim it twice.
        self.assertIsNone(lock())
        del held
        os.close(lock())

    def test_concurrent_training_is_refused_without_file_locks(self):
        held = self.path(".held")
        for code in (errno.ENOLCK, errno.EOPNOTSUPP):

            def flock(*_, code=code):
                raise OSError(code, "No locks")

            with mock.patch.object(fcntl, "flock", flock):
                output = self.claim(is_training=True)
                self.claim(is_training=True)  # The same process may claim it twice.
                self.assertTrue(os.path.exists(held))
                del output
                self.assertFalse(os.path.exists(held))
                write(held, "12 elsewhere")  # As another machine does.
                self.assert_refused(
                    "another process is training there (process 12 on elsewhere; if it was killed,"
                    f" remove {held}); wait"
                )
                self.claim(is_training=False)
                write(held, f"{2**30} {socket.gethostname()}")
                self.assert_refused(f"{held} is left of process {2**30}")
                os.remove(held)

    def test_adapter_of_another_runs_checkpoint_is_not_saved(self):
        """Another process trains in the folder, although this one has claimed it."""
        for change in ({"learning_rate": 0.01}, {"tuning": {"method": "full"}}):
            output = self.claim(overwrite=True)
            other = record.identity(changed("training", **change))
            self.train(identity=other)
            with self.assertRaisesRegex(UserError, "partial.ckpt-5 belongs to another run"):
                output.trained_adapter(description(), record.identity(SETTINGS))
        for own in (record.identity(SETTINGS), None):  # Earlier versions saved none.
            self.claim(overwrite=True)
            self.train(identity=own)
            self.assertEqual(
                checkpoints.latest(self.folder, record.identity(SETTINGS)),
                self.path("partial.ckpt-5"),
            )

    def test_lost_checkpoint_record_is_restored(self):
        """The record is missing if a run is killed before writing it, or if a user removes it."""
        for step, name in ((5, "model.ckpt"), (12, "partial.ckpt"), (110, "model.ckpt")):
            self.train(step=step, name=name)
            os.remove(self.path("checkpoint"))
            self.claim(is_training=True)
            latest = tf.train.latest_checkpoint(self.folder)
            self.assertEqual(latest, self.path(f"{name}-{step}"))

    def test_checkpoint_of_another_run_is_refused(self):
        self.train(identity=record.identity(SETTINGS))
        self.claim()
        self.claim(is_training=False)
        self.train(identity=record.identity(changed("training", random_seed=99)))
        parts = "another run", "partial.ckpt-5", "settings.json"
        for trains in (True, False):
            self.assert_refused(*parts, is_training=trains)
        self.claim(overwrite=True)

    def test_equal_numbers_of_different_types_match(self):
        """Types of numbers do not matter: another program may have rewritten settings.json."""
        edited = changed("training", warmup=0.0, weights=[True, 2.5])
        self.train(edited, identity=record.identity(edited))
        for trains in (True, False):
            self.claim(changed("training", warmup=False, weights=[1.0, 2.5]), trains)

    def test_record_naming_checkpoint_of_another_run_is_refused(self):
        self.train(changed("training", random_seed=99), identity="9" * 64)
        shutil.move(self.folder, self.folder + "_other")
        self.train(step=3, identity=record.identity(SETTINGS))
        tf.train.update_checkpoint_state(self.folder, self.folder + "_other/partial.ckpt-5")
        for trains in (True, False):
            self.assert_refused("another run", "_other/partial.ckpt-5", is_training=trains)

    def test_checkpoint_without_identity_is_logged(self):
        self.train(step=5)
        for trains in (True, False):
            with self.assertLogs("absl", "INFO") as logs:
                self.claim(is_training=trains)
            (line,) = logs.output
            self.assertIn("partial.ckpt-5 does not record which run", line)

    def test_incomplete_checkpoint_is_refused(self):
        self.train(step=5)
        data = self.path("partial.ckpt-5.data-00000-of-00001")
        original = read(self.path("checkpoint"))
        write(self.path("checkpoint"), original.replace("model_ch", "all_model_ch", 1))
        self.assert_refused("is missing")
        write(self.path("checkpoint"), original)
        os.remove(data)
        for trains in (True, False):
            self.assert_refused("--output_dir", "partial.ckpt-5 is incomplete", is_training=trains)


class OverwriteTest(RunDirectoryTestCase):
    OWN = (
        "graph.pbtxt",
        "model.ckpt-3.index",
        "events.out.tfevents.1.host",
        "eval/events.out.tfevents.1.host",
        "eval_results.txt",
        "test_results.tsv",
        "ablation.json",
        "ablation.txt",
        "test_scores_mismatched.json",
        "labels.tsv",
        "dev_labels_mismatched.tsv",
        "task_x.ckpt.index",
    )
    USERS = ("notes.txt", "train.log", "bert_config.json", "plots/eval_results.txt", "my.ckpt-5")
    USERS += ("labels_gold.tsv", "predictions_of_colleague.tsv", "test_results_2019.tsv")
    USERS += ("dev_labels_mine.tsv", "dev_predictions_old.tsv", "test_scores_2019.json")
    USERS += ("train.tsv", "vocab.txt", "bert_model.ckpt.index")

    def files(self):
        return {
            os.path.relpath(os.path.join(folder, name), self.folder)
            for folder, _, names in os.walk(self.folder)
            for name in names
        }

    def test_overwriting_removes_run_files_and_keeps_user_files(self):
        self.train()
        self.write(*self.OWN, *self.USERS)
        self.assertIn("partial.ckpt-5.index", self.files())
        self.claim(changed("model", task="CoLA"), overwrite=True)
        self.assertEqual(self.files(), {*self.USERS, "settings.json"})
        self.assertEqual(self.recorded()["model"]["task"], "CoLA")

    def test_first_training_does_not_remove_its_inputs(self):
        self.write("predictions.jsonl")
        reads = [("--train_file", self.path("predictions.jsonl"))]
        with self.assertRaisesRegex(UserError, "^The training would remove --train_file=/.*[.]$"):
            claim_in(self.folder, SETTINGS, True, False, reads)
        claim_in(self.folder, SETTINGS, False, False, reads)

    def test_overwriting_does_not_remove_inputs_of_the_run(self):
        self.train()
        self.write(*self.OWN, "eval/data/train.tsv", "full_model.ckpt.index")
        before = self.files()
        named = ("full_model.ckpt", "eval", "eval/data/", "eval_results.txt", "../mrpc/eval/data")
        for name in named:
            reads = [("--one", "/elsewhere"), ("--other", self.path(name))]
            with self.assertRaisesRegex(UserError, "^--overwrite_output_dir .*--other=/.*[.]$"):
                claim_in(self.folder, SETTINGS, True, True, reads)
            self.assertEqual(self.files(), before)
        others = ("", "notes.txt", "full_model", "evaluation", "partial.ckpt-55", "partial")
        reads = [("--other", self.path(name)) for name in others]
        claim_in(self.folder, SETTINGS, True, True, reads)
        self.assertEqual(self.files(), {"settings.json"})

    def test_overwriting_replaces_corrupt_files(self):
        self.train()
        self.write("settings.json", "partial.ckpt-5.index")
        self.claim(overwrite=True)
        self.assertEqual(self.files(), {"settings.json"})

    def test_evaluation_removes_nothing_despite_overwrite(self):
        self.train()
        self.write(*self.OWN)
        before = self.files()
        self.claim(is_training=False, overwrite=True)
        self.assertEqual(self.files(), before)

    def test_resumed_training_removes_only_results(self):
        self.train()
        results = ("eval_results.json", "ablation.json", "full_model.ckpt.index")
        others = ("evaluations.json", "labels.tsv", "eval/events.out.tfevents.1.host")
        before = self.files()
        self.write(*results, *others, *self.USERS)
        linked = write(os.path.join(self.get_temp_dir(), "elsewhere", "MRPC.tsv"), "")
        os.symlink(os.path.dirname(linked), self.path("submission"))
        RunFolder(self.folder).remove_results()
        self.assertEqual(self.files(), {*before, *others, *self.USERS})
        self.assertTrue(os.path.exists(linked))


class ForeignCheckpointTest(RunDirectoryTestCase):
    def test_records_of_checkpoints_elsewhere_are_refused(self):
        """TensorFlow deletes the oldest checkpoints that the record lists."""
        self.train()
        home = self.folder + "-home"
        os.rename(self.folder, home)
        self.train()
        own = "partial.ckpt-5"
        for listed in (
            [os.path.join(home, own), own],
            [own, "../mrpc-home/partial.ckpt-5"],
            ["full_model.ckpt", own],
            ["*.ckpt-5", own],
        ):
            checkpoints.write_record(self.folder, listed)
            for is_training in (True, False):
                self.assert_refused("/checkpoint lists ", "another run", is_training=is_training)
        for listed in ([own], [self.path(own)], ["model.ckpt-3", own]):
            checkpoints.write_record(self.folder, listed)
            self.claim()


class CreateTest(RunDirectoryTestCase):
    def test_output_dir_at_or_below_a_file_is_refused(self):
        self.write("file")
        file = os.path.join(self.folder, "file")
        for self.folder in (file, os.path.join(file, "below"), os.path.join(file, "far", "below")):
            for trains in (True, False):
                self.assert_refused(f"--output_dir={self.folder}", "written", is_training=trains)
        self.assertEqual(read(file), "of an earlier run")

    def test_unwritable_folder_is_refused(self):
        with mock.patch.object(os, "access", return_value=False):
            self.assert_refused(f"--output_dir={self.folder}", "Permission denied")

    def test_links_are_replaced_and_what_they_lead_to_stays(self):
        elsewhere = tempfile.mkdtemp(dir=self.get_temp_dir())
        private = write(os.path.join(elsewhere, "file"), "{}")
        folders, files = ["eval", "submission"], ["settings.json", "evaluations.json"]
        os.makedirs(self.folder)
        for overwrite in (False, True):
            for name in (*folders, *files, ".writable", *(["adapter"] if overwrite else [])):
                path = self.path(name)
                if os.path.lexists(path):
                    os.remove(path)
                os.symlink(elsewhere if name in (*folders, "adapter") else private, path)
            with self.assertLogs("absl", "WARNING") as log:
                self.claim(overwrite=overwrite)
            for name, line in zip(folders, sorted(log.output)):
                self.assertIn(f"Removing {self.folder}/{name}: it was a link.", line)
            self.assertEqual(mutations.files_in(elsewhere), {"file": b"{}"})
            self.assertEqual(sorted(os.listdir(self.folder)), [".writable", "settings.json"])
            self.assertFalse(os.path.islink(self.settings_file))


class OverwritingRunTest(ScriptTestCase):
    def test_refused_overwriting_removes_nothing(self):
        train = ["--do_train", "--num_train_epochs=0.4", "--save_full_checkpoint"]
        trained, _ = self.train_once(*train)
        shutil.copytree(trained, self.output_dir)
        data = shutil.copytree(self.data, self.path("eval/data"))
        link = os.path.join(self.folder, "link")
        os.symlink(self.output_dir, link)
        full = "--init_checkpoint=" + os.path.join(trained, "full_model.ckpt")
        shape = "layer_0/attention/output/adapters/weights1 has the shape [8, 3]"
        before = mutations.files_in(self.output_dir)
        for arguments, parts in (
            (["--data_dir=" + data], ["--overwrite_output_dir", data, "--output_dir"]),
            ([f"--init_checkpoint={link}/full_model.ckpt"], ["--overwrite_output_dir", link]),
            ([full, "--adapter_size=4"], [full.replace("=", " "), shape, "[8, 4]"]),
            (["--feature_cache_dir=gs://bucket/cache"], ["--feature_cache_dir=gs://bucket/cache"]),
        ):
            self.refuse(parts, "--do_train", "--overwrite_output_dir", *arguments)
            self.assertEqual(mutations.files_in(self.output_dir), before)
        no_room = OSError(28, "No space left on device")
        with mock.patch.object(tempfile, "mkdtemp", side_effect=no_room):
            flags = ["--do_train", "--overwrite_output_dir", "--feature_cache_dir=none"]
            self.refuse(["temporary files", "No space left"], *flags)
        self.assertEqual(mutations.files_in(self.output_dir), before)


class ResultsTest(RunDirectoryTestCase):
    def test_results_are_written_as_text_and_json(self):
        result = {
            "eval_f1": 0.5,
            "eval_confusion_matrix": [[1, 0], [2, 3]],
            "loss": np.float32(0.25),
            "precision": "float32",
        }
        metadata = {"task": "MRPC", "labels": ["0", "1"]}
        path = RunFolder(self.get_temp_dir()).write_results(result, metadata)
        self.assertEqual(path, os.path.join(self.get_temp_dir(), "eval_results.txt"))
        self.assertEqual(read(path), "eval_f1 = 0.5\nloss = 0.25\nprecision = float32\n")
        written = json.loads(read(path.replace(".txt", ".json")))
        self.assertEqual(written, {**result, **metadata})

    def test_lost_best_adapter_is_refused(self):
        folder = RunFolder(self.folder)
        self.claim()
        folder.check_best("f1")
        folder.evaluations("f1").add(5, {"f1": 0.5})
        with self.assertRaisesRegex(UserError, f"--keep_best: {folder.adapter_folder},.* is gone"):
            folder.check_best("f1")
        self.write("adapter.replaced/adapter_config.json")
        folder.check_best("f1")

    def test_saved_tensors_keep_their_scores_and_versions(self):
        folder = RunFolder(self.folder)
        adapter = random_adapter()
        folder.save_adapter(adapter)
        self.assertEqual(folder.describe_adapter(), adapter.description)
        later = {"scores": {}, "versions": {"tensorflow": "9"}, "training": {"data": "b"}}
        again = dataclasses.replace(adapter.description, **later)
        folder.save_adapter(adapter._replace(description=again))
        expected = dataclasses.replace(adapter.description, training={"data": "b"})
        self.assertEqual(folder.describe_adapter(), expected)
        with mock.patch.object(task_adapter, "save") as save:
            folder.save_adapter(adapter._replace(description=again))
            save.assert_not_called()
            adapter.tensors["output_bias"] = adapter.tensors["output_bias"] + 1
            folder.save_adapter(adapter._replace(description=again))
            save.assert_called_once_with(folder.adapter_folder, mock.ANY)
            self.assertEqual(save.call_args[0][1].description, again)


class DamagedFilesTest(tf.test.TestCase):
    def test_damaged_run_files_are_read_or_refused(self):
        settings = {"model": {"a": 1, "b": [1, {"c": "x"}]}, "training": {"learning_rate": 0.1}}

        def write(folder):
            bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
            prefix = os.path.join(folder, "partial.ckpt-10")
            adapter_checkpoints.to_checkpoint(own_models.build_task_adapter(bert), prefix)
            checkpoints.write_record(folder, ["partial.ckpt-10"])
            with open(os.path.join(folder, "settings.json"), "w") as writer:
                json.dump(settings, writer)

        def read(folder):
            claim_in(folder, settings, is_training=True)
            checkpoints.last_step(folder)
            checkpoint = tf.train.latest_checkpoint(folder)
            if checkpoint:
                checkpoints.trained_tensors(checkpoint, ["output_weights", "output_bias"])

        contents = mutations.written_by(write)
        for name in contents:
            accepted = (name.partition(".index")[0].partition(".data")[0], "--output_dir")

            def damage(contents, name=name):
                return mutations.damaged_files(contents, [name])

            with self.subTest(name):
                mutations.check(contents, read, accepted, damage)
