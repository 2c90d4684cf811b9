"""Tests of arrow_files.py: Parquet files and saved Datasets are read, or refused in a sentence."""

import os
import sys
import tracemalloc
from unittest import mock

import pytest

from adapter_bert.files import gfile
from adapter_bert.shell import errors
from adapter_bert.tasks import arrow_files, table_readers
from adapter_bert.tasks.tagging import tagging_data
from adapter_bert.tasks.text import custom_tasks
from adapter_tests.support import mutations
from adapter_tests.support.file_cases import FileTestCase

pyarrow = pytest.importorskip("pyarrow", reason="Python 3.7 has no pyarrow of today")
parquet = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets", reason="Python 3.7 has no datasets of today")

TABLE = {"text": ["a", "b", "c"], "label": [1, 0, 1], "tags": [[0, 1], [1], [0]]}
ROWS = [["a", "yes", ["O", "B-X"]], ["b", "no", ["B-X"]], ["c", "yes", ["O"]]]
LAYOUT = custom_tasks.Layout("custom", "text", "label")


def dataset():
    label = datasets.ClassLabel(names=["no", "yes"])
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-X"]))
    features = {"text": datasets.Value("string"), "label": label, "tags": tags}
    return datasets.Dataset.from_dict(TABLE, features=datasets.Features(features))


class ArrowFilesTest(FileTestCase):
    def setUp(self):
        super().setUp()
        datasets.disable_progress_bars()
        self.addCleanup(datasets.enable_progress_bars)

    def path(self, name):
        return os.path.join(self.folder, name)

    def rows(self, path):
        table = table_readers.read_table(path)
        self.assertEqual(table.columns, ("text", "label", "tags"))
        self.assertEqual(table.where(table.rows[2]), f"{path}, row 2")
        return [[row.fields[column] for column in range(3)] for row in table.rows]

    def test_parquet_of_another_program_is_read(self):
        parquet.write_table(pyarrow.table(TABLE), self.path("a.parquet"))
        expected = [["a", 1, [0, 1]], ["b", 0, [1]], ["c", 1, [0]]]
        self.assertEqual(self.rows(self.path("a.parquet")), expected)

    def test_parquet_of_a_dataset_has_its_names_of_labels(self):
        dataset().to_parquet(self.path("a.parquet"))
        self.assertEqual(self.rows(self.path("a.parquet")), ROWS)

    def test_remote_files_are_read_in_parts(self):
        texts = [os.urandom(256).hex() for _ in range(1 << 15)]  # 16 MiB, of which a part has 8.
        parquet.write_table(pyarrow.table({"text": texts}), self.path("a.parquet"))
        for scheme in ("ram", "memory"):  # TensorFlow's, and fsspec's.
            path = f"{scheme}://arrow_files_test/a.parquet"
            with open(self.path("a.parquet"), "rb") as reader:
                self.write_remote(path, reader.read())
            tracemalloc.start()
            parts = arrow_files.read_parts(path)
            read = next(parts)["text"].to_pylist()
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            self.assertLess(peak, 16 << 20)  # With the texts of the first part.
            for part in parts:
                read += part["text"].to_pylist()
            self.assertEqual(read, texts)

    def test_missing_remote_file_is_named(self):
        with self.assertRaisesRegex(errors.UserError, r"ram://x/none.parquet cannot be read \("):
            next(arrow_files.read_parts("ram://x/none.parquet"))

    @staticmethod
    def write_remote(path, content):
        if path.startswith("memory:"):
            pytest.importorskip("fsspec").filesystem("memory").pipe(path, content)
            return
        with gfile.open_file(path, "wb") as writer:
            writer.write(content)

    def test_saved_dataset_is_read_from_all_its_files(self):
        dataset().save_to_disk(self.path("saved"), num_shards=2)
        self.assertEqual(self.rows(self.path("saved")), ROWS)

    def test_folder_of_a_dataset_dict_is_a_data_dir(self):
        splits = dict.fromkeys(("train", "validation", "test"), dataset())
        datasets.DatasetDict(splits).save_to_disk(self.folder)
        processor = custom_tasks.TableProcessor(LAYOUT, self.folder)
        self.assertEqual(processor.get_labels(), ["no", "yes"])
        for split in ("train", "dev", "test"):
            examples = processor.get_examples(split, self.folder)
            found = [(example.text_a, example.label) for example in examples]
            self.assertEqual(found, [("a", "yes"), ("b", "no"), ("c", "yes")])
        files = dict.fromkeys(("train_file", "dev_file", "test_file"))
        found = tagging_data.find_files({"data_dir": self.folder, **files})
        expected = {"train": "train", "dev": "validation", "test": "test"}
        self.assertEqual(found, {split: [self.path(name)] for split, name in expected.items()})

    def test_sentences_are_read_and_predictions_are_json_lines(self):
        rows = {"id": [7], "tokens": [["a", "b"]], "tags": [["O", "X"]], "at": [b"\x00"]}
        parquet.write_table(pyarrow.table(rows), self.path("train.parquet"))
        file = tagging_data.read(self.path("train.parquet"))
        self.assertEqual(file.sentences, [(["a", "b"], ["O", "X"], [0, 0])])
        self.assertEqual(file.extension, "jsonl")
        written = file.with_tags([["X", "O"]]).decode()
        self.assertIn('"tokens": ["a", "b"], "tags": ["X", "O"]', written)

    def test_two_files_of_a_split_are_refused(self):
        dataset().save_to_disk(self.path("train"))
        dataset().to_parquet(self.path("train.parquet"))
        parts = [self.folder, "train.parquet and ", "expected one of them"]
        self.assert_refused(parts, custom_tasks.TableProcessor, LAYOUT, self.folder)

    def test_missing_pyarrow_is_said_with_the_command(self):
        with mock.patch.dict(sys.modules, {"pyarrow": None}):
            parts = ["a.parquet needs pyarrow, which cannot be imported ("]
            self.assert_refused(parts, table_readers.read_table, "a.parquet")

    def test_empty_and_other_files_are_refused(self):
        parquet.write_table(pyarrow.table({"text": []}), self.path("a.parquet"))
        self.assert_refused(["no rows"], table_readers.read_table, self.path("a.parquet"))
        self.write("b.parquet", "text\tlabel\n")
        parts = ["b.parquet is not a valid Parquet file ("]
        self.assert_refused(parts, table_readers.read_table, self.path("b.parquet"))
        for state in ("{}", '{"_data_files": [1]}', '{"_data_files": [{"filename": 1}]}'):
            self.write("saved/state.json", state)
            parts = ["state.json: expected the names of a Dataset's files"]
            self.assert_refused(parts, table_readers.read_table, self.path("saved"))

    def test_damaged_files_are_read_or_refused(self):
        dataset().to_parquet(self.path("table.parquet"))
        dataset().save_to_disk(self.path("saved"))

        def read(folder):
            for name in ("table.parquet", "saved"):
                path = os.path.join(folder, name)
                if arrow_files.is_arrow(path) and os.path.exists(path):
                    table_readers.read_table(path)

        mutations.check(mutations.files_in(self.folder), read)
