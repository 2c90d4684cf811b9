"""Tests of tagging_data.py: reading and writing hand-made files, and errors."""

import gzip
import json
import os

import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.tagging import tagging_data
from adapter_tests.support import mutations
from adapter_tests.support.file_cases import FileTestCase

CONLL = """-DOCSTART- -X- O O

# The first one
EU NNP I-NP I-ORG
rejects VBZ I-VP O
# # I-NP O

Peter NNP  I-NP I-PER
"""


def tagged(file):
    return [(sentence.words, sentence.tags) for sentence in file.sentences]


GOOD = '{"tokens": ["a"], "tags": ["X"]}\n'


class TaggingFileTestCase(FileTestCase, parameterized.TestCase):
    def read(self, content, name="train.txt", **options):
        return tagging_data.read(self.write(name, content), **options)

    def sentences(self, *args, **options):
        return tagged(self.read(*args, **options))


class ColumnsTest(TaggingFileTestCase):
    def test_conll_files_are_read_and_written(self):
        file = self.read(CONLL)
        first = ["EU", "rejects", "#"], ["I-ORG", "O", "O"], [4, 5, 6]
        self.assertEqual(file.sentences, [first, (["Peter"], ["I-PER"], [8])])
        self.assertEqual(file.extension, "txt")
        same = file.with_tags([["I-ORG", "O", "O"], ["I-PER"]])
        self.assertEqual(same.decode(), CONLL)
        other = file.with_tags([["O", "I-X", "O"], ["B-VERY-LONG"]]).decode()
        expected = CONLL.replace("I-ORG", "O").replace("VBZ I-VP O", "VBZ I-VP I-X")
        self.assertEqual(other, expected.replace("I-PER", "B-VERY-LONG"))

    def test_compressed_files_are_read_like_others(self):
        packed = gzip.compress(CONLL.encode())
        file = self.read(packed, "train.conll.gz")
        self.assertEqual(file.sentences, self.read(CONLL).sentences)
        self.assertEqual(file.with_tags([["O"] * 3, ["O"]]).decode().count(" O\n"), 4 + 1)
        objects = self.read(gzip.compress(GOOD.encode()), "train.jsonl.gz")
        self.assertEqual((tagged(objects), objects.extension), ([(["a"], ["X"])], "jsonl"))
        ranged = b"1-2\tdel\tX\n1\tde\tA\n2\tel\tB\n"
        for name, content in (("a.conllu", ranged), ("a.conllu.gz", gzip.compress(ranged))):
            (sentence,) = self.read(content, name, word_column="2").sentences
            self.assertEqual(sentence.words, ["de", "el"])

    def test_column_numbers_select_words_and_tags(self):
        pos = self.sentences(CONLL, tag_column="2")
        self.assertEqual([tags for _, tags in pos], [["NNP", "VBZ", "#"], ["NNP"]])
        chunks = self.sentences(CONLL, word_column="1", tag_column="-2")
        self.assertEqual(chunks[1][1], ["I-NP"])
        file = self.read("1 a X\n2 b Y\n", word_column="2", tag_column="3")
        self.assertEqual(file.sentences[0].words, ["a", "b"])
        self.assertEqual(file.with_tags([["P", "Q"]]), b"1 a P\n2 b Q\n")

    def test_spaces_around_tabs_are_ignored(self):
        found = self.sentences("EU\tB-ORG \nand \tO \nUN\t B-ORG\nof\tO\n")
        self.assertEqual(found, [(["EU", "and", "UN", "of"], ["B-ORG", "O", "B-ORG", "O"])])

    def test_tabs_and_line_ends_are_preserved(self):
        content = "\ufeffNew York\t_\tB-LOC\r\n \t\r\nof\t\tO\r\n"
        file = self.read(content)
        self.assertEqual(tagged(file), [(["New York"], ["B-LOC"]), (["of"], ["O"])])
        written = file.with_tags([["O"], ["I-X"]]).decode()
        self.assertEqual(written, "New York\t_\tO\r\n \t\r\nof\t\tI-X\r\n")
        other = self.read("a\t\tX\nb\t\tY", tag_column="3").with_tags([["P", "Q"]])
        self.assertEqual(other, b"a\t\tP\nb\t\tQ")
        middle = self.read("X\t\ta\nY\t\tb", word_column="3", tag_column="1")
        self.assertEqual(middle.with_tags([["P", "Q"]]), b"P\t\ta\nQ\t\tb")

    def test_carriage_returns_end_all_lines_or_are_refused(self):
        for end in ("", "\r", "\n", "\r\n", "\r\r\n"):
            found = self.sentences("EU B-ORG\rrejects O\r\rcall O" + end)
            self.assertEqual(found, [(["EU", "rejects"], ["B-ORG", "O"]), (["call"], ["O"])])
        self.assertEqual(self.read("a\tX\r\n").with_tags([["Y"]]), b"a\tY\r\n")

    def test_blank_last_columns_do_not_count(self):
        for content in (
            "EU\tB-ORG\t\nis\tO\t\n",
            "EU\tB-ORG\nis\tO\t\t \r\n",
            "# a\tb\tc\nEU\tB-ORG\t\nis\tO\n",
        ):
            file = self.read(content)
            self.assertEqual(tagged(file), [(["EU", "is"], ["B-ORG", "O"])])
            expected = content.replace("B-ORG", "X").replace("\tO", "\tY")
            self.assertEqual(file.with_tags([["X", "Y"]]).decode(), expected)
        file = self.read("a\t\nb\t\t\n", requires_tags=False)
        self.assertEqual(file.with_tags([["X", "Y"]]), b"a\tX\nb\tY\n")
        file = self.read("a\tX\t\nb\tY\tmore\n", tag_column="2")
        self.assertEqual(file.sentences[0].tags, ["X", "Y"])

    def test_comment_lines_are_skipped(self):
        for comment in ("# sent_id = 1", "#", "# nothing O that fits", "# x = O-"):
            content = f"{comment}\na b c D\n{comment}\nb b c D\n"
            self.assertEqual(self.sentences(content), [(["a", "b"], ["D", "D"])], comment)
        self.assertEqual(self.sentences("#one X\na X\n"), [(["#one", "a"], ["X", "X"])])
        with self.assertLogs(level="WARNING") as log:
            self.assertEqual(self.sentences("a X\n#MeToo B-EVENT\n"), [(["a"], ["X"])])
        self.assertIn("line 2 is taken for a comment", log.output[0])

    def test_hashtags_in_tab_separated_files_are_words(self):
        content = "#\n# id\tx\na\tX\n#ff\t#\n#MeToo\tB-EVENT\n"
        self.assertEqual(self.sentences(content), [(["a", "#ff", "#MeToo"], ["X", "#", "B-EVENT"])])

    def test_tags_with_white_space_need_json_lines(self):
        for content in ("a X\n", "a\tX\n"):
            file = self.read(content)
            file.check_tags(["X", "B-Y"])
            for tag in ("B\tY", "B\nY"):
                with self.assertRaisesRegex(UserError, "cannot hold the tag 'B.*JSON lines"):
                    file.check_tags(["X", tag])
        self.read("a\tB Y\n").check_tags(["B Y"])
        with self.assertRaisesRegex(UserError, "cannot hold the tag 'B Y'"):
            self.read("a X\n").check_tags(["B Y"])

    def test_conllu_ranges_and_empty_nodes_are_skipped(self):
        content = "1-2\tim\t_\n1\tin\tADP\n2\tdem\tDET\n2.1\te\tX\n"
        for name, words in (("a.conllu", ["in", "dem"]), ("a.txt", ["im", "in", "dem", "e"])):
            found = self.sentences(content, name, word_column="2")
            self.assertEqual(found[0][0], words)

    def test_invisible_characters_are_words(self):
        content = "\u00a0 O\n\u200b O\n\u2028x O\n"
        self.assertEqual(self.sentences(content)[0][0], ["\u00a0", "\u200b", "\u2028x"])

    def test_long_words_and_long_sentences_are_read(self):
        content = "x" * 10000 + " O\n" + "y O\n" * 10000
        ((words, tags),) = self.sentences(content)
        self.assertEqual((len(words), len(words[0]), len(tags)), (10001, 10000, 10001))

    def test_untagged_files_are_read_and_tagged(self):
        file = self.read("a\nb\n\nc", requires_tags=False)
        self.assertEqual(file.sentences, [(["a", "b"], None, [1, 2]), (["c"], None, [4])])
        self.assertEqual(file.with_tags([["X", "Y"], ["Z"]]), b"a X\nb Y\n\nc Z")

    @parameterized.parameters(
        ("a O\nb\n", "line 2", "one column, expected 2"),
        ("a O\n\nb X O\n", "line 3", "3 columns, expected 2"),
        ("\na\n", "line 2", "one column, expected a word and its tag"),
        ("", "found no word"),
        ("\n\n# a\n-DOCSTART- O\n", "found no word"),
        ("a\tO\n\tO\n", "line 2", "a tag without a word"),
        ("a\tO\nb\t\n", "line 2", "a word without a tag"),
        ("a O\nb\0 O\n", "line 2", "NUL"),
        ("a O\nM\xfcller O\n".encode("latin-1"), "line 2", "UTF-8"),
        ("EU B-ORG\rrejects O\ncall O\n", "line 1", "carriage return"),
        ("EU\tB-ORG\ncall\tO\ra\tO\r\n", "line 2", "carriage return"),
        ("EU O\n# one\rcall O\n", "line 2", "carriage return"),
    )
    def test_invalid_column_files_are_refused(self, content, *parts):
        path = self.write("train.txt", content)
        self.assert_refused([path, *parts], tagging_data.read, path)

    @parameterized.parameters(
        ({"tag_column": "4"}, "line 1", "--tag_column=4"),
        ({"word_column": "-4"}, "line 1", "--token_column=-4"),
        ({"word_column": "3"}, "both select column 3"),
        ({"tag_column": "0"}, "--tag_column=0"),
        ({"tag_column": "ner"}, "--tag_column=ner"),
    )
    def test_invalid_column_numbers_are_refused(self, options, *parts):
        path = self.write("train.txt", "a b O\n")
        self.assert_refused(parts, tagging_data.read, path, **options)


