"""Tests of data_digests.py: digests depend only on the files that a training reads."""

import contextlib
import os
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.files import gfile
from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import data_digests, grids
from adapter_bert.tasks.text import custom_tasks, glue
from adapter_tests.support.toy_kinds import Marks, registered

_NLI = "index\tsentence1\tsentence2\tlabel\n"


class SweepDataTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as writer:
            writer.write(content)
        return path

    def digests(self, task_name=None, script="run_classifier.py", **flags):
        given = {"data_dir": self.folder} if task_name else {}
        (trial,) = grids.expand_grids(
            [
                {
                    "script": script,
                    **given,
                    **flags,
                    **({"task_name": task_name} if task_name else {}),
                }
            ]
        )
        return data_digests.DataDigests().compute(data_digests.data_source_of(trial))

    def assert_changes(self, splits, name, *arguments, **options):
        """Checks that changing a file changes the digests of exactly these splits."""
        before = self.digests(*arguments, **options)
        path = os.path.join(self.folder, name)
        content = None
        if os.path.exists(path):
            with open(path) as reader:
                content = reader.read()
        self.write(name, (content or "") + "x\n")
        after = self.digests(*arguments, **options)
        self.assertEqual({split for split in before if before[split] != after[split]}, splits, name)
        os.remove(path) if content is None else self.write(name, content)
        self.assertEqual(self.digests(*arguments, **options), before)

    def test_split_digest_depends_only_on_its_files(self):
        for name in ("train", "dev_matched", "dev_mismatched", "test_matched"):
            self.write(name + ".tsv", name)
        self.assertEqual(set(self.digests("MNLI")), {"train", "dev"})
        for name, split in (
            ("train.tsv", {"train"}),
            ("dev_matched.tsv", {"dev"}),
            ("dev_mismatched.tsv", {"dev"}),
            ("test_matched.tsv", set()),
            ("original/notes.txt", set()),
        ):
            self.assert_changes(split, name, "mnli")
        for name in ("test_matched.tsv", "test_mismatched.tsv"):  # The second file is optional.
            self.assert_changes({"test"}, name, "MNLI", do_predict=True)

    def test_digests_do_not_depend_on_paths(self):
        for folder in ("one", "other"):
            for name in ("train.tsv", "dev.tsv"):
                self.write(os.path.join(folder, "RTE", name), name)
        found = []
        for folder in ("one", "other"):
            os.environ["GLUE_DIR"] = os.path.join(self.folder, folder)
            self.addCleanup(os.environ.pop, "GLUE_DIR", None)
            found.append(self.digests("rte", data_dir="$GLUE_DIR/RTE"))
            (trial,) = grids.expand_grids([{"task_name": "RTE"}])
            found.append(data_digests.DataDigests().compute(data_digests.data_source_of(trial)))
        self.assertLen({str(digests) for digests in found}, 1)

    def test_splits_without_files_share_the_training_file(self):
        self.write("train.csv", "text,label\n")
        everything = {"train", "dev", "test"}
        self.assert_changes(everything, "train.csv", "custom", do_predict=True)
        # With a dev file, the other splits get more of the training rows.
        self.assert_changes(everything, "dev.jsonl", "custom", do_predict=True)
        self.write("dev.tsv", "text\tlabel\n")
        self.assert_changes({"train"}, "test.csv", "custom")
        self.write("test.csv", "text,label\n")
        self.assert_changes({"train"}, "train.csv", "custom", do_predict=True)
        self.assert_changes({"dev"}, "dev.tsv", "custom", do_predict=True)
        self.assert_changes(set(), "test.csv", "custom")

    def test_digests_of_shared_rows_depend_on_the_split(self):
        path = self.write("train.csv", "text,label\n")
        random = self.digests("custom", split="random")
        # As of earlier versions, whose rows were set apart at random.
        files = [("train.csv", gfile.sha256(path))]
        expected = task_adapter.digest([*files, "dev", "test"])
        self.assertEqual(random, {"train": expected, "dev": expected})
        found = [
            self.digests("custom", **flags)["train"]
            for flags in ({}, {"dev_share": 0.2}, {"test_share": 0.2}, {"split": "random"})
        ]
        self.assertLen(set(found), 4)
        self.assertEqual(self.digests("custom", split="stratified")["train"], found[0])
        for name in ("dev", "test"):
            self.write(name + ".csv", "text,label\n")
        self.assertEqual(self.digests("custom")["train"], task_adapter.digest(files))
        tagger = {"script": "run_tagger.py", "train_file": self.write("a.txt", "a O")}
        found = [self.digests(**tagger, **flags) for flags in ({}, {"dev_share": 0.3})]
        self.assertNotEqual(*found)

    def test_paper_s_tasks_have_the_digests_of_earlier_versions(self):
        path = self.write("Tweets.csv", "x")
        expected = task_adapter.digest([("Tweets.csv", gfile.sha256(path)), "dev", "test"])
        self.assertEqual(self.digests("airline"), {"train": expected, "dev": expected})
        self.assertNotEqual(self.digests("airline", split="stratified")["dev"], expected)

    def test_digest_changes_with_arrow_and_compressed_files(self):
        for name in ("train.parquet", "dev.jsonl.gz", "test/state.json", "test/data.arrow"):
            self.write(name, name)
        self.assert_changes({"train"}, "train.parquet", "custom", do_predict=True)
        self.assert_changes({"dev"}, "dev.jsonl.gz", "custom", do_predict=True)
        self.assert_changes({"test"}, "test/data.arrow", "custom", do_predict=True)
        tagger = {"script": "run_tagger.py", "data_dir": self.folder, "do_predict": True}
        self.assert_changes({"train"}, "train.parquet", **tagger)
        self.assert_changes({"dev"}, "dev.jsonl.gz", **tagger)
        self.assert_changes({"test"}, "test/data.arrow", **tagger)

    def test_files_of_flags_are_digested_instead_of_those_in_the_folder(self):
        for name in ("train", "dev", "test", "other/train", "other/dev"):
            self.write(name + ".tsv", name)
        for task, name, split, flags in (
            ("custom", "train.tsv", "train", {}),
            ("MRPC", "train.tsv", "train", {}),
            ("custom", "dev.tsv", "dev", {}),
            ("custom", "dev.tsv", "test", {"do_predict": True}),
        ):
            other = os.path.join("other", name)
            flags[f"{split}_file"] = os.path.join(self.folder, other)
            self.assert_changes({split}, other, task, **flags)
            self.assert_changes(set(), f"{split}.tsv", task, **flags)
        with mock.patch.dict(os.environ, HERE=self.folder):
            (trial,) = grids.expand_grids([{"task_name": "custom", "train_file": "$HERE/p-*.csv"}])
            source, digests = data_digests.data_source_of(trial), data_digests.DataDigests()
            with self.assertRaisesRegex(UserError, "there is no such file"):
                digests.compute(source)
            found = []
            for name in ("p-0.csv", "p-1.csv"):
                self.write(name, "text,label\n")
                found.append(digests.compute(source))
        self.assertEqual(set(found[0]), {"train", "dev"})
        self.assertNotEqual(found[0]["dev"], found[1]["dev"])

    def test_published_files_and_folders_are_digested(self):
        self.write("Tweets.csv", "x")
        self.assert_changes({"train", "dev"}, "Tweets.csv", "airline")
        self.assert_changes(set(), "other.csv", "airline")
        for half in ("train", "test"):
            self.write(f"20news-bydate-{half}/sci.space/1", half)
        for name in ("train/sci.space/1", "train/sci.med/1", "test/sci.space/1"):
            self.assert_changes({"train", "dev"}, "20news-bydate-" + name, "newsgroups")

    def test_links_to_folders_are_followed(self):
        for half in ("train", "test"):
            self.write(f"20news-bydate-{half}/sci.space/1", half)
        self.write("elsewhere/1", "a text")
        link = os.path.join(self.folder, "20news-bydate-train", "sci.med")
        os.symlink(os.path.join(self.folder, "elsewhere"), link)
        self.assert_changes({"train", "dev"}, "elsewhere/1", "newsgroups")

    def test_unreadable_folder_is_refused(self):
        for half in ("train", "test"):
            self.write(f"20news-bydate-{half}/sci.space/1", half)
        refused = mock.patch.object(os, "scandir", side_effect=PermissionError(13, "No leave"))
        with refused, self.assertRaisesRegex(UserError, r"train cannot be read \(No leave\)"):
            self.digests("newsgroups")

    def test_squad_digests_depend_on_train_and_predict_files(self):
        flags = {
            "script": "run_squad.py",
            "train_file": self.write("train.json", "{}"),
            "predict_file": self.write("dev.json", "{}"),
        }
        self.assert_changes({"train"}, "train.json", **flags)
        self.assert_changes({"dev"}, "dev.json", **flags)

    def test_registered_kind_supplies_its_data_paths(self):
        for name in ("train.txt", "dev.txt"):
            self.write(name, name)
        flags = {name: os.path.join(self.folder, name + ".txt") for name in ("train", "dev")}
        with registered(Marks()):
            (trial,) = grids.expand_grids(
                [{"script": "run_marks.py", **{f"{name}_file": flags[name] for name in flags}}]
            )
            source = data_digests.data_source_of(trial)
            before = data_digests.DataDigests().compute(source)
            self.write("dev.txt", "other")
            after = data_digests.DataDigests().compute(source)
        self.assertEqual(set(before), {"train", "dev"})
        self.assertEqual(before["train"], after["train"])
        self.assertNotEqual(before["dev"], after["dev"])

    def test_tagger_digests_depend_on_the_file_of_each_split(self):
        flags = {"script": "run_tagger.py", "data_dir": self.folder}
        for name in ("eng.train", "eng.testa", "eng.testb"):
            self.write(name, name)
        self.assert_changes({"train"}, "eng.train", **flags)
        self.assert_changes({"dev"}, "eng.testa", **flags)
        self.assert_changes(set(), "eng.testb", **flags)
        self.assert_changes({"test"}, "eng.testb", do_predict=True, **flags)
        given = self.write("mine.txt", "")
        self.assert_changes({"dev"}, "mine.txt", dev_file=given, **flags)

    def test_digests_cover_exactly_the_files_read_in_training(self):
        """Records the paths that the processors pass to `gfile.open_file`."""
        rows = "".join(f"{i}\ta\tb\tentailment\n" for i in range(9))
        for name in ("train.tsv", "dev.tsv"):
            self.write(name, _NLI + rows)
        self.write("sms/SMSSpamCollection", "".join(f"ham\t{i}\n" for i in range(20)))
        self.write("own/train.csv", "text,label\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
        self.write("own/valid.csv", "text,label\n1,1\n")
        own = custom_tasks.Layout("custom", "text", "label")
        for folder, name, make in (
            ("", "RTE", lambda _: glue.get_processor("RTE")),
            (
                "sms",
                "sms_spam",
                lambda f: custom_tasks.TableProcessor(custom_tasks.LAYOUTS["sms_spam"], f),
            ),
            ("own", "custom", lambda f: custom_tasks.TableProcessor(own, f)),
        ):
            folder = os.path.join(self.folder, folder)
            with opened() as read:
                processor = make(folder)
                for stage in ("train", "dev"):
                    for split in processor.splits_of(stage, folder):
                        processor.get_examples(split, folder)
            with opened() as hashed:
                self.digests(name, data_dir=folder)
            # Tables also write and read a temporary cache.
            data = {path for path in read if path.startswith(self.folder)}
            self.assertEqual(hashed, data, name)
            self.assertNotEmpty(data)

    def test_only_changed_files_are_read_again(self):
        path = self.write("train.tsv", "one")
        self.write("dev.tsv", "one")
        (trial,) = grids.expand_grids([{"task_name": "RTE", "data_dir": self.folder}])
        source, digests = data_digests.data_source_of(trial), data_digests.DataDigests()
        before = digests.compute(source)
        with mock.patch.object(gfile, "sha256", wraps=gfile.sha256) as sha256:
            self.assertEqual(digests.compute(source), before)
            self.assertEqual(sha256.call_count, 0)
            self.write("train.tsv", "other")
            self.assertEqual(digests.compute(source)["dev"], before["dev"])
            self.assertNotEqual(digests.compute(source)["train"], before["train"])
        sha256.assert_called_once_with(path)

    def test_data_dir_is_looked_up_and_logged_once(self):
        self.write("RTE/train.tsv", "one")
        self.write("RTE/dev.tsv", "one")
        (trial,) = grids.expand_grids([{"task_name": "RTE"}])
        digests = data_digests.DataDigests()
        with mock.patch.dict(os.environ, GLUE_DIR=self.folder), self.assertLogs("absl") as logs:
            before = digests.compute(data_digests.data_source_of(trial))
            self.write("RTE/train.tsv", "other")
            after = digests.compute(data_digests.data_source_of(trial))
        self.assertNotEqual(before, after)
        self.assertLen([line for line in logs.output if "$GLUE_DIR" in line], 1)

    def test_missing_or_ambiguous_data_is_refused(self):
        self.write("train.tsv", "x")
        for complaint, *arguments in (
            ("--task_name is required",),
            ("--task_name=mrpx is unknown", "mrpx"),
            ("dev.tsv cannot be read", "RTE"),
            ("The train split has no file", "AX"),
            ("The train split has no file", "sms_spam", {"data_dir": self.folder + "/.."}),
            ("there is no folder", "RTE", {"data_dir": "/nowhere"}),
            ("The train split has no file", None, {"script": "run_squad.py"}),
        ):
            flags = arguments[1] if arguments[1:] else {}
            with self.assertRaisesRegex(UserError, complaint):
                self.digests(*arguments[:1], **flags)
        self.write("train.csv", "x")
        with self.assertRaisesRegex(UserError, "train.tsv and .*train.csv, expected one"):
            self.digests("custom")
        with self.assertRaisesRegex(UserError, r"\$NO_DIR is not set"):
            self.digests("RTE", data_dir="$NO_DIR")


@contextlib.contextmanager
def opened():
    """Yields the set of paths that are opened within the context."""
    names = set()

    def recorded(real):
        def open_file(name, *arguments):
            names.add(name)
            return real(name, *arguments)

        return open_file

    with contextlib.ExitStack() as stack:
        for name in ("open_file", "open_regular"):
            real = getattr(gfile, name)
            stack.enter_context(mock.patch.object(gfile, name, recorded(real)))
        yield names
