"""Tests of custom_tasks.py: custom tables, the paper's additional tasks, and held-out rows."""

import collections
import csv
import gzip
import json
import os

import numpy as np
from absl import logging
from absl.testing import parameterized

from adapter_bert.tasks import splits
from adapter_bert.tasks.text import custom_tasks
from adapter_tests.support import mutations
from adapter_tests.support.file_cases import (
    FileTestCase,
    as_tuples,
    make_features,
    tiny_tokenizer,
)
from adapter_tests.support.shared import SHARED, needs_shared
from adapter_tests.support.tiny import CountedText

SPLITS = ("train", "dev", "test")
PAIRS = custom_tasks.Layout("custom", "one", "kind", text_b="two")
SINGLE = PAIRS._replace(text_b=None)
NUMBERS = SINGLE._replace(kind="regression")
TAGS = SINGLE._replace(kind="multilabel")


class NamesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("data/spam", "spam"),
        ("/data/my mails/", "my_mails"),
        ("gs://bucket/Mails-2", "Mails-2"),
        (".", os.path.basename(os.getcwd())),
        ("/data/.hidden", "hidden"),
        ("/", "custom"),
        (None, "custom"),
    )
    def test_default_name_is_that_of_the_folder(self, data_dir, name):
        self.assertEqual(custom_tasks.name_of_folder(data_dir), name)

    @parameterized.parameters(("sst2", True), ("Airline", True), ("custom", False), ("x", False))
    def test_names_of_built_in_tasks_are_known(self, name, is_known):
        self.assertEqual(custom_tasks.is_known(name), is_known)


class TableTestCase(FileTestCase, parameterized.TestCase):
    def processor(self, layout=SINGLE, labels=None, **options):
        return custom_tasks.TableProcessor(layout, self.folder, labels, **options)

    def examples(self, split, *args, **options):
        return as_tuples(self.processor(*args, **options).get_examples(split, self.folder))

    def labels_of(self, split, *args):
        return [label for *_, label in self.examples(split, *args)]

    def write_labels(self, *labels, name="train"):
        """Writes a table with a row for each label; returns its path."""
        rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
        return self.write(name + ".csv", "one,kind\n" + rows)

    def check_damage(self, layout, names, refuses=True):
        """Checks that the test's files are read or refused if they are damaged."""
        tokenizer = tiny_tokenizer()

        def read(folder):
            processor = custom_tasks.TableProcessor(layout, folder)
            for split in SPLITS:
                make_features(processor, split, folder, tokenizer)

        mutations.check(mutations.files_in(self.folder), read, names, refuses=refuses)