class JsonTest(TaggingFileTestCase):
    def test_json_lines_are_read_and_written(self):
        records = [
            {"id": 1, "tokens": ["EU", "caf\u00e9"], "tags": ["B-ORG", "O"]},
            {"tokens": [], "tags": []},
            {"tokens": ["\ud800"], "tags": ["O"], "more": [1.5, None]},
        ]
        content = "\n".join(map(json.dumps, records)) + "\n\n"
        file = self.read(content, "a.jsonl")
        self.assertEqual(file.sentences[0], (["EU", "caf\u00e9"], ["B-ORG", "O"], [1, 1]))
        self.assertLen(file.sentences, 3)
        self.assertEqual(file.extension, "jsonl")
        written = file.with_tags([["X", "Y"], [], ["Z"]]).decode("utf-8")
        self.assertIn("caf\u00e9", written)
        found = [json.loads(line) for line in written.splitlines()]
        tags = [["X", "Y"], [], ["Z"]]
        self.assertEqual(found, [{**r, "tags": t} for r, t in zip(records, tags)])

    def test_custom_keys_and_missing_tags_are_accepted(self):
        content = '{"w": ["a"], "t": ["X"], "tags": 3}'
        file = self.read(content, "a.jsonl", word_column="w", tag_column="t")
        self.assertEqual(file.sentences, [(["a"], ["X"], [1])])
        file = self.read('{"tokens": ["a", "b"]}', "a.jsonl", requires_tags=False)
        self.assertIsNone(file.sentences[0].tags)
        found = json.loads(file.with_tags([["X", "Y"]]).decode())
        self.assertEqual(found, {"tokens": ["a", "b"], "tags": ["X", "Y"]})

    @parameterized.parameters(
        ('{"tokens": ["a"], "tags": ["X", "Y"]}', "2 'tags' for 1 'tokens'"),
        ('{"tokens": ["a"]}', "'tags' is not a list"),
        ('{"tags": ["X"]}', "'tokens' is not a list"),
        ('{"tokens": "a", "tags": ["X"]}', "'tokens' is not a list"),
        ('{"tokens": ["a"], "tags": [3]}', "found 3 in 'tags'"),
        ('{"tokens": [""], "tags": ["X"]}', "found '' in 'tokens'"),
        ('{"tokens": ["a"], "tags": ["\\ud83d"]}', "half a surrogate pair in the label"),
        ('["a"]', "a JSON object"),
    )
    def test_invalid_json_lines_are_refused(self, line, part):
        path = self.write("a.jsonl", GOOD + line + "\n")
        self.assert_refused([path, "line 2", part], tagging_data.read, path)

    def test_json_lines_without_words_or_with_some_tags_are_refused(self):
        path = self.write("a.jsonl", GOOD + '{"tokens": ["a"]}\n')
        self.assert_refused([path, "line 2", "'tags'"], tagging_data.read, path, None, None, False)
        path = self.write("a.jsonl", '{"tokens": [], "tags": []}\n')
        self.assert_refused([path, "found no word"], tagging_data.read, path)


