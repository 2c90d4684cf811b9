"""Tests of stored_tables.py: stored rows equal those in memory, and unchanged files stay unread."""

import datetime
import gzip
import os
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import stored_tables, table_readers, tables
from adapter_tests.support.file_cases import FileTestCase

TABLES = {
    "a.tsv": "text\tkind\tx\nb \u00e9\tyes\t1\n\tno\t2\n\U0001f600 c\tyes\t3\n[]\tyes\t4\n",
    "a.csv": 'kind,text\nyes,"a, ""b""\nc"\n"no",\nyes,d\n,e\n',
    "quoted.tsv": 'text\tkind\n"a ""b"""\tyes\n"c\td"\tno\n',
    "a.jsonl": '{"text": "a"}\n\n{"kind": ["x", "y"], "text": 1.5}\n{"kind": null, "z": 1}\n'
    '{"text": "\\ud83d", "kind": true}\n{"kind": ["x", "y"]}\n{"text": [1e400], "kind": 7}\n',
    "a.csv.gz": gzip.compress(b"kind,text\nyes,a\nno,b\n"),
    "old.tsv": "text\tkind\ra\tyes\rb\tno\r",
}


def is_needed(name):
    return name in ("text", "kind")


def is_label(name):
    return name == "kind"


class StoredTablesTest(FileTestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = os.path.join(self.folder, "cache")

    def store(self, source, **options):
        return stored_tables.store(source, is_needed, is_label, self.cache, **options)

    def num_reads(self, function):
        """Returns how often a function reads a table, and its value."""
        read = table_readers.stream_table
        with mock.patch.object(table_readers, "stream_table", side_effect=read) as reader:
            value = function()
        return reader.call_count, value

    @parameterized.product(name=list(TABLES), rows_per_part=(3, 1, 4096))
    def test_stored_rows_are_those_of_the_file(self, name, rows_per_part):
        path = self.write(name, TABLES[name])
        expected = table_readers.read_table(path)
        with mock.patch.object(stored_tables, "_ROWS_PER_PART", rows_per_part):
            found = self.store(path)
            rows = list(found.rows)
        self.assertEqual((found.path, found.columns), (path, expected.columns))
        needed = [i for i, column in enumerate(found.columns) if is_needed(column)]
        self.assertLen(rows, len(expected.rows))
        for index, (row, same) in enumerate(zip(expected.rows, rows)):
            self.assertEqual(found.where(same), expected.where(row))
            self.assertEqual(found.rows[index], same)
            for column in needed:
                for read in (tables.DataTable.text_or_blank, tables.DataTable.is_blank):
                    self.assertEqual(read(found, same, column), read(expected, row, column))
                with self.subTest(column=column):
                    self.assertEqual(
                        self.text(found, same, column), self.text(expected, row, column)
                    )

    def text(self, table, row, column):
        try:
            return table.text(row, column, accepts_list=True)
        except UserError as error:
            return str(error)

    @parameterized.parameters(3, 4096)
    def test_values_about_cells_are_those_of_the_rows(self, rows_per_part):
        with mock.patch.object(stored_tables, "_ROWS_PER_PART", rows_per_part):
            table = self.store(self.write("a.tsv", TABLES["a.tsv"]))
        rows, (text, kind) = table.rows, (0, 1)
        self.assertAllEqual(rows.values("is_blank", text), [False, True, False, True])
        self.assertAllEqual(rows.values("is_space", text), [False, True, False, False])
        self.assertAllEqual(rows.values("characters", text), [3, 0, 3, 2])
        self.assertAllEqual(rows.values("is_text", text), [True] * 4)
        first, codes, counts = rows.distinct(kind)
        self.assertAllEqual(first, [0, 1])
        self.assertAllEqual(codes, [0, 1, 0, 0])
        self.assertAllEqual(counts, [3, 1])

    def test_selected_rows_are_those_with_the_indices(self):
        path = self.write("a.tsv", "text\tkind\n" + "".join(f"t{i}\tk{i % 5}\n" for i in range(50)))
        rows = self.store(path).rows
        selected = rows.select(np.arange(1, 50, 3))
        self.assertEqual([row.fields[0] for row in selected], [f"t{i}" for i in range(1, 50, 3)])
        again = selected.select(np.array([2, 5]))
        self.assertEqual([row.fields[0] for row in again], ["t7", "t16"])
        self.assertEqual(again[-1].fields[0], "t16")
        self.assertEqual([row.fields[1] for row in again[:1]], ["k2"])
        first, codes, counts = selected.distinct(1)
        self.assertEqual([selected[i].fields[1] for i in first], ["k1", "k4", "k2", "k0", "k3"])
        self.assertAllEqual(codes[:7], [0, 1, 2, 3, 4, 0, 1])
        self.assertAllEqual(counts, [4, 4, 3, 3, 3])
        self.assertLen({rows.key, selected.key, again.key}, 3)
        self.assertEqual(self.store(path).rows.select(np.arange(1, 50, 3)).key, selected.key)

    def test_tables_in_memory_are_stored(self):
        day = datetime.date(2020, 1, 2)
        data = [
            {"text": "a", "kind": 1, "x": object()},
            {"text": day, "kind": True},
            {"text": None},
        ]
        expected = tables.from_memory(data, "train")
        found = self.store(expected)
        self.assertEqual((found.path, found.unit), ("train", "row"))
        for row, same in zip(expected.rows, found.rows):
            self.assertEqual(self.text(found, same, 0), self.text(expected, row, 0))
            self.assertEqual(found.text_or_blank(same, 0), expected.text_or_blank(row, 0))
        self.assertFalse(os.path.exists(self.cache))
        self.assertEqual(self.store(tables.from_memory(data, "train")).rows.key, found.rows.key)

    def test_unchanged_file_is_read_once(self):
        path = self.write("a.tsv", TABLES["a.tsv"])
        self.assertEqual(self.num_reads(lambda: self.store(path))[0], 1)
        count, table = self.num_reads(lambda: self.store(path))
        self.assertEqual(count, 0)
        os.utime(path, (1, 1))
        count, touched = self.num_reads(lambda: self.store(path))
        self.assertEqual((count, touched.rows.key), (1, table.rows.key))
        self.write("a.tsv", TABLES["a.tsv"].replace("yes", "yet"))
        os.utime(path, (1, 1))  # Size and time are the same.
        count, other = self.num_reads(lambda: self.store(path))
        self.assertEqual((count, other.rows[0].fields[1]), (1, "yet"))
        self.assertNotEqual(other.rows.key, table.rows.key)

    def test_bytes_between_samples_are_read_for_verification(self):
        lines = [f"{i:06}\tyes\n" for i in range(300_000)]
        path = self.write("a.tsv", "text\tkind\n" + "".join(lines))
        stat = os.stat(path)
        stored = [self.store(path, verify=verify).rows.key for verify in (False, True)]
        self.assertLen(set(stored), 1)
        with open(path, "r+b") as writer:  # Neither in a sample.
            writer.seek(100_004)
            writer.write(b"x")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.assertEqual(self.num_reads(lambda: self.store(path))[0], 0)
        count, other = self.num_reads(lambda: self.store(path, verify=True))
        self.assertEqual(count, 1)
        self.assertNotEqual(other.rows.key, stored[0])

    def test_file_that_changes_while_it_is_read_is_refused(self):
        path = self.write("a.tsv", TABLES["a.tsv"])
        read = table_readers.stream_table

        def stream(*arguments):
            found = read(*arguments)
            with open(path, "a") as writer:
                writer.write("more\tyes\t1\n")
            return found

        with mock.patch.object(table_readers, "stream_table", stream):
            self.assert_refused([path, "changed while it was read"], self.store, path)
        self.assertLen(self.store(path).rows, 5)

    def test_killed_reader_leaves_nothing_that_counts(self):
        path = self.write("a.tsv", TABLES["a.tsv"])
        with mock.patch.object(stored_tables, "_ROWS_PER_PART", 1), mock.patch.object(
            stored_tables._Writer, "finish", side_effect=KeyboardInterrupt
        ), self.assertRaises(KeyboardInterrupt):
            self.store(path)
        self.assertLen(self.store(path).rows, 4)

    def test_invalid_rows_are_refused_with_their_line(self):
        for name, content in (("a.tsv", "text\tkind\na\tb\nc\n"), ("a.jsonl", '{"text": 1}\n[]\n')):
            path = self.write(name, content)
            self.assert_refused([f"{path}, line {3 - (name == 'a.jsonl')}"], self.store, path)
        self.assert_refused(["none.tsv does not exist"], self.store, self.folder + "/none.tsv")


if __name__ == "__main__":
    tf.test.main()
