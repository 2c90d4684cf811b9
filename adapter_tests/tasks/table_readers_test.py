"""Tests of table_readers.py: rows of files, and errors with line numbers."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import zipfile

import hypothesis
import hypothesis.strategies as st
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import table_readers
from adapter_tests.support import mutations
from adapter_tests.support.file_cases import FileTestCase, many


class ReadTsvTest(FileTestCase, parameterized.TestCase):
    def read(self, content, quotechar=None):
        return table_readers.read_rows(self.write("rows.tsv", content), quotechar)

    def test_quotes_are_kept_without_quotechar(self):
        self.assertEqual(self.read('"a\t b"\n"c\td\n'), [['"a', ' b"'], ['"c', "d"]])

    def test_only_newlines_end_lines(self):
        odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"
        self.assertEqual(self.read(odd + "\t1\n2\t3\n"), [[odd, "1"], ["2", "3"]])

    def test_crlf_and_missing_final_newline_are_accepted(self):
        self.assertEqual(self.read("a\tb\r\nc\td"), [["a", "b"], ["c", "d"]])

    def test_empty_fields_and_blank_lines_are_kept(self):
        self.assertEqual(self.read("\ta\t\n\nb\n"), [["", "a", ""], [], ["b"]])

    def test_empty_file_has_no_rows(self):
        self.assertEqual(self.read(""), [])

    def test_byte_order_marks_are_removed_at_the_start_of_lines(self):
        content = "\ufeffa\n\ufeff\ufeffb\tc\ufeffd\n"
        self.assertEqual(self.read(content), [["a"], ["b", "c\ufeffd"]])

    def test_carriage_returns_alone_end_lines(self):
        for content in ("a\tb\rc\td\r", "a\tb\rc\td", "a\tb\rc\td\n", "a\tb\rc\td\r\n"):
            self.assertEqual(self.read(content), [["a", "b"], ["c", "d"]])

    def test_packed_and_binary_files_are_refused(self):
        text, archive = b"text\tlabel\na\tx\n", io.BytesIO()
        with zipfile.ZipFile(archive, "w") as writer:
            writer.writestr("train.tsv", text)
        for data, name in (
            (gzip.compress(text), "gzip"),
            (archive.getvalue(), "ZIP or Excel"),
            (lzma.compress(text), "xz"),
            (bz2.compress(text), "bzip2"),
            (b"PAR1\x15\x04\x15\x10PAR1", "Parquet"),
        ):
            path = self.write("train.csv", data)
            parts = [f"{path}: the file's content is {name}; expected plain text"]
            for read in (table_readers.read_rows, table_readers.read_lines):
                self.assert_refused(parts, lambda path, read=read: list(read(path)), path)
            with self.assertRaisesRegex(UserError, name):
                table_readers.read_table(path, allow_legacy=True)

    def test_quoted_fields_may_contain_tabs_and_newlines(self):
        self.assertEqual(
            self.read('"a\tb"\tc\n"d\n\u2028e"\t"f""g"\n', quotechar='"'),
            [["a\tb", "c"], ["d\n\u2028e", 'f"g']],
        )

    def test_malformed_csv_is_refused(self):
        parts = ["rows.tsv, line 2", 'tabs between fields, and " around']
        self.assert_refused(parts, self.read, "a\tb\nc\rd\te\n", '"')

    @parameterized.parameters("utf-16", "utf-16-le", "utf-16-be")
    def test_utf16_is_refused(self, encoding):
        content = "a\tb\n".encode(encoding)
        self.assert_refused(["rows.tsv, line 1", "UTF-16"], self.read, content)

    def test_missing_file_is_refused(self):
        path = os.path.join(self.folder, "train.tsv")
        parts = [path + " does not exist;", "--data_dir"]
        self.assert_refused(parts, table_readers.read_rows, path)

    def test_unreadable_file_is_refused(self):
        self.assert_refused([self.folder, "cannot be read"], table_readers.read_rows, self.folder)


class ReadTableTest(FileTestCase, parameterized.TestCase):
    def read(self, name, content, columns=()):
        table = table_readers.read_table(self.write(name, content), columns)
        return table.columns, [(row.line, row.fields) for row in table.rows]

    def test_tsv_tables_are_read(self):
        content = '\ufefftext\tlabel\r\n"a\t1\r\n\r\nb, c\t0'
        expected = [(2, ['"a', "1"]), (4, ["b, c", "0"])]
        self.assertEqual(self.read("a.tsv", content), (("text", "label"), expected))

    def test_csv_tables_are_read(self):
        content = '\ufefftext,label\r\n"one ""two""\nthree, four",1\r\n\r\nfünf,\n'
        expected = [(2, ['one "two"\nthree, four', "1"]), (5, ["fünf", ""])]
        self.assertEqual(self.read("a.csv", content), (("text", "label"), expected))

    def test_jsonl_tables_are_read(self):
        lines = (
            '{"text": "a\\nb", "label": 1, "vote": [true]}',
            "",
            '{"label": 2.5, "text": "", "note": null}',
        )
        path = self.write("a.jsonl", "\n".join(lines))
        table = table_readers.read_table(path)
        self.assertEqual(table.columns, ("text", "label", "vote", "note"))
        texts = [(row.line, table.text(row, 0), table.text(row, 1)) for row in table.rows]
        self.assertEqual(texts, [(1, "a\nb", "1"), (3, "", "2.5")])

    @parameterized.parameters(
        ("a.tsv", "text\tlabel\na\tx\n"),
        ("a.txt", "text\tlabel\r\na\tx"),
        ("a.csv", 'text,label\n"a",x\n'),
        ("a.jsonl", '{"text": "a", "label": "x"}\n'),
    )
    def test_compressed_tables_are_read_like_others(self, name, content):
        expected = table_readers.read_table(self.write(name, content))
        packed = self.write(name + ".gz", gzip.compress(content.encode()))
        table = table_readers.read_table(packed)
        self.assertEqual((table.columns, table.rows), (expected.columns, expected.rows))
        self.assertEqual(table.path, packed)
        parts = list(map(gzip.compress, content.encode().partition(b"x")))  # Of joined files.
        table = table_readers.read_table(self.write(name + ".gz", b"".join(parts)))
        self.assertEqual(table.rows, expected.rows)

    def test_damaged_compressed_table_is_refused(self):
        packed = gzip.compress(b"text\tlabel\na\tx\n")
        broken = (b"text\tlabel\n", packed[:-9], packed[:12], packed[:15] + b"\xff" + packed[16:])
        for content in broken:
            path = self.write("a.tsv.gz", content)
            parts = [f"{path} is not a valid gzip file ("]
            self.assert_refused(parts, table_readers.read_table, path)
        path = self.write("a.tsv.gz", gzip.compress(gzip.compress(b"text\n")))
        parts = [f"{path}: the file's content is gzip"]
        self.assert_refused(parts, table_readers.read_table, path)

    @parameterized.parameters('["warm", "soup"]', '{"en": "a"}', "true", "null", "NaN", "-Infinity")
    def test_other_values_of_json_than_texts_and_numbers_are_refused(self, value):
        path = self.write("a.jsonl", '{"text": "a"}\n{"text": ' + value + "}\n")
        table = table_readers.read_table(path)
        parts = [f"{path}, line 2: text is {value}; expected a string or a number."]
        self.assert_refused(parts, table.text, table.rows[1], 0)

    def test_keys_may_be_missing_and_values_lists(self):
        path = self.write("a.jsonl", '{"text": "a", "b": 1}\n{"b": ["x", 1]}\n')
        table = table_readers.read_table(path)
        self.assert_refused(["line 2: text is missing"], table.text, table.rows[1], 0)
        self.assertEqual(table.text(table.rows[1], 1, accepts_list=True), '["x", 1]')

    @parameterized.parameters(
        ("a.csv", "\ufefftext,label\na,x\n\ufefftext,label\nb,y\n"),
        ("a.csv", '\ufeff"text","label"\na,x\n\ufeff"text","label"\nb,y\n'),
        ("a.csv", "text, label\na,x\ntext, label\nb,y\n"),
        ("a.csv", "\ufefftext,label\na,x\nLabel,Text\ny,b\n"),
        ("a.tsv", "text\tlabel\na\tx\n\ufefftext\tlabel\nb\ty\n"),
        ("a.csv", "\ufefftext,label\na,x\n\ufeffreview,class\nb,y\n"),  # Another's.
        ("a.csv", "\ufefflabel,text\nneg,a\n\ufeffneg,b\n"),
    )
    def test_joined_tables_are_refused_at_the_second_header(self, name, content):
        path = self.write(name, content)
        is_marked = "\n\ufeff" in content
        found = "found a byte order mark" if is_marked else "found the header again"
        self.assert_refused([f"{path}, line 3: {found}"], table_readers.read_table, path)

    def test_quotes_after_a_blank_enclose_fields_of_csv(self):
        for content, expected in (
            ('text, label\na b, "pos"\n"a, ""b""", "neg"\n', [["a b", "pos"], ['a, "b"', "neg"]]),
            ('text, label\n "a\nb",  "pos"\n c,neg\n', [["a\nb", "pos"], ["c", "neg"]]),
            ('text,label\n" ""a""", b\n"c, ""d""",e\n', [[' "a"', " b"], ['c, "d"', "e"]]),
        ):
            rows = self.read("a.csv", content)[1]
            self.assertEqual([fields for _, fields in rows], expected)

    def test_quoted_tsv_is_read_as_csv_if_a_writer_of_csv_wrote_it(self):
        texts = ['He said "hi"', "a\tb", "c\nd", "plain", '"'] * 2
        rows = [["text", "label"], *([text, "pos" if text > "b" else "neg"] for text in texts)]
        for kept, quoting in (
            (rows, csv.QUOTE_MINIMAL),
            (rows, csv.QUOTE_ALL),
            ([*rows[:2], rows[4]], csv.QUOTE_MINIMAL),
            ([rows[0], rows[4], rows[4]], csv.QUOTE_NONNUMERIC),
        ):
            stream = io.StringIO(newline="")
            csv.writer(stream, delimiter="\t", quoting=quoting, lineterminator="\n").writerows(kept)
            columns, found = self.read("a.tsv", stream.getvalue())
            self.assertEqual([list(columns), *(fields for _, fields in found)], kept)
        _, found = self.read("a.tsv", 'text\tlabel\na b\t"pos"\nc\t"neg"\n')
        self.assertEqual(found[0], (2, ["a b", "pos"]))
        for raw in (
            'text\tlabel\n"Fine"\tpos\n"Fine", he said\tneg\n',
            'text\tlabel\n"Fine"\tpos\nplain\tneg\n',
            'text\tlabel\n"a\tpos\nb"\tneg\n',
            'text\tlabel\n" One \tpos\n"a ""b"""\tneg\n',
        ):
            expected = [line.split("\t") for line in raw.splitlines()[1:]]
            self.assertEqual([fields for _, fields in self.read("a.tsv", raw)[1]], expected)

    def test_column_names_replace_missing_header(self):
        columns = ("label", "text")
        self.assertEqual(
            self.read("Spam", 'ham\tHi "you\n', columns), (columns, [(1, ["ham", 'Hi "you'])])
        )

    def test_long_fields_are_read(self):
        limit, long = csv.field_size_limit(), "x" * 1000000
        for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
            _, rows = self.read(name, f"text{separator}label\n{long}{separator}1\n")
            self.assertEqual(rows, [(2, [long, "1"])])
        self.assertEqual(csv.field_size_limit(), limit)

    @parameterized.parameters(
        ("a.tsv", "", "an empty file"),
        ("a.csv", "", "an empty file"),
        ("a.jsonl", "\n", "an empty file"),
        ("a.csv", "text,label\n", "only a header"),
        ("a.tsv", "text\tlabel\na\t1\nb\n", "line 3", "1 columns", "expected 2"),
        ("a.csv", "text,label\na,1\nb,2,3\n", "line 3", "3 columns", "expected 2"),
        ("a.csv", 'text,label\na,1\n"b,2\nc,3\n', "line 3", "not valid CSV"),
        ("a.csv", 'text,label\n"a" b,1\n', "line 2", "not valid CSV"),
        ("a.csv", 'label, text\npos, "great" film\n', "line 2", "not valid CSV"),
        ("a.csv", "text,label\ra,1\nb,2\n", "line 1", "carriage return"),
        ("a.csv", 'text,label\r"a\nb",1\r', "line 1", "carriage return"),
        ("a.csv", "text,label\na\0,1\n", "line 2", "NUL"),
        ("a.tsv", b"text\tlabel\nb\t1\nc\xe9t\t1\n", "line 3", "not UTF-8"),
        ("a.jsonl", '{"text": "a"}\n{"text"\n', "line 2", "not valid JSON"),
        ("a.jsonl", '{"text": "a"}\n1\n', "line 2", "object"),
        ("a.jsonl", "[" * 100000 + "\n", "line 1: found a JSON list", "object per line"),
        ("a.jsonl", '[\n  {"text": "a"}\n]\n', "line 1: found a JSON list"),
        ("a.jsonl", '{"a":' * 100000 + "\n", "line 1", "not valid JSON"),
        ("a.jsonl", '{"a": "1"}\n{"a": "1", "a": "2"}\n', 'line 2: an object has the key "a"'),
    )
    def test_invalid_tables_are_refused(self, name, content, *parts):
        path = self.write(name, content)
        self.assert_refused([path, *parts], table_readers.read_table, path)

    def test_legacy_encodings_are_read_where_allowed(self):
        for data, text, encoding in (
            (b"It\x92s \x96 caf\xe9", "It\u2019s \u2013 caf\xe9", "Windows-1252"),
            (b"\x81\x92", "\x81\x92", "Latin-1"),
        ):
            path = self.write("a.csv", b"text,label\n" + data + b",1\n")
            with self.assertLogs("absl", "INFO") as log:
                table = table_readers.read_table(path, allow_legacy=True)
            self.assertEqual(table.rows[0].fields, [text, "1"])
            self.assertIn(f"{path} is not UTF-8: reading it as {encoding}", log.output[0])

    def test_columns_are_found_by_name(self):
        path = self.write("a.csv", "text,label,text\na,1,b\n")
        table = table_readers.read_table(path)
        self.assertEqual(table.column("label", "--label_column"), 1)
        for name, part in (("txt", "is not in the columns"), ("text", "is twice in the columns")):
            parts = [f"--text_column={name}", part, path, "text, label, text"]
            self.assert_refused(parts, table.column, name, "--text_column")


TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)


def as_csv(rows):
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows(rows)
    return stream.getvalue()


def as_tabs(rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def as_objects(rows):
    return "".join(json.dumps(dict(zip(rows[0], row))) + "\n" for row in rows[1:])


class PropertiesTest(FileTestCase):
    """Properties that hold for any content, with examples from hypothesis."""

    @many
    @hypothesis.given(
        st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5),
        st.sampled_from([("a.csv", as_csv), ("a.tsv", as_tabs), ("a.jsonl", as_objects)]),
        st.booleans(),
        st.booleans(),
    )
    def test_written_tables_are_read_unchanged(self, rows, kind, with_mark, with_cr):
        name, write = kind
        if name == "a.tsv":  # A field may contain quotes, but no tabs or newlines.
            rows = [[text.translate({9: 32, 10: 32, 13: 32}) for text in row] for row in rows]
        content = write([("text", "label"), *rows])
        if with_cr and name != "a.csv":  # Python's csv module always writes \r\n.
            content = content.replace("\n", "\r\n")
        content = content.encode("utf-8-sig" if with_mark else "utf-8")
        table = table_readers.read_table(self.write(name, content))
        self.assertEqual(table.columns, ("text", "label"))
        found = [[table.text(row, column) for column in (0, 1)] for row in table.rows]
        self.assertEqual(found, [list(row) for row in rows])


class DamagedFilesTest(tf.test.TestCase):
    def test_damaged_tables_are_read_or_refused(self):
        def read(folder):
            table_readers.read_table(os.path.join(folder, "table.tsv"))
            table_readers.read_rows(os.path.join(folder, "table.tsv"), quotechar='"')

        mutations.check({"table.tsv": b"a\tb\nthe dog\tthe cat\n1\t2\n"}, read)