class SplitsTest(TableTestCase):
    def test_csv_tsv_and_jsonl_splits_are_read(self):
        self.write("train.csv", "kind,one,two\nyes,a,b\nno,c,d\n")
        self.write("dev.tsv", "one\ttwo\tkind\ne\tf\tyes\n")
        self.write("test.jsonl", '{"one": "g", "two": "h"}\n')
        self.assertEqual(self.processor(PAIRS).get_labels(), ["no", "yes"])
        expected = [("train-2", "a", "b", "yes"), ("train-3", "c", "d", "no")]
        self.assertEqual(self.examples("train", PAIRS), expected)
        self.assertEqual(self.examples("dev", PAIRS), [("dev-2", "e", "f", "yes")])
        # Without labels, the first label is the placeholder.
        self.assertEqual(self.examples("test", PAIRS), [("test-1", "g", "h", "no")])

    def test_compressed_file_counts_only_without_the_same_uncompressed(self):
        self.write("train.csv.gz", gzip.compress(b"one,kind\na,yes\nb,no\n"))
        self.write("dev.csv.gz", gzip.compress(b"one,kind\nc,yes\n"))
        self.write("dev.csv", "one,kind\nd,yes\n")
        self.assertEqual(self.processor().get_labels(), ["no", "yes"])
        self.assertEqual(self.examples("dev"), [("dev-2", "d", None, "yes")])

    def test_alternative_file_names_are_accepted(self):
        self.write("train.txt", "one\tkind\na\tyes\nc\tno\n")
        self.write("validation.jsonl", '{"one": "e", "kind": "no"}\n')
        self.write("test.csv", "kind,one\nno,g\n")
        found = [[row[1] for row in self.examples(split)] for split in SPLITS]
        self.assertEqual(found, [["a", "c"], ["e"], ["g"]])

    def test_missing_splits_are_held_out_from_train(self):
        path = self.write_labels(*["yes", "no", "no"] * 35)
        parts = [self.examples(split) for split in SPLITS]
        self.assertEqual([len(part) for part in parts], [84, 10, 11])
        texts = [text for part in parts for _, text, _, _ in part]
        self.assertCountEqual(texts, map(str, range(105)))
        self.assertEqual(self.examples("dev"), parts[1])
        self.write("test.tsv", "one\na\n")
        self.assertEqual([len(self.examples(split)) for split in ("train", "dev")], [94, 11])
        with self.assertLogs("absl", "INFO") as log:
            self.examples("dev")
        self.assertIn(
            f"{path}: 11 of its 105 rows are set apart as dev, stratified.", log.output[-1]
        )
        self.write_labels("no", name="dev")
        self.assertEqual([len(self.examples(split)) for split in ("train", "dev")], [105, 1])

    def test_rows_of_each_kind_are_stratified(self):
        self.write_labels(*"abcd" * 15)
        self.assertEqual(set(self.labels_of("dev")), set("abcd"))
        # Of sets, by the rarest label: c, of six rows in 60.
        self.write_labels(*['"a,b"', "a", "a", "b", '"a,b"', "a", "b", "a", "b", '"a,c"'] * 6)
        self.assertLen([row for row in self.labels_of("dev", TAGS) if "c" in row], 1)
        self.write_labels(*[f"{i}.5" for i in range(100)])
        tens = [int(float(label)) // 10 for label in self.labels_of("dev", NUMBERS)]
        self.assertCountEqual(tens, range(10))

    def test_paper_s_tasks_are_split_at_random(self):
        layout = custom_tasks.LAYOUTS["sms_spam"]
        self.write(
            "SMSSpamCollection", "".join(f"{'ham' if i else 'spam'}\t{i}\n" for i in range(60))
        )
        order = np.random.RandomState(0).permutation(60)
        texts = [row[1] for row in self.examples("dev", layout)]
        self.assertEqual(texts, [str(i) for i in sorted(order[48:54])])
        config = splits.SplitConfig("stratified")
        stratified = [row[1] for row in self.examples("dev", layout, config=config)]
        self.assertNotEqual(stratified, texts)

    def test_shares_are_those_of_the_settings(self):
        self.write_labels(*["yes", "no", "no"] * 40)
        config = splits.SplitConfig(None, 0.25, 0.0)
        processor = self.processor(config=config)
        sizes = [len(processor.get_examples(split, "")) for split in ("train", "dev")]
        self.assertEqual(sizes, [90, 30])
        parts = ["--test_share=0 sets no rows apart as test", "test.tsv"]
        self.assert_refused(parts, processor.get_examples, "test", "")
        expected = {"split": "stratified", "dev_share": 0.25, "test_share": 0.0}
        self.assertEqual(processor.split_settings(), expected)
        self.write_labels("yes", name="test")
        del expected["test_share"]
        self.assertEqual(processor.split_settings(), expected)

    def test_too_few_rows_to_hold_out_are_refused(self):
        path = self.write_labels("yes", "no")
        self.assert_refused([path, "2 rows", "dev"], self.examples, "dev")

    def test_missing_and_ambiguous_train_files_are_refused(self):
        self.assert_refused([self.folder, "train.tsv", "--data_dir"], self.processor)
        paths = [self.write("train.tsv", "one\tkind\na\tyes\n"), self.write_labels("yes")]
        self.assert_refused(paths, self.processor)

    def test_blank_line_in_one_column_is_refused_except_at_the_end(self):
        self.write_labels("yes", "no")
        for name in ("test.tsv", "test.csv"):
            path = self.write(name, "one\na\n\nb\n")
            self.assert_refused([f"{path}, line 3", "blank line"], self.examples, "test")
            os.remove(path)
        self.write("test.csv", 'one\na\n""\n"b\n\nc"\n\n')
        self.assertEqual([row[1] for row in self.examples("test")], ["a", "", "b\n\nc"])

    def test_other_json_values_are_refused_only_in_named_columns(self):
        rows = [dict(one="a", two="b", kind=kind, vote=[None]) for kind in ("yes", "no")]
        self.write("train.jsonl", "\n".join(map(json.dumps, rows)))
        self.write_labels("yes", name="test")
        path = os.path.join(self.folder, "dev.jsonl")
        self.write(path, json.dumps(rows[0]))
        self.assertLen(self.examples("dev", PAIRS), 1)
        for column in ("one", "two", "kind"):
            for value in (None, ["x"], True, float("nan")):
                self.write(path, "\n".join(map(json.dumps, [rows[0], {**rows[1], column: value}])))
                parts = [f"{path}, line 2: {column} is {json.dumps(value)}"]
                self.assert_refused(parts, self.examples, "dev", PAIRS)

    def test_empty_texts_are_warned_of_once(self):
        path = self.write("train.csv", "one,kind\n" + "a,yes\n ,no\n,no\n" * 10)
        with self.assertLogs("absl", "WARNING") as log:
            processor = self.processor()
            for split in SPLITS:
                processor.get_examples(split, self.folder)
        self.assertLen(log.output, 1)
        self.assertIn(f"{path}: the column one is empty in 20 of 30 rows", log.output[0])

    def test_star_in_label_column_is_literal(self):
        layout = SINGLE._replace(label="kind*")
        self.write("train.csv", "one,kindness,kind*\na,much,yes\nb,none,no\n")
        self.assertEqual(self.processor(layout).get_labels(), ["no", "yes"])
        path = self.write("train.csv", "one,kindness\na,much\nb,none\n")
        self.assert_refused(["--label_column=kind*", path], self.processor, layout)

    def test_train_and_dev_files_need_labels(self):
        path = self.write("train.tsv", "one\na\nb\n")
        self.assert_refused(["--label_column=kind", path], self.examples, "train")
        self.write("train.tsv", "one\tkind\na\tyes\nc\tno\n")
        path = self.write("dev.tsv", "one\na\n")
        self.assert_refused(["--label_column=kind", path], self.examples, "dev")


class LabelsTest(TableTestCase):
    def test_regression_labels_must_be_finite_numbers(self):
        self.write_labels("1.5", "-2")
        self.write("test.tsv", "one\na\n")
        self.write_labels("1", name="dev")
        processor = self.processor(NUMBERS)
        self.assertEqual((processor.task.kind, processor.get_labels()), ("regression", []))
        expected = [("train-2", "0", None, "1.5"), ("train-3", "1", None, "-2")]
        self.assertEqual(self.examples("train", NUMBERS), expected)
        for text in ("much", "nan", "1e999", "1e39", "1_0", ""):
            path = self.write_labels(text, name="dev")
            self.assert_refused([f"{path}, line 2", text], self.examples, "dev", NUMBERS)

    def test_multilabel_columns_are_read_as_sets(self):
        self.write_labels('"x, y"', "", "z")
        self.write("test.tsv", "one\nf\n")
        path = self.write("dev.jsonl", '{"one": "d", "kind": ["z", "x"]}\n{"one": "e", "kind": []}')
        self.assertEqual(self.processor(TAGS).get_labels(), ["x", "y", "z"])
        found = [self.labels_of(split, TAGS) for split in SPLITS]
        self.assertEqual(found, [[("x", "y"), (), ("z",)], [("z", "x"), ()], [()]])
        self.write(path, '{"one": "d", "kind": ["w"]}\n')
        self.assert_refused([f"{path}, line 1", "'w'"], self.examples, "dev", TAGS)
        os.remove(path)
        path = self.write_labels("[" * 100_000, name="dev")
        self.assert_refused([f"{path}, line 2", "'[["], self.examples, "dev", TAGS)

    def test_white_space_in_labels_is_normalized(self):
        self.write_labels('"no\n  idea"', " yes ")
        self.write("test.tsv", "one\na\n")
        self.write_labels("yes", name="dev")
        self.assertEqual(self.processor().get_labels(), ["no idea", "yes"])
        self.assertEqual(self.labels_of("train"), ["no idea", "yes"])
        os.remove(os.path.join(self.folder, "train.csv"))
        row = {"one": "a", "kind": ["x\ty", " p\nq ", "\u2028", 7]}
        path = self.write("train.jsonl", json.dumps(row))
        self.assertEqual(self.processor(TAGS).get_labels(), ["7", "p q", "x y"])
        self.write(path, json.dumps({"one": "a", "kind": ["a\ud800"]}))
        self.assert_refused([f"{path}, line 1", r"a\ud800"], self.processor, TAGS)

    @parameterized.parameters(
        (SINGLE, ["yes", "yes"], ": found only the label 'yes'"),
        (SINGLE, ["yes", "no", " "], ", line 4: "),
        (SINGLE, ["1", "0", "1.0"], "are the same number"),
        (SINGLE, ["-2", "3", "+3"], "are the same number"),
        (TAGS, ['"x,y"', "\"['x', 'y']\""], ", line 3: "),
        (TAGS, ["", "[]"], ": found no label in 2 rows."),
    )
    def test_invalid_training_labels_are_refused(self, layout, labels, part):
        path = self.write_labels(*labels)
        self.assert_refused([path, part], self.processor, layout)

    @parameterized.parameters((SINGLE, "x", "x"), (TAGS, "", ()))
    def test_test_file_with_only_blank_labels_has_none(self, layout, other, placeholder):
        for name, blank in (
            ("test.csv", "one,kind\na,\nb, \n"),
            ("test.jsonl", '{"one": "a", "kind": null}\n{"one": "b", "kind": []}\n'),
        ):
            path = self.write(name, blank)
            processor = self.processor(layout, ("x", "y"))
            self.assertFalse(processor.has_labels("test"))
            self.assertEqual(self.labels_of("test", layout, ("x", "y")), [placeholder] * 2)
            os.remove(path)
        self.write_labels(other, "x", name="test")
        self.assertTrue(self.processor(layout, ("x", "y")).has_labels("test"))
        path = self.write_labels("", "", name="dev")
        parts = [path, "no label in 2 rows"]
        self.assert_refused(parts, self.examples, "dev", TAGS, ("x", "y"))

    def test_rows_without_a_majority_label_are_skipped_and_counted(self):
        paths = {name: self.write_labels("pos", "-", "neg", "-", name=name) for name in SPLITS}
        for name, path in paths.items():
            with self.assertLogs("absl", "WARNING") as log:
                self.assertEqual(self.labels_of(name), ["pos", "neg"])
            self.assertIn(f"{path}: skipped 2 of 4 rows", log.output[-1])
        self.write_labels("+", "-", "+")
        self.assertEqual(self.processor().get_labels(), ["+", "-"])
        self.assertLen(self.examples("train"), 3)
        self.write_labels("-", "+", "-", name="dev")
        self.assertLen(self.examples("dev"), 3)
        known = ("-", "pos", "neg")  # An older adapter's.
        self.write_labels("pos", "-", "neg", "-", name="dev")
        self.assertLen(self.examples("dev", SINGLE, known), 4)

    @parameterized.parameters(
        (("0", "1", "2", "-1", "-1"), "-1"),
        (("-1", "0", "1"), "-1"),
        *((("pos", "neg", mark), mark) for mark in ("-1.0", "?", "NaN", "N/A", "null", "None")),
        *((("pos", "neg", mark), mark) for mark in ("\u2014", "-1.00", "\\N")),
        (("-2", "-1", "0", "1", "2", "?"), "?"),
        (("-1", "1", "nan"), "nan"),
    )
    def test_marks_of_unlabelled_rows_are_no_classes(self, labels, mark):
        path = self.write_labels(*labels)
        line, count = labels.index(mark) + 2, labels.count(mark)
        parts = [f"{path}, line {line}: the label {mark!r}, of {count} rows", "without a label"]
        self.assert_refused(parts, self.processor)
        self.assertIn(mark, self.processor(described=[mark]).get_labels())

    @parameterized.parameters(
        (("-1", "-1"), False),
        (("?", ""), False),
        (("-", "-"), False),
        (("x", "x"), False),
        (("pos", "pos"), True),
    )
    def test_placeholders_of_a_test_file_are_no_labels(self, labels, expected):
        self.write_labels(*labels, name="test")
        processor = self.processor(SINGLE, ("neg", "pos"))
        self.assertEqual(processor.has_labels("test"), expected)
        with self.assertLogs("absl", "INFO") as log:
            logging.info("")
            self.assertLen(processor.get_examples("test", self.folder), 2)
        self.assertEqual("predictions are not scored" in "".join(log.output), not expected)

    def test_placeholders_are_told_from_wrong_labels_and_numbers(self):
        self.write_labels("Pos", "Neg", name="test")
        self.assert_refused(["'Pos'"], self.examples, "test", SINGLE, ("neg", "pos"))
        for labels, expected in ((("-1", "-1"), False), (("-1", "2"), True)):
            self.write_labels(*labels, name="test")
            self.assertEqual(self.processor(NUMBERS, ()).has_labels("test"), expected)

    @parameterized.parameters(
        ("0", "1", "2", "10", "11"),
        ("-2", "-1", "0.5", "3"),
        ("-2", "-1", "0", "1", "2"),
        ("1", "10", "2", "n2"),
        (".5", "2", "1e1"),
        ("5", "98765432109876543210", "98765432109876543211"),
        # These look like marks of rows without a label.
        ("-1", "1"),
        ("AGAINST", "FAVOR", "NONE"),
        ("no", "unknown", "yes"),
    )
    def test_labels_are_in_order_and_numbers_by_value(self, *labels):
        self.write_labels(*labels[::-1])
        self.assertEqual(self.processor().get_labels(), list(labels))

    def test_order_of_an_earlier_run_is_kept_for_the_same_labels(self):
        self.write_labels("2", "10", "1")
        same = ["1", "10", "2"]
        self.assertEqual(self.processor(earlier=same).get_labels(), same)
        self.assertEqual(self.processor(earlier=["1", "10"]).get_labels(), ["1", "2", "10"])

    def test_labels_in_two_forms_of_unicode_are_one(self):
        for name in SPLITS:
            self.write_labels("caf\u00e9", "cafe\u0301", "th\u00e9", "\ufeffthe\u0301", name=name)
        self.assertEqual(self.processor().get_labels(), ["caf\u00e9", "th\u00e9"])
        self.assertLen(self.examples("dev"), 4)
        known = ("cafe\u0301", "th\u00e9")  # An older adapter's.
        self.write_labels(*known, name="test")
        self.assertEqual(self.labels_of("test", SINGLE, known), list(known))
        self.write_labels('"caf\u00e9,\u0439"', '"cafe\u0301,\u0438\u0306"')
        self.assertEqual(self.processor(TAGS).get_labels(), ["caf\u00e9", "\u0439"])

    def test_labels_can_come_from_trained_model(self):
        self.write("test.tsv", "one\na\n")
        expected = [("test-2", "a", None, "z")]
        self.assertEqual(self.examples("test", SINGLE, ("z", "a")), expected)

    def test_dev_labels_missing_from_train_are_refused(self):
        self.write_labels("yes", "no")
        path = self.write_labels("maybe", name="dev")
        self.assert_refused([f"{path}, line 2", "'maybe'", "no, yes"], self.examples, "dev")

    def test_label_check_does_not_compare_all_labels(self):
        self.write_labels(*(f"label {i % 50}" for i in range(200)), name="dev")
        processor = self.processor(SINGLE, [CountedText(f"label {i}") for i in range(50)])
        before = CountedText.comparisons
        self.assertLen(processor.get_examples("dev", self.folder), 200)
        self.assertLess(CountedText.comparisons - before, 2 * (50 + 200))

    def test_has_labels_is_false_for_unlabelled_test_file(self):
        for name in SPLITS:
            self.write_labels("yes", "no", name=name)
        self.assertEqual(list(map(self.processor().has_labels, SPLITS)), [True, True, True])
        self.write("test.csv", "one\na\n")
        self.assertEqual(list(map(self.processor().has_labels, SPLITS)), [True, True, False])


# Files that several tasks share: (name, content).
POLITICAL = (
    "political_social_media.csv",
    "_unit_id,audience,bias,message,text\n1,national,partisan,policy,A\n"
    "2,constituency,neutral,other,B\n3,national,neutral,media,C\n",
)
PROGRESSIVE = (
    "progressive-tweet-sentiment.csv",
    "_unit_id,q1_stance,q1_stance:confidence,q2_opinion,q2_opinion:confidence,target,tweet\n"
    "1,for,1,fact,1,t,A\n2,against,1,opinion,1,t,B\n3,neutral,1,fact,1,t,C\n",
)
# A file of each additional task in its published format, and the three expected examples.
PUBLISHED = {
    "airline": (
        "Tweets.csv",
        'tweet_id,airline_sentiment,name,text\n1,positive,x,"So\nfine, ""yes"""\n'
        "2,negative,y,Late\n3,neutral,z,On my way\n",
        [('So\nfine, "yes"', "positive"), ("Late", "negative"), ("On my way", "neutral")],
    ),
    "corporate_messaging": (
        "Corporate-messaging-DFE.csv",
        "_unit_id,category,text\n1,Information,We grow\n2,Action,Join\n3,Dialogue,@a Yes\n",
        [("We grow", "Information"), ("Join", "Action"), ("@a Yes", "Dialogue")],
    ),
    "customer_complaints": (
        "Consumer_Complaints.csv",
        "Date received,Issue,Consumer complaint narrative\n1,Fraud,They took XXXX\n2,Fraud,\n"
        "3,Billing,I paid\n4,Fraud,Never mine\n",
        [("They took XXXX", "Fraud"), ("I paid", "Billing"), ("Never mine", "Fraud")],
    ),
    "disasters": (
        "socialmedia-disaster-tweets-DFE.csv",
        "_unit_id,choose_one,text\n1,Relevant,Fire!\n2,Can't Decide,Hot\n3,Not Relevant,Lit\n"
        "4,Relevant,Flood\n",
        [("Fire!", "Relevant"), ("Lit", "Not Relevant"), ("Flood", "Relevant")],
    ),
    "economic_news_relevance": (
        "Full-Economic-News-DFE-839861.csv",
        "relevance,headline,text\nyes,a,Bonds\nnot sure,b,Cows\nno,c,Dogs\nno,d,Cats\n",
        [("Bonds", "yes"), ("Dogs", "no"), ("Cats", "no")],
    ),
    "emotion": (
        "text_emotion.csv",
        '"tweet_id","sentiment","author","content"\n1,"fun","a","ha"\n2,"love","b","oh"\n'
        '3,"fun","c","hi"\n',
        [("ha", "fun"), ("oh", "love"), ("hi", "fun")],
    ),
    "global_warming": (
        "1377884570_tweet_global_warming.csv",
        "tweet,existence,existence.confidence\na,Yes,1\nb,NA,1\nc,N,1\nd,,1\ne,N/A,1\nf,Y,1\n",
        [("a", "Yes"), ("c", "No"), ("f", "Yes")],
    ),
    "newsgroups": (
        {
            "20news-bydate-train/alt.atheism/49960": b"From: a\n\nWhy\n",
            "20news-bydate-train/sci.space/60000": b"Subject: caf\xe9\x92s\n",
            "20news-bydate-test/sci.space/60001": b"Up\n",
            "20news-bydate-test/sci.space/.DS_Store": b"x",
            "20news-bydate-test/.ipynb_checkpoints/60001": b"Up\n",
            "20news-bydate-test/README": b"No label's folder.\n",
        },
        None,
        [
            ("From: a\n\nWhy\n", "alt.atheism"),
            ("Subject: caf\xe9\u2019s\n", "sci.space"),
            ("Up\n", "sci.space"),
        ],
    ),
    "news_aggregator": (
        "newsCorpora.csv",
        '1\tFed "slows\thttp://a\tLA Times\tb\td\twww.a\t1394470370698\n'
        "2\tFilm\thttp://b\tB\te\td\twww.b\t2\n3\tPhone\thttp://c\tC\tt\td\twww.c\t3\n",
        [('Fed "slows', "b"), ("Film", "e"), ("Phone", "t")],
    ),
    "political_audience": (
        *POLITICAL,
        [("A", "national"), ("B", "constituency"), ("C", "national")],
    ),
    "political_bias": (
        *POLITICAL,
        [("A", "partisan"), ("B", "neutral"), ("C", "neutral")],
    ),
    "political_message": (
        *POLITICAL,
        [("A", "policy"), ("B", "other"), ("C", "media")],
    ),
    "primary_emotions": (
        "primary-plutchik-wheel-DFE.csv",
        "emotion,emotion:confidence,id,sentence\nJoy,1,1,A\nFear,1,2,B\nJoy,1,3,C\n",
        [("A", "Joy"), ("B", "Fear"), ("C", "Joy")],
    ),
    "progressive_opinion": (
        *PROGRESSIVE,
        [("A", "fact"), ("B", "opinion"), ("C", "fact")],
    ),
    "progressive_stance": (
        *PROGRESSIVE,
        [("A", "for"), ("B", "against"), ("C", "neutral")],
    ),
    "sms_spam": (
        "SMSSpamCollection",
        'ham\t"Hi\nspam\tWïn 1"\nham\tok lar\n',
        [('"Hi', "ham"), ('Wïn 1"', "spam"), ("ok lar", "ham")],
    ),
    "us_economic_performance": (
        "us-economic-newspaper.csv",
        "_unit_id,positivity,text\n1,3,Up\n2,,Cats\n3,9,Boom\n",
        [("Up", "yes"), ("Cats", "no"), ("Boom", "yes")],
    ),
}


class LayoutsTest(TableTestCase):
    def layout(self, name):
        return custom_tasks.LAYOUTS[name]

    def test_published_cases_cover_every_task(self):
        self.assertEqual(set(custom_tasks.LAYOUTS), set(PUBLISHED))
        self.assertLen(PUBLISHED, 17)

    def write_published(self, name, encoding):
        """Writes ten copies of a task's file in PUBLISHED."""
        file, content, _ = PUBLISHED[name]
        if content is None:
            for path, text in file.items():
                for copy in range(10):
                    self.write(f"{path}{copy}", text)
        else:
            header = "" if self.layout(name).columns else content[: content.index("\n") + 1]
            content = header + 10 * content[len(header) :]
            self.write(file, content.encode(encoding))

    @parameterized.product(name=sorted(PUBLISHED), encoding=("utf-8-sig", "latin-1"))
    def test_published_files_are_read_and_split(self, name, encoding):
        self.write_published(name, encoding)
        examples = [self.examples(split, self.layout(name)) for split in SPLITS]
        self.assertEqual([len(rows) for rows in examples], [24, 3, 3])
        found = collections.Counter((text, label) for _, text, _, label in sum(examples, []))
        self.assertEqual(found, dict.fromkeys(PUBLISHED[name][2], 10))

    def test_published_file_without_expected_column_is_refused(self):
        rows = "".join(f"{i},{'happy' if i % 2 else 'sad'},a,Hi\n" for i in range(30))
        self.write("text_emotion.csv", "tweet_id,sentiment,author,text\n" + rows)
        parts = ["--task_name=emotion expects the column content"]
        self.assert_refused(parts, self.examples, "train", self.layout("emotion"))

    def test_custom_split_files_replace_published_file(self):
        for name in ("train", "valid", "test"):
            self.write(name + ".txt", f"ID\tTITLE\tCATEGORY\n1\t{name} one\tb\n2\ttwo\te\n")
        for split, name in (("train", "train"), ("dev", "valid"), ("test", "test")):
            expected = [(f"{split}-2", f"{name} one", None, "b"), (f"{split}-3", "two", None, "e")]
            self.assertEqual(self.examples(split, self.layout("news_aggregator")), expected)

    def test_published_file_next_to_split_files_is_refused(self):
        self.write_published("airline", "utf-8")
        layout = self.layout("airline")
        self.assertEqual(custom_tasks.files_of(layout, "test", self.folder), [])
        path = self.write("test.csv", "text\na\n")
        refused = [layout.files[0], path, "expected one of them"]
        self.assert_refused(refused, custom_tasks.files_of, layout, "test", self.folder)

    @parameterized.parameters("us_economic_performance", "global_warming")
    def test_test_file_with_only_blank_labels_has_none(self, name):
        layout = self.layout(name)
        text, label = layout.text_a, layout.label
        for file, content in (
            ("test.csv", f"{text},{label}\na,\nb, \n"),
            ("test.jsonl", json.dumps({text: "a", label: None}) + "\n"),
        ):
            path = self.write(file, content)
            self.assertFalse(self.processor(layout).has_labels("test"))
            self.assertNotEmpty(self.examples("test", layout))
            os.remove(path)
        self.write("test.csv", f"{text},{label}\na,\nb,{layout.labels[1]}\n")
        self.assertTrue(self.processor(layout).has_labels("test"))

    def test_missing_published_files_are_named(self):
        layout = self.layout("newsgroups")
        read = self.processor(layout, ("a", "b")).get_train_examples
        self.assert_refused([f"--data_dir={self.folder}", *layout.files], read, self.folder)
        for there, missing in (layout.files, layout.files[::-1]):
            os.makedirs(os.path.join(self.folder, there))
            error = self.assert_refused([self.folder, missing], read, self.folder)
            self.assertNotIn(there, str(error))
            os.rmdir(os.path.join(self.folder, there))

    def test_published_files_without_usable_rows_are_refused(self):
        path = self.write("Consumer_Complaints.csv", "Issue,Consumer complaint narrative\na,\n")
        self.assert_refused([path], self.processor, self.layout("customer_complaints"))
        for name in self.layout("newsgroups").files:
            os.makedirs(os.path.join(self.folder, name))
        self.assert_refused([self.folder], self.processor, self.layout("newsgroups"))

    @parameterized.parameters(*sorted(PUBLISHED))
    def test_damaged_published_files_are_read_or_refused(self, name):
        self.write_published(name, "utf-8")
        layout = self.layout(name)
        # Any text is valid for newsgroups.
        names = *layout.files, "--data_dir"
        self.check_damage(layout, names, refuses=name != "newsgroups")

    def differences(self, layout, splits=SPLITS):
        """Returns the log's lines on the paper's Table 3 when these splits are read."""
        with self.assertLogs("absl", "INFO") as log:
            processor = self.processor(layout)
            for split in splits:
                processor.get_examples(split, self.folder)
            logging.info("Read.")
        return [line.split(":", 2)[2] for line in log.output if "Table 3" in line]

    def test_other_numbers_of_rows_or_classes_than_the_paper_s_are_logged_once(self):
        layout = self.layout("us_economic_performance")
        self.write(layout.files[0], "positivity,text\n" + 10 * "3,Up\n,Cats\n ,Dogs\n")
        expected = "us_economic_performance: 30 rows and 2 classes; the paper's Table 3 has"
        for read in (SPLITS, ["train"], ["test"]):
            self.assertEqual(self.differences(layout, read), [f"{expected} 4,952 and 2."])
        self.assertEqual(self.differences(layout._replace(table_3=(30, 2))), [])
        self.assertEqual(
            self.differences(layout._replace(table_3=(30, 3))), [f"{expected} 30 and 3."]
        )

    def test_rows_of_split_files_are_counted_together(self):
        layout = self.layout("political_message")
        for name, labels in (("train", "abcab"), ("dev", "ab"), ("test", "c")):
            rows = "".join(f"x,{label}\n" for label in labels)
            self.write(name + ".csv", "text,message\n" + rows)
        line = "political_message: 8 rows and 3 classes; the paper's Table 3 has 5,000 and 9."
        self.assertEqual(self.differences(layout), [line])
        self.assertEqual(self.differences(layout._replace(table_3=(8, 3))), [])
        self.assertEqual(self.differences(layout, ["train", "dev"]), [])  # Not all rows are known.

    @needs_shared
    def test_rows_and_classes_equal_table_3(self):
        names = {
            "20_newsgroups": "newsgroups",
            "customer_complaint_database": "customer_complaints",
            "news_aggregator_dataset": "news_aggregator",
            "sms_spam_collection": "sms_spam",
        }
        with open(os.path.join(SHARED, "paper", "table3_datasets.tsv")) as reader:
            rows = list(csv.DictReader(reader, delimiter="\t"))
        table_3 = {}
        for row in rows:
            name = row["dataset"].replace("Crowdflower ", "").lower().replace(" ", "_")
            num_rows = sum(int(row[split]) for split in ("train", "validation", "test"))
            table_3[names.get(name, name)] = num_rows, int(row["classes"])
        layouts = custom_tasks.LAYOUTS.items()
        self.assertEqual({name: layout.table_3 for name, layout in layouts}, table_3)

    @needs_shared
    def test_published_files_match_counts_in_paper(self):
        """Compares with the paper's Table 3, which has 63 fewer rows of US economic performance."""
        for name, sizes, classes, difference in (
            ("airline", [11712, 1464, 1464], 3, None),
            ("corporate_messaging", [2494, 312, 312], 4, None),
            ("disasters", [8688, 1086, 1086], 2, None),
            ("global_warming", [3380, 422, 423], 2, None),
            ("political_bias", [4000, 500, 500], 2, None),
            ("primary_emotions", [2019, 252, 253], 18, None),
            (
                "us_economic_performance",
                [4012, 501, 502],
                2,
                "5,015 rows and 2 classes; the paper's Table 3 has 4,952 and 2.",
            ),
            ("sms_spam", [4459, 557, 558], 2, None),
            (  # A sample of the task's rows.
                "news_aggregator",
                [10684, 1336, 1336],
                4,
                "13,356 rows and 4 classes; the paper's Table 3 has 422,937 and 4.",
            ),
        ):
            self.folder = os.path.join(SHARED, "data", "classification", name)
            layout = self.layout(name)
            processor = self.processor(layout)
            found = [processor.get_examples(split, self.folder) for split in SPLITS]
            self.assertEqual([len(examples) for examples in found], sizes, name)
            self.assertLen({example.label for example in found[0]}, classes, name)
            lines = [f"{name}: {difference}"] if difference else []
            self.assertEqual(self.differences(layout), lines)


class DamagedFilesTest(TableTestCase):
    @parameterized.product(
        labels=(
            ("classification", "yes", "no"),
            ("regression", "0.5", "-3"),
            ("multilabel", "yes,no", ""),
        ),
        extension=("tsv", "csv", "jsonl"),
    )
    def test_damaged_custom_tables_are_read_or_refused(self, labels, extension):
        kind, *labels = labels
        layout = PAIRS._replace(kind=kind)
        rows = [{"one": f"the dog {i}", "two": "a bird", "kind": labels[i % 2]} for i in range(30)]
        if extension == "jsonl":
            lines = list(map(json.dumps, rows))
        else:
            lines = ["\t".join(row) for row in [rows[0], *(row.values() for row in rows)]]
        if extension == "csv":
            lines = ['"' + line.replace("\t", '","') + '"' for line in lines]
        for split in SPLITS:
            self.write(f"{split}.{extension}", "\n".join(lines) + "\n")
        self.check_damage(layout, ("train.", "dev.", "test.", "--data_dir"))