class FindFilesTest(FileTestCase):
    def find(self, **values):
        names = ("data_dir", "train_file", "dev_file", "test_file")
        return tagging_data.find_files({**dict.fromkeys(names), **values})

    def test_files_are_found_by_split_names(self):
        root = self.folder
        for names in (
            ("eng.train", "eng.testa", "eng.testb"),
            ("train.txt", "valid.txt", "test.txt"),
            ("train.conll", "dev.conll", "test.conll"),
            ("de.train.tsv", "de.dev.tsv", "de.test.tsv"),
            ("train.conllu", "val.conllu", "test.conllu"),
            ("train.iob", "validation.iob", "test.iob"),
            ("train.jsonl", "dev.jsonl", "test.jsonl"),
            ("train.parquet", "dev.jsonl.gz", "test.conll.gz"),
        ):
            self.folder = os.path.join(root, names[0])
            for name in (*names, "README.txt", f"{names[0]}.gz", "contest.txt", "train.zip"):
                self.write(name, "")
            paths = [[f"{self.folder}/{name}"] for name in names]
            found = self.find(data_dir=self.folder)
            self.assertEqual(found, dict(zip(("train", "dev", "test"), paths)))
        path = self.write("mine.txt", "")
        found = self.find(data_dir=self.folder, dev_file=path)
        self.assertEqual(found["dev"], [path])
        self.assertEqual(self.find(dev_file=path), {"train": [], "dev": [path], "test": []})

    def test_all_files_of_a_split_are_found(self):
        paths = [self.write(name, "") for name in ("dev.txt", "valid.txt")]
        self.assertEqual(self.find(data_dir=self.folder)["dev"], paths)

    def test_missing_files_are_refused(self):
        self.assert_refused(["--data_dir=/nowhere"], self.find, data_dir="/nowhere")
        self.assert_refused(["--test_file /nowhere"], self.find, test_file="/nowhere")


class DamagedFilesTest(tf.test.TestCase):
    def test_damaged_files_are_read_or_refused(self):
        tabs = "Caf\u00e9\tNNP\tI-ORG\nin\tIN\tO\n\n# c\nRome\tNNP\tI-LOC\n".encode()
        record = {"tokens": ["Caf\u00e9", "in"], "tags": ["B-ORG", "O"], "id": 3}
        lines = (json.dumps(record) + "\n").encode() * 3
        for name, content in (("a.txt", tabs), ("a.conll", CONLL.encode()), ("a.jsonl", lines)):
            for requires_tags in (True, False):

                def read(folder, name=name, requires_tags=requires_tags):
                    path = os.path.join(folder, name)
                    file = tagging_data.read(path, requires_tags=requires_tags)
                    file.with_tags([["X"] * len(s.words) for s in file.sentences])
                    for sentence in file.sentences:
                        assert sentence.tags is None or len(sentence.tags) == len(sentence.words)
                        assert all(sentence.words)

                mutations.check({name: content}, read)
