"""Tests of custom_tasks.py: custom tables, the paper's additional tasks, and held-out rows."""

import collections
import json
import os

import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.shell.errors import UserError
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

PAIRS = custom_tasks.Layout("custom", "one", "kind", text_b="two")


class TableProcessorTest(FileTestCase):
    def processor(self, layout=PAIRS, labels=None):
        return custom_tasks.TableProcessor(layout, self.folder, labels)

    def examples(self, split, **options):
        return as_tuples(self.processor(**options).get_examples(split, self.folder))

    def test_csv_tsv_and_jsonl_splits_are_read(self):
        self.write("train.csv", "kind,one,two\nyes,a,b\nno,c,d\n")
        self.write("dev.tsv", "one\ttwo\tkind\ne\tf\tyes\n")
        self.write("test.jsonl", '{"one": "g", "two": "h"}\n')
        self.assertEqual(self.processor().get_labels(), ["no", "yes"])
        self.assertEqual(
            self.examples("train"), [("train-2", "a", "b", "yes"), ("train-3", "c", "d", "no")]
        )
        self.assertEqual(self.examples("dev"), [("dev-2", "e", "f", "yes")])
        # Without labels, the first label is the placeholder.
        self.assertEqual(self.examples("test"), [("test-1", "g", "h", "no")])

    def test_regression_labels_must_be_finite_numbers(self):
        layout = custom_tasks.Layout("custom", "one", "score", kind="regression")
        self.write("train.tsv", "one\tscore\na\t1.5\nb\t-2\n")
        self.write("dev.tsv", "one\tscore\na\t1\n")
        self.write("test.tsv", "one\na\n")
        processor = self.processor(layout)
        self.assertEqual((processor.task.kind, processor.get_labels()), ("regression", []))
        self.assertEqual(
            self.examples("train", layout=layout),
            [("train-2", "a", None, "1.5"), ("train-3", "b", None, "-2")],
        )
        for text in ("much", "nan", "1e999", "1e39", "1_0", ""):
            path = self.write("dev.tsv", f"one\tscore\na\t{text}\n")
            self.assert_refused([f"{path}, line 2", text], self.examples, "dev", layout=layout)

    def test_multilabel_columns_are_read_as_sets(self):
        layout = custom_tasks.Layout("custom", "one", "tags", kind="multilabel")
        self.write("train.csv", 'one,tags\na,"x, y"\nb,\nc,z\n')
        self.write("dev.jsonl", '{"one": "d", "tags": ["z", "x"]}\n{"one": "e", "tags": []}\n')
        self.write("test.tsv", "one\nf\n")
        self.assertEqual(self.processor(layout).get_labels(), ["x", "y", "z"])
        found = [self.examples(split, layout=layout) for split in ("train", "dev", "test")]
        self.assertEqual(
            [[label for _, _, _, label in rows] for rows in found],
            [[("x", "y"), (), ("z",)], [("z", "x"), ()], [()]],
        )
        os.remove(os.path.join(self.folder, "dev.jsonl"))
        for name, content, parts in (
            ("dev.tsv", "one\ttags\nd\t" + "[" * 100_000 + "\n", ["line 2", "'[["]),
            ("dev.jsonl", '{"one": "d", "tags": ["w"]}\n', ["line 1", "'w'"]),
        ):
            path = self.write(name, content)
            self.assert_refused([path, *parts], self.examples, "dev", layout=layout)
            os.remove(path)

    def test_white_space_in_label_lists_is_normalized(self):
        layout = custom_tasks.Layout("custom", "one", "tags", kind="multilabel")
        texts = {"one": "a", "tags": ["x\ty", " p\nq ", "\u2028", 7]}
        self.write("train.jsonl", json.dumps(texts) + "\n")
        self.assertEqual(self.processor(layout).get_labels(), ["7", "p q", "x y"])
        for label, named in (("x,y", "x,y"), (None, "null"), ("a\ud800", r"a\ud800")):
            path = self.write("train.jsonl", json.dumps({"one": "a", "tags": [label]}) + "\n")
            self.assert_refused([f"{path}, line 1", named], self.processor, layout)

    def test_python_style_label_lists_are_refused(self):
        layout = custom_tasks.Layout("custom", "one", "tags", kind="multilabel")
        for text in ("['x', 'y']", "['x' 'y']", "[x, y]"):
            path = self.write("train.csv", f'one,tags\na,"x,y"\nb,"{text}"\n')
            self.assert_refused([f"{path}, line 3", text], self.processor, layout)

    def test_data_with_only_empty_label_sets_is_refused(self):
        layout = custom_tasks.Layout("custom", "one", "tags", kind="multilabel")
        path = self.write("train.tsv", "one\ttags\na\t\nb\t[]\n")
        self.assert_refused([path, "2 rows"], self.processor, layout)

    def test_test_file_with_only_blank_labels_has_none(self):
        for kind, other, placeholder in (("classification", "x", "x"), ("multilabel", "", ())):
            layout = custom_tasks.Layout("custom", "one", "tags", kind=kind)
            for name, blank in (
                ("test.csv", "one,tags\na,\nb, \n"),
                ("test.jsonl", '{"one": "a", "tags": null}\n{"one": "b", "tags": []}\n'),
            ):
                path = self.write(name, blank)
                processor = self.processor(layout, ("x", "y"))
                self.assertFalse(processor.has_labels("test"))
                examples = processor.get_examples("test", self.folder)
                self.assertEqual([example.label for example in examples], [placeholder] * 2)
                os.remove(path)
            path = self.write("test.csv", f"one,tags\na,{other}\nb,x\n")
            self.assertTrue(self.processor(layout, ("x", "y")).has_labels("test"))
            os.remove(path)
        path = self.write("dev.csv", "one,tags\na,\nb,\n")
        processor = self.processor(layout, ("x", "y"))
        read = processor.get_examples
        self.assert_refused([path, "no label in 2 rows"], read, "dev", self.folder)

    def write_labels(self, *labels, name="train"):
        rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
        return self.write(name + ".csv", "one,kind\n" + rows)

    def test_other_json_values_are_refused_only_in_named_columns(self):
        layout = custom_tasks.Layout("custom", "one", "kind")
        good = ['{"one": "a", "kind": "x"}', '{"one": "b", "kind": "y", "vote": [1]}']
        self.write("train.jsonl", "\n".join(good))
        self.write("dev.jsonl", "\n".join(good[::-1]))
        self.assertEqual(self.processor(layout).get_labels(), ["x", "y"])
        self.assertLen(self.examples("dev", layout=layout), 2)
        for row, key in (
            ('{"one": ["warm", "soup"], "kind": "x"}', "one is"),
            ('{"one": "a", "kind": ["x"]}', "kind is"),
            ('{"one": "a", "kind": true}', "kind is"),
            ('{"one": {"en": "a"}, "kind": "x"}', "one is"),
            ('{"ones": "a", "kind": "x"}', "one is missing"),
            ('{"one": "a"}', "kind is missing"),
        ):
            path = self.write("dev.jsonl", "\n".join([*good, row]))
            self.assert_refused([f"{path}, line 3: {key}"], self.examples, "dev", layout=layout)

    def test_rows_without_a_majority_label_are_skipped_and_counted(self):
        layout = custom_tasks.Layout("custom", "one", "kind")
        paths = {
            name: self.write_labels("pos", "-", "neg", "-", name=name)
            for name in ("train", "dev", "test")
        }
        for name, path in paths.items():
            with self.assertLogs("absl", "WARNING") as log:
                found = [label for *_, label in self.examples(name, layout=layout)]
            self.assertEqual(found, ["pos", "neg"])
            self.assertIn(f"{path}: skipped 2 of 4 rows", log.output[-1])
        self.write_labels("+", "-", "+")
        self.assertEqual(self.processor(layout).get_labels(), ["+", "-"])
        self.assertLen(self.examples("train", layout=layout), 3)
        self.write_labels("-", "+", "-", name="dev")
        self.assertLen(self.examples("dev", layout=layout), 3)
        known = ("-", "pos", "neg")  # An older adapter's.
        self.write_labels("pos", "-", "neg", "-", name="dev")
        self.assertLen(self.examples("dev", layout=layout, labels=known), 4)

    def test_marks_of_unlabelled_rows_are_no_classes(self):
        layout = custom_tasks.Layout("custom", "one", "kind")
        for labels, mark in (
            (("0", "1", "2", "-1", "-1"), "-1"),
            (("-1", "0", "1"), "-1"),
            (("pos", "neg", "-1.0"), "-1.0"),
            (("pos", "neg", "?"), "?"),
            (("pos", "neg", "NaN"), "NaN"),
            (("pos", "neg", "N/A"), "N/A"),
            (("pos", "neg", "null"), "null"),
            (("pos", "neg", "None"), "None"),
            (("pos", "neg", "\u2014"), "\u2014"),
            (("pos", "neg", "-1.00"), "-1.00"),
            (("pos", "neg", "\\N"), "\\N"),
            (("-2", "-1", "0", "1", "2", "?"), "?"),
            (("-1", "1", "nan"), "nan"),
        ):
            path = self.write_labels(*labels)
            line, count = labels.index(mark) + 2, labels.count(mark)
            parts = [f"{path}, line {line}: the label {mark!r}, of {count} rows", "without a label"]
            self.assert_refused(parts, self.processor, layout)
            processor = custom_tasks.TableProcessor(layout, self.folder, described=[mark])
            self.assertIn(mark, processor.get_labels())
        for labels in (
            ("-1", "1"),
            ("-2", "-1", "0", "1", "2"),
            ("AGAINST", "FAVOR", "NONE"),
            ("no", "unknown", "yes"),
        ):
            self.write_labels(*labels)
            self.assertEqual(self.processor(layout).get_labels(), list(labels))

    def test_placeholders_of_a_test_file_are_no_labels(self):
        layout = custom_tasks.Layout("custom", "one", "kind")
        for labels, expected in (
            (("-1", "-1"), False),
            (("?", ""), False),
            (("-", "-"), False),
            (("x", "x"), False),
            (("pos", "pos"), True),
        ):
            self.write_labels(*labels, name="test")
            processor = self.processor(layout, ("neg", "pos"))
            self.assertEqual(processor.has_labels("test"), expected, labels)
            with self.assertLogs("absl", "INFO") as log:
                logging.info("")
                self.assertLen(processor.get_examples("test", self.folder), 2)
            told = any("predictions are not scored" in line for line in log.output)
            self.assertEqual(told, not expected)
        self.write_labels("Pos", "Neg", name="test")
        self.assert_refused(["'Pos'"], self.examples, "test", layout=layout, labels=("neg", "pos"))
        self.write_labels("-1", "-1", name="test")
        numbers = layout._replace(kind="regression")
        self.assertFalse(self.processor(numbers, ()).has_labels("test"))
        self.write_labels("-1", "2", name="test")
        self.assertTrue(self.processor(numbers, ()).has_labels("test"))

    def test_numbers_are_ordered_by_value(self):
        layout = custom_tasks.Layout("custom", "one", "kind")
        for labels in (
            ("0", "1", "2", "10", "11"),
            ("-2", "-1", "0.5", "3"),
            ("1", "10", "2", "n2"),
            (".5", "2", "1e1"),
            ("5", "98765432109876543210", "98765432109876543211"),
        ):
            self.write_labels(*labels[::-1])
            self.assertEqual(self.processor(layout).get_labels(), list(labels))
        for labels in (("1", "0", "1.0"), ("-2", "3", "+3")):
            path = self.write_labels(*labels)
            parts = [f"{path}: the labels ", "are the same number"]
            self.assert_refused(parts, self.processor, layout)
        self.write_labels("2", "10", "1")
        for earlier, expected in (
            (["1", "10", "2"], ["1", "10", "2"]),
            (["1", "10"], ["1", "2", "10"]),
        ):
            processor = custom_tasks.TableProcessor(layout, self.folder, earlier=earlier)
            self.assertEqual(processor.get_labels(), expected)

    def test_labels_in_two_forms_of_unicode_are_one(self):
        layout = custom_tasks.Layout("custom", "one", "kind")
        labels = ("caf\u00e9", "cafe\u0301", "th\u00e9", "\ufeffthe\u0301")
        for name in ("train", "dev", "test"):
            self.write_labels(*labels, name=name)
        self.assertEqual(self.processor(layout).get_labels(), ["caf\u00e9", "th\u00e9"])
        self.assertLen(self.examples("dev", layout=layout), 4)
        known = ("cafe\u0301", "th\u00e9")  # An older adapter's.
        self.write_labels("cafe\u0301", "th\u00e9", name="test")
        found = self.examples("test", layout=layout, labels=known)
        self.assertEqual([label for *_, label in found], list(known))
        tags = custom_tasks.Layout("custom", "one", "kind", kind="multilabel")
        self.write_labels('"caf\u00e9,\u0439"', '"cafe\u0301,\u0438\u0306"')
        self.assertEqual(self.processor(tags).get_labels(), ["caf\u00e9", "\u0439"])

    def test_repeated_header_is_refused(self):
        path = self.write("train.csv", "one,two,kind\na,b,yes\none,two,kind\nc,d,no\n")
        self.assert_refused([f"{path}, line 3", "header again"], self.processor)

    def test_nan_is_no_label(self):
        rows = '{"one": "a", "two": "b", "kind": "yes"}\n{"one": "a", "two": "b", "kind": NaN}\n'
        path = self.write("train.jsonl", rows)
        self.assert_refused([f"{path}, line 2", "kind is NaN"], self.processor)

    def test_null_in_used_columns_is_refused(self):
        for name in ("one", "two", "kind"):
            rows = [dict(one="a", two="b", kind=kind, other=None) for kind in ("yes", "no")]
            path = self.write("train.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
            self.write("dev.tsv", "one\ttwo\tkind\na\tb\tyes\n")
            self.write("test.tsv", "one\ttwo\na\tb\n")
            self.assertLen(self.examples("train"), 2)  # Unused columns may be null.
            rows[1][name] = None
            self.write("train.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
            self.assert_refused([f"{path}, line 2", name, "null"], self.examples, "train")

    def test_blank_line_in_one_column_is_refused_except_at_the_end(self):
        self.write("train.tsv", "one\tkind\na\tyes\n\nb\tno\n")
        self.write("test.tsv", "one\na\nb\n\n")
        layout = custom_tasks.Layout("custom", "one", "kind")
        examples = self.processor(layout).get_examples("test", self.folder)
        self.assertEqual([example.text_a for example in examples], ["a", "b"])
        read = self.processor(layout).get_examples
        for name in ("test.tsv", "test.csv"):
            path = self.write(name, "one\na\n\nb\n")
            self.assert_refused([f"{path}, line 3", "blank line"], read, "test", self.folder)
            os.remove(path)
        self.write("test.csv", 'one\na\n""\n"b\n\nc"\n\n')
        texts = [example.text_a for example in read("test", self.folder)]
        self.assertEqual(texts, ["a", "", "b\n\nc"])

    def test_empty_texts_are_warned_of_once(self):
        layout = custom_tasks.Layout("custom", "one", "kind")
        path = self.write("train.csv", "one,kind\n" + "a,yes\n ,no\n,no\n" * 10)
        with self.assertLogs("absl", "WARNING") as log:
            processor = self.processor(layout)
            for split in ("train", "dev", "test"):
                processor.get_examples(split, self.folder)
        self.assertLen(log.output, 1)
        self.assertIn(f"{path}: the column one is empty in 20 of 30 rows", log.output[0])

    def test_star_in_label_column_is_literal(self):
        layout = custom_tasks.Layout("custom", "one", "kind*")
        self.write("train.csv", "one,kindness,kind*\na,much,yes\nb,none,no\n")
        self.assertEqual(self.processor(layout).get_labels(), ["no", "yes"])
        path = self.write("train.csv", "one,kindness\na,much\nb,none\n")
        self.assert_refused(["--label_column=kind*", path], self.processor, layout)

    def test_labels_can_come_from_trained_model(self):
        self.write("test.tsv", "one\ttwo\na\tb\n")
        self.assertEqual(self.examples("test", labels=("z", "a")), [("test-2", "a", "b", "z")])

    def test_dev_labels_missing_from_train_are_refused(self):
        self.write("train.tsv", "one\ttwo\tkind\na\tb\tyes\nc\td\tno\n")
        path = self.write("dev.tsv", "one\ttwo\tkind\na\tb\tmaybe\n")
        self.assert_refused([f"{path}, line 2", "'maybe'", "no, yes"], self.examples, "dev")

    def test_label_check_does_not_compare_all_labels(self):
        rows = "".join(f"a\tb\tlabel {i % 50}\n" for i in range(200))
        self.write("dev.tsv", "one\ttwo\tkind\n" + rows)
        processor = self.processor(labels=[CountedText(f"label {i}") for i in range(50)])
        before = CountedText.comparisons
        self.assertLen(processor.get_examples("dev", self.folder), 200)
        self.assertLess(CountedText.comparisons - before, 2 * (50 + 200))

    def test_missing_splits_are_held_out_from_train(self):
        rows = "".join(f"a{i}\tb{i}\t{'yes' if i % 3 else 'no'}\n" for i in range(105))
        self.write("train.tsv", "one\ttwo\tkind\n" + rows)
        parts = [self.examples(split) for split in ("train", "dev", "test")]
        self.assertEqual([len(part) for part in parts], [84, 10, 11])
        everything = [text for part in parts for _, text, _, _ in part]
        self.assertEqual(sorted(everything), sorted(f"a{i}" for i in range(105)))
        self.assertEqual(self.examples("dev"), parts[1])
        self.write("test.tsv", "one\ttwo\na\tb\n")
        self.assertEqual([len(self.examples(split)) for split in ("train", "dev")], [94, 11])
        with self.assertLogs("absl", "INFO") as log:
            self.examples("dev")
        self.assertIn("11 of its 105 rows are used as dev", log.output[-1])
        self.write("dev.tsv", "one\ttwo\tkind\na\tb\tno\n")
        self.assertEqual([len(self.examples(split)) for split in ("train", "dev")], [105, 1])

    def test_too_few_rows_to_hold_out_are_refused(self):
        path = self.write("train.tsv", "one\ttwo\tkind\na\tb\tyes\nc\td\tno\n")
        self.assert_refused([path, "2 rows", "dev"], self.examples, "dev")

    def test_missing_and_ambiguous_train_files_are_refused(self):
        self.assert_refused([self.folder, "train.tsv", "--data_dir"], self.processor)
        self.write("train.tsv", "one\ttwo\tkind\na\tb\tyes\n")
        self.write("train.csv", "one,two,kind\na,b,yes\n")
        self.assert_refused(["train.tsv", "train.csv"], self.processor)

    def test_alternative_file_names_are_accepted(self):
        self.write("train.txt", "one\ttwo\tkind\na\tb\tyes\nc\td\tno\n")
        self.write("validation.jsonl", '{"one": "e", "two": "f", "kind": "no"}\n')
        self.write("test.csv", "kind,one,two\nno,g,h\n")
        found = [self.examples(split) for split in ("train", "dev", "test")]
        self.assertEqual(
            [[text for _, text, _, _ in rows] for rows in found], [["a", "c"], ["e"], ["g"]]
        )

    def test_has_labels_is_false_for_unlabelled_test_file(self):
        rows = "one\ttwo\tkind\na\tb\tyes\nc\td\tno\n"
        for test, expected in ((rows, True), ("one\ttwo\na\tb\n", False)):
            self.write("train.tsv", rows)
            self.write("dev.tsv", rows)
            self.write("test.tsv", test)
            processor = self.processor()
            self.assertEqual(
                [processor.has_labels(split) for split in ("train", "dev", "test")],
                [True, True, expected],
            )

    def test_white_space_in_labels_is_normalized(self):
        for split in ("train", "dev", "test"):
            self.write(split + ".csv", 'one,two,kind\na,b,"no\n  idea"\nc,d, yes \n')
        self.assertEqual(self.processor().get_labels(), ["no idea", "yes"])
        self.assertEqual([row[-1] for row in self.examples("train")], ["no idea", "yes"])

    def test_data_with_one_distinct_label_is_refused(self):
        path = self.write("train.tsv", "one\ttwo\tkind\na\tb\tyes\nc\td\tyes\n")
        self.assert_refused([path, "'yes'"], self.processor)

    def test_rows_without_a_label_are_refused(self):
        path = self.write("train.csv", 'one,two,kind\na,b,yes\n"a\nc",d,no\ne,f, \n')
        self.assert_refused([f"{path}, line 5"], self.processor)

    def test_train_and_dev_files_need_labels(self):
        for split in ("train", "dev"):
            self.write("train.tsv", "one\ttwo\tkind\na\tb\tyes\nc\td\tno\n")
            path = self.write(split + ".tsv", "one\ttwo\na\tb\n")
            self.assert_refused(["--label_column=kind", path], self.examples, split)


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


class LayoutsTest(FileTestCase):
    def test_published_cases_cover_every_task(self):
        self.assertEqual(set(custom_tasks.LAYOUTS), set(PUBLISHED))
        self.assertLen(PUBLISHED, 17)

    def write_published(self, name, encoding):
        """Writes ten copies of a task's file in PUBLISHED; returns the folder."""
        folder = os.path.join(self.folder, name, encoding)
        file, content, _ = PUBLISHED[name]
        if content is None:
            for path, text in file.items():
                for copy in range(10):
                    self.write(os.path.join(folder, f"{path}{copy}"), text)
            return folder
        header = "" if custom_tasks.LAYOUTS[name].columns else content[: content.index("\n") + 1]
        content = header + 10 * content[len(header) :]
        self.write(os.path.join(folder, file), content.encode(encoding))
        return folder

    def test_published_files_are_read_and_split(self):
        for name, (_, _, expected) in PUBLISHED.items():
            for encoding in ("utf-8-sig", "latin-1"):
                with self.subTest(task=name, encoding=encoding):
                    folder = self.write_published(name, encoding)
                    processor = custom_tasks.TableProcessor(custom_tasks.LAYOUTS[name], folder)
                    examples = [
                        processor.get_examples(split, folder) for split in ("train", "dev", "test")
                    ]
                    self.assertEqual([len(rows) for rows in examples], [24, 3, 3])
                    found = collections.Counter((e.text_a, e.label) for e in sum(examples, []))
                    self.assertEqual(found, dict.fromkeys(expected, 10))

    def test_published_file_without_expected_column_is_refused(self):
        rows = "".join(f"{i},{'happy' if i % 2 else 'sad'},a,Hi\n" for i in range(30))
        self.write("text_emotion.csv", "tweet_id,sentiment,author,text\n" + rows)
        processor = custom_tasks.TableProcessor(custom_tasks.LAYOUTS["emotion"], self.folder)
        with self.assertRaisesRegex(UserError, "--task_name=emotion expects the column content"):
            processor.get_examples("train", self.folder)

    def test_custom_split_files_replace_published_file(self):
        rows = "ID\tTITLE\tCATEGORY\n1\t{0} one\tb\n2\t{0} two\te\n"
        for name in ("train", "valid", "test"):
            self.write(name + ".txt", rows.format(name))
        layout = custom_tasks.LAYOUTS["news_aggregator"]
        processor = custom_tasks.TableProcessor(layout, self.folder)
        for split, text in (("train", "train"), ("dev", "valid"), ("test", "test")):
            self.assertEqual(
                as_tuples(processor.get_examples(split, self.folder)),
                [
                    (f"{split}-2", f"{text} one", None, "b"),
                    (f"{split}-3", f"{text} two", None, "e"),
                ],
            )

    def test_published_file_next_to_split_files_is_refused(self):
        folder = self.write_published("airline", "utf-8")
        layout = custom_tasks.LAYOUTS["airline"]
        custom_tasks.files_of(layout, "test", folder)
        path = self.write(os.path.join(folder, "test.csv"), "text\na\n")
        refused = [layout.files[0], path, "expected one of them"]
        self.assert_refused(refused, custom_tasks.files_of, layout, "test", folder)

    def test_skipped_rows_of_split_files_are_logged(self):
        rows = "tweet,existence,existence.confidence\n"
        rows += "a,Yes,1\nb,NA,1\nc,No,1\n"
        for name in ("train", "dev", "test"):
            self.write(name + ".csv", rows)
        processor = custom_tasks.TableProcessor(custom_tasks.LAYOUTS["global_warming"], self.folder)
        with self.assertLogs("absl", "WARNING") as log:
            self.assertLen(processor.get_examples("test", self.folder), 2)
        self.assertIn("test.csv: skipped 1 of 3 rows", log.output[0])

    def test_test_file_with_only_blank_labels_has_none(self):
        for name in ("us_economic_performance", "global_warming"):
            layout = custom_tasks.LAYOUTS[name]
            text, label = layout.text_a, layout.label
            for file, content in (
                ("test.csv", f"{text},{label}\na,\nb, \n"),
                ("test.jsonl", json.dumps({text: "a", label: None}) + "\n"),
            ):
                path = self.write(file, content)
                processor = custom_tasks.TableProcessor(layout, self.folder)
                self.assertFalse(processor.has_labels("test"))
                self.assertNotEmpty(processor.get_examples("test", self.folder))
                os.remove(path)
            self.write("test.csv", f"{text},{label}\na,\nb,{layout.labels[1]}\n")
            self.assertTrue(custom_tasks.TableProcessor(layout, self.folder).has_labels("test"))

    def test_missing_published_file_is_named(self):
        for name in ("airline", "newsgroups"):
            layout = custom_tasks.LAYOUTS[name]
            processor = custom_tasks.TableProcessor(layout, self.folder, labels=("a", "b"))
            self.assert_refused(
                [self.folder, layout.files[0]], processor.get_train_examples, self.folder
            )

    def test_missing_one_of_two_folders_is_named(self):
        folders = ["20news-bydate-train", "20news-bydate-test"]
        for there, missing in (folders, folders[::-1]):
            folder = os.path.join(self.folder, there)
            os.makedirs(os.path.join(folder, there))
            processor = custom_tasks.TableProcessor(
                custom_tasks.LAYOUTS["newsgroups"], folder, labels=("a", "b")
            )
            parts = [folder, missing, "--data_dir"]
            error = self.assert_refused(parts, processor.get_train_examples, folder)
            self.assertNotIn(there, str(error).replace(folder, ""))

    def test_file_without_usable_rows_is_refused(self):
        path = self.write("Consumer_Complaints.csv", "Issue,Consumer complaint narrative\na,\n")
        layout = custom_tasks.LAYOUTS["customer_complaints"]
        self.assert_refused([path], custom_tasks.TableProcessor, layout, self.folder)

    def test_folders_without_texts_are_refused(self):
        for name in ("20news-bydate-train", "20news-bydate-test"):
            os.makedirs(os.path.join(self.folder, name))
        layout = custom_tasks.LAYOUTS["newsgroups"]
        self.assert_refused([self.folder], custom_tasks.TableProcessor, layout, self.folder)

    def test_label_spellings_are_merged_and_na_rows_dropped(self):
        self.write(
            "1377884570_tweet_global_warming.csv",
            "tweet,existence,existence.confidence\n"
            + "".join(f"t,{label},1\n" for label in 10 * ("Yes", "Y", "N", "No", "NA", "N/A", "")),
        )
        processor = custom_tasks.TableProcessor(custom_tasks.LAYOUTS["global_warming"], self.folder)
        counts = collections.Counter(
            example.label
            for split in ("train", "dev", "test")
            for example in processor.get_examples(split, self.folder)
        )
        self.assertEqual(counts, {"Yes": 20, "No": 20})

    @needs_shared
    def test_published_files_match_counts_in_paper(self):
        """Compares with the paper's Table 3, which has 63 fewer rows of US economic performance."""
        for name, sizes, classes in (
            ("airline", [11712, 1464, 1464], 3),
            ("corporate_messaging", [2494, 312, 312], 4),
            ("disasters", [8688, 1086, 1086], 2),
            ("global_warming", [3380, 422, 423], 2),
            ("political_bias", [4000, 500, 500], 2),
            ("us_economic_performance", [4012, 501, 502], 2),
            ("sms_spam", [4459, 557, 558], 2),
            ("news_aggregator", [10684, 1336, 1336], 4),  # A sample of the task's rows.
        ):
            folder = os.path.join(SHARED, "data", "classification", name)
            processor = custom_tasks.TableProcessor(custom_tasks.LAYOUTS[name], folder)
            found = [len(processor.get_examples(s, folder)) for s in ("train", "dev", "test")]
            self.assertEqual(found, sizes, name)
            labels = {example.label for example in processor.get_train_examples(folder)}
            self.assertEqual(len(labels), classes, name)


class DamagedFilesTest(tf.test.TestCase):
    def check(self, layout, contents, names, refuses=True):
        tokenizer = tiny_tokenizer()

        def read(folder):
            processor = custom_tasks.TableProcessor(layout, folder)
            for split in ("train", "dev", "test"):
                make_features(processor, split, folder, tokenizer)

        mutations.check(contents, read, names, refuses=refuses)

    def test_damaged_published_files_are_read_or_refused(self):
        for layout in custom_tasks.LAYOUTS.values():
            labels = layout.labels or ("a", "b", "c")
            if layout.name == "newsgroups":
                names = (f"{a}/{b}/{c}" for a in layout.files for b in labels for c in "123")
                contents = dict.fromkeys(names, b"Subject: the dog\n\nsees a bird\n")
            else:
                separator = "\t" if layout.columns else ","
                names = layout.columns or (layout.text_a, layout.label)
                lines = [] if layout.columns else [separator.join(names)]
                for row in range(30):
                    texts = {layout.text_a: f"the dog {row}"}
                    texts[layout.label] = labels[row % len(labels)]
                    lines.append(separator.join(texts.get(name, "x") for name in names))
                contents = {layout.files[0]: ("\n".join(lines) + "\n").encode()}
            with self.subTest(layout.name):
                # Any text is valid for newsgroups.
                refuses = layout.name != "newsgroups"
                self.check(layout, contents, (*layout.files, "--data_dir"), refuses)

    def test_damaged_custom_tables_are_read_or_refused(self):
        for kind, labels in (
            ("classification", ["yes", "no"]),
            ("regression", ["0.5", "-3"]),
            ("multilabel", ["yes,no", ""]),
        ):
            rows = [
                {"body": f"the dog {i}", "title": "a bird", "label": labels[i % 2]}
                for i in range(30)
            ]
            table = [list(rows[0]), *(list(row.values()) for row in rows)]
            quoted = [[f'"{v}"' if "," in v else v for v in row] for row in table]
            lines = {
                "tsv": ["\t".join(row) for row in table],
                "csv": [",".join(row) for row in quoted],
                "jsonl": [json.dumps(row) for row in rows],
            }
            layout = custom_tasks.Layout("custom", "body", "label", "title", kind)
            for extension in lines:
                content = ("\n".join(lines[extension]) + "\n").encode()
                contents = {f"{name}.{extension}": content for name in ("train", "dev", "test")}
                with self.subTest(kind, extension=extension):
                    self.check(layout, contents, ("train.", "dev.", "test.", "--data_dir"))
