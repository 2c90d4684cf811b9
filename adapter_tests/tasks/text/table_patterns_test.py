"""Tests of --train_file and its like: patterns of several files with the same columns."""

import gzip
import os

import tensorflow.compat.v1 as tf

from adapter_bert.tasks.text import classifier_data
from adapter_tests.support.command_lines import classifier_config
from adapter_tests.support.file_cases import FileTestCase, as_tuples

COLUMNS = ("--task_name=custom", "--text_column=text", "--label_column=kind")


class TablePatternsTest(FileTestCase):
    def setUp(self):
        super().setUp()
        self.cache = "--feature_cache_dir=" + os.path.join(self.folder, "cache")

    def processor(self, *flags):
        config = classifier_config(*COLUMNS, self.cache, *flags)
        return classifier_data.find_task(config, None)[0]

    def examples(self, split, *flags):
        return as_tuples(self.processor(*flags).get_examples(split, ""))

    def flag(self, split, pattern):
        return f"--{split}_file={os.path.join(self.folder, pattern)}"

    def test_files_that_match_are_one_table(self):
        self.write("part-2.csv", "kind,text\nno,c\n")
        self.write("part-1.tsv", "text\tkind\na\tyes\nb\tno\n")
        self.write("part-3.csv.gz", gzip.compress(b"kind,text\nyes,d\n"))
        self.write("part-4.jsonl", '{"kind": "no", "x": 1, "text": "e"}\n')
        self.write("dev.tsv", "text\tkind\nf\tyes\n")
        flags = [self.flag("train", "part-*"), self.flag("dev", "dev.tsv")]
        flags.append(self.flag("test", "dev.tsv"))
        found = self.examples("train", *flags)
        texts = [(text, label) for _, text, _, label in found]
        expected = [("a", "yes"), ("b", "no"), ("c", "no"), ("d", "yes"), ("e", "no")]
        self.assertEqual(texts, expected)
        self.assertLen({guid for guid, *_ in found}, len(found))
        self.assertEqual(self.examples("dev", *flags), [("dev-2", "f", None, "yes")])

    def test_splits_without_a_file_are_set_apart(self):
        for part in range(3):
            rows = "".join(f"{part}{row}\t{'ab'[row % 2]}\n" for row in range(20))
            self.write(f"part-{part}.tsv", "text\tkind\n" + rows)
        flags = [self.flag("train", "part-*.tsv")]
        found = [self.examples(split, *flags) for split in ("train", "dev", "test")]
        self.assertEqual(list(map(len, found)), [48, 6, 6])
        texts = [text for rows in found for _, text, *_ in rows]
        self.assertCountEqual(texts, [f"{part}{row}" for part in range(3) for row in range(20)])

    def test_a_changed_file_is_read_again(self):
        self.write("part-1.tsv", "text\tkind\na\tyes\n")
        self.write("part-2.tsv", "text\tkind\nb\tno\n")
        flags = [self.flag("train", "part-*"), self.flag("dev", "part-1.tsv")]
        flags.append(self.flag("test", "part-1.tsv"))
        self.assertLen(self.examples("train", *flags), 2)
        self.write("part-2.tsv", "text\tkind\nb\tno\nc\tno\n")
        self.assertLen(self.examples("train", *flags), 3)

    def test_errors_name_the_file_and_its_line(self):
        self.write("part-1.tsv", "text\tkind\na\tyes\nb\tno\n")
        path = self.write("part-2.jsonl", '{"text": "c", "kind": "yes"}\n{"kind": "no"}\n')
        flags = [self.flag("train", "part-*"), self.flag("dev", "part-1.tsv")]
        flags.append(self.flag("test", "part-1.tsv"))
        self.assert_refused([f"{path}, line 2: text is missing"], self.examples, "train", *flags)
        path = self.write("part-2.jsonl", '{"text": "c", "kind": "-1"}\n')
        self.assert_refused([f"{path}, line 1: the label '-1'"], self.processor, *flags)
        os.remove(path)
        path = self.write("part-2.tsv", "text\tsort\na\tyes\n")
        parts = [f"{path}: found the columns text, sort; expected", "part-1.tsv"]
        self.assert_refused(parts, self.processor, *flags)
        path = self.write("part-2.tsv", "text\tkind\na\tyes\nb\n")
        self.assert_refused([f"{path}, line 3: found 1 columns"], self.processor, *flags)

    def test_columns_may_have_another_order(self):
        self.write("part-1.csv", "text,kind,x\na,yes,1\n")
        self.write("part-2.csv", "x,kind,text\n1,no,b\n")
        flags = [self.flag(split, "part-*") for split in ("train", "dev", "test")]
        found = [row[1:] for row in self.examples("train", *flags)]
        self.assertEqual(found, [("a", None, "yes"), ("b", None, "no")])

    def test_missing_files_and_other_tasks_are_refused(self):
        self.assert_refused(
            ["--train_file=", "no such file"], self.processor, self.flag("train", "x*")
        )
        self.assert_refused(
            ["--train_file=", "no such file"], self.processor, self.flag("train", "x")
        )
        config = classifier_config("--task_name=MRPC", self.flag("train", "x"))
        self.assert_refused(["--train_file=", "MRPC"], classifier_data.find_task, config, None)

    def test_name_is_that_of_the_folder(self):
        config = classifier_config(*COLUMNS, "--train_file=/data/mails/part-*.tsv")
        self.assertEqual(classifier_data.name_of(config), "mails")


if __name__ == "__main__":
    tf.test.main()
