"""Tests of squad_data.py: hand-made paragraphs, damaged files, and (where ADAPTER_BERT_DATA names
the shared folder) the original's features of real data."""

import gzip
import json
import os
import unittest

import hypothesis
import hypothesis.strategies as st
import numpy as np
import tensorflow.compat.v1 as tf

import rows
import squad_data as sd
import tokenization
from adapter_tests.classifier_tasks_test import FileTestCase, many
from errors import UserError

SHARED = os.environ.get("ADAPTER_BERT_DATA")
CONTEXT = "The cat sat on  the\u202fmat. It slept."


def question(qas_id="q1", text="Who sat?", answers=(("cat", 4),), **fields):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": qas_id, "question": text, "answers": answers, **fields}


def squad(*questions, context=CONTEXT):
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


NAMES = ["data", "paragraphs", "context", "qas", "id", "question", "answers", "text"]


def squad_golden(version):
    """(what the original computed, its input, the input's path), from the shared folder."""
    prefix = os.path.join(SHARED, "goldens", f"squad_v{version}_public")
    with gzip.open(prefix + ".json.gz") as reader:
        golden = json.loads(reader.read().decode("utf-8"))
    path = prefix + "_input.json"
    with open(path, encoding="utf-8") as reader:
        return golden, json.load(reader), path


def minilm_tokenizer():
    folder = os.path.join(SHARED, "checkpoints", "minilm-l6-uncased")
    return tokenization.FullTokenizer(os.path.join(folder, "vocab.txt"))


class LetterTokenizer:
    """Splits words into pieces of two letters; the id of a piece is what its letters make."""

    def tokenize(self, text):
        return [word[i : i + 2] for word in text.split() for i in range(0, len(word), 2)]

    def convert_tokens_to_ids(self, tokens):
        special = {"[CLS]": 1, "[SEP]": 2}
        return [special.get(t) or sum(ord(c) << 8 * i for i, c in enumerate(t)) for t in tokens]


class ReadTest(FileTestCase):
    def read(self, content, is_training=True, version_2=False):
        content = content if isinstance(content, (str, bytes)) else json.dumps(content)
        path = self.write("squad.json", content)
        return sd.read_squad_examples(path, is_training, version_2_with_negative=version_2)

    def assert_file_refused(self, parts, *args):
        path = os.path.join(self.folder, "squad.json")
        self.assert_refused([path, *parts], self.read, *args)

    def test_words_and_the_answers_place(self):
        cases = (("cat", 4, 1, 1), ("on  the", 12, 3, 4), ("the mat. It", 16, 4, 6), ("a", 5, 1, 1))
        for text, start, first, last in cases:
            (example,) = self.read(squad(question(answers=[(text, start)])))
            self.assertEqual(
                example.doc_tokens, ["The", "cat", "sat", "on", "the", "mat.", "It", "slept."]
            )
            self.assertEqual((example.start_position, example.end_position), (first, last))
            self.assertEqual(example.orig_answer_text, text)
            self.assertEqual((example.qas_id, example.question_text), ("q1", "Who sat?"))
            self.assertIs(example.is_impossible, False)

    def test_answers_are_not_read_for_predictions(self):
        for answers in ([("cat", 4)], [("dog", 999)], [("a", 5), ("b", 6)], []):
            (example,) = self.read(squad(question(answers=answers)), False)
            self.assertEqual((example.orig_answer_text, example.start_position), (None, None))

    def test_answers_out_of_place_are_left_out(self):
        wrong = [("dog", 4), ("cat", 12), ("cat", 999), ("cat", -1), ("", 0)]
        questions = [question(f"q{i}", answers=[answer]) for i, answer in enumerate(wrong)]
        with self.assertLogs("absl", "WARNING") as log:
            found = self.read(squad(*questions, question("last")))
        self.assertEqual([example.qas_id for example in found], ["last"])
        self.assertIn("left out 5 of 6 questions", log.output[0])

    def test_questions_without_an_answer(self):
        questions = [
            question("no", answers=[], is_impossible=True),
            question("yes", is_impossible=False),
            question("plausible", is_impossible=True),
            question("no field", answers=[]),
        ]
        found = self.read(squad(*questions), True, True)
        self.assertEqual([example.is_impossible for example in found], [True, False, True, True])
        for example in (found[0], found[2]):
            self.assertEqual(example.start_position, -1)
            self.assertEqual(example.orig_answer_text, "")

    def test_a_byte_order_mark(self):
        self.assertLen(self.read(b"\xef\xbb\xbf" + json.dumps(squad(question())).encode()), 1)

    def test_empty_context(self):
        (example,) = self.read(squad(question(), context=" \n"), False)
        self.assertEqual(example.doc_tokens, [])

    def test_refused(self):
        good = json.dumps(squad(question()))
        for content, parts in (
            ([question()], ["no articles", '{"data"']),
            ({}, ["no articles"]),
            ({"data": {}}, ["no articles"]),
            ({"data": [["a"]]}, ["paragraphs of an article"]),
            ({"data": [{"paragraphs": [{"qas": []}]}]}, ["nothing as context"]),
            (squad(question(), context=7), ["found 7 as context"]),
            (squad({"id": "q", "answers": []}), ["nothing as question of question q"]),
            (squad({"question": "Who?"}), ["nothing as id"]),
            (squad(question(), question()), ["question q1 stands there twice"]),
            (squad(question(answers=[])), ["q1 has 0 answers", "--version_2_with_negative"]),
            (squad(question(answers=[("a", 5), ("a", 5)])), ["q1 has 2 answers, expected one"]),
            (squad({"id": "q", "question": "Who?"}), ["q has 0 answers"]),
            (squad({**question(), "answers": [{"text": "cat"}]}), ["answer_start"]),
            (squad({**question(), "answers": ["cat"]}), ["text of an answer of question q1"]),
            (good[:-3], ["line 1", "no JSON"]),
            (good.replace(", ", ",\n").replace('"Who', "Who"), ["line 4", "no JSON"]),
            (b"", ["line 1", "no JSON"]),
            (good.encode().replace(b"Who", b"Wh\xff"), ["line 1", "not UTF-8"]),
            ("[" * 100000, ["no JSON"]),
            (good.replace('"q1"', "9" * 5000), ["no JSON"]),
        ):
            with self.subTest(content=str(content)[:60]):
                self.assert_file_refused(parts, content)

    def test_missing_file(self):
        path = os.path.join(self.folder, "none.json")
        self.assert_refused([path, "does not exist"], sd.read_squad_examples, path, True)

    def test_answer_texts(self):
        content = squad(
            question("a", answers=[("cat", 4), ("The cat", 0)]), question("b", answers=[])
        )
        path = self.write("squad.json", json.dumps(content))
        self.assertEqual(sd.answer_texts(path), {"a": ["cat", "The cat"], "b": []})
        path = self.write("squad.json", json.dumps(squad({"id": "q", "question": "Who?"})))
        self.assert_refused([path, "no question has an answer"], sd.answer_texts, path)

    @many
    @hypothesis.given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-2, 40) | st.sampled_from(["cat", "", "q"]),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "data",
                            "paragraphs",
                            "context",
                            "qas",
                            "id",
                            "question",
                            "answers",
                            "text",
                            "answer_start",
                        ]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=8,
        ),
        st.integers(0, 5),
        st.booleans(),
    )
    def test_any_json_is_read_or_refused(self, part, depth, is_training):
        """A good file in which something, at any depth, is something else."""
        content = squad(question())
        paragraph = content["data"][0]["paragraphs"][0]
        places = [
            (content, "data"),
            (content["data"], 0),
            (content["data"][0]["paragraphs"], 0),
            (paragraph, "qas"),
            (paragraph["qas"], 0),
            (paragraph["qas"][0], "answers"),
        ]
        holder, key = places[depth]
        holder[key] = part
        try:
            examples = self.read(content, is_training)
        except UserError as error:
            self.assert_one_sentence(error, "squad.json")
        else:
            for example in examples:
                self.assertIsInstance(example, sd.SquadExample)


class WindowsTest(tf.test.TestCase):
    def test_doc_spans(self):
        limits = sd.Limits(0, 3, 0)
        for num_tokens, room, expected in (
            (10, 6, [(0, 6), (3, 6), (6, 4)]),
            (6, 6, [(0, 6)]),
            (7, 6, [(0, 6), (3, 4)]),
            (0, 6, []),
            # A window shorter than the stride: the next one begins where it ends.
            (5, 2, [(0, 2), (2, 2), (4, 1)]),
        ):
            self.assertEqual(sd.doc_spans(num_tokens, room, limits), expected)

    def test_max_context_of_the_docstring(self):
        # the man went to the store and bought a gallon of milk
        winners = sd.max_context([(0, 5), (3, 5), (6, 5)])
        self.assertEqual(winners[7], 2)
        self.assertAllEqual(winners, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2])

    def test_a_longer_window_wins_a_tie_by_little(self):
        # Token 4 has one to its side in both; the first is the longer.
        self.assertEqual(sd.max_context([(0, 6), (3, 3)])[4], 0)
        self.assertEqual(sd.max_context([(3, 3), (0, 6)])[4], 1)

    def test_improve_answer_span(self):
        tokens = ["the", "japanese", "-", "american", "war"]
        for answer, expected in (
            (["japanese"], (1, 1)),
            (["american"], (3, 3)),
            (["-", "american"], (2, 3)),
            (["japan"], (1, 3)),
            (["war"], (1, 3)),  # Outside of its words.
            ([], (1, 3)),
        ):
            self.assertEqual(sd.improve_answer_span(tokens, 1, 3, answer), expected)

    def test_limits(self):
        sd.check_limits(sd.Limits(68, 1, 64))
        for limits, part in (
            (sd.Limits(67, 128, 64), "--max_seq_length=67 .* --max_query_length=64 .* 68"),
            (sd.Limits(384, 0, 64), "--doc_stride=0"),
        ):
            with self.assertRaisesRegex(UserError, part):
                sd.check_limits(limits)


class FeaturesTest(FileTestCase):
    def features(self, content, lengths=(12, 3, 2), is_training=True, **options):
        path = self.write("squad.json", json.dumps(content))
        examples = sd.read_squad_examples(path, is_training, **options)
        found = []
        sd.convert_examples_to_features(
            examples, LetterTokenizer(), *lengths, is_training, found.append
        )
        return found

    def test_windows_by_hand(self):
        # "ab cdef gh ijk": the tokens ab cd ef gh ij k; room for 12 - 2 - 3 = 7 of them.
        content = squad(question(text="xyzzy u", answers=[("ef", 5)]), context="ab cdef gh ijk")
        (feature,) = self.features(content)
        self.assertEqual(
            feature.tokens,
            ["[CLS]", "xy", "zz", "[SEP]", "ab", "cd", "ef", "gh", "ij", "k", "[SEP]"],
        )
        self.assertEqual(feature.token_to_orig_map, {4: 0, 5: 1, 6: 1, 7: 2, 8: 3, 9: 3})
        self.assertEqual((feature.start_position, feature.end_position), (6, 6))
        self.assertEqual(feature.input_mask, [1] * 11 + [0])
        self.assertEqual(feature.segment_ids, [0] * 4 + [1] * 7 + [0])
        self.assertEqual((feature.unique_id, feature.input_ids[0]), (1000000000, 1))

        windows = self.features(content, (9, 3, 2))  # Room for 4.
        self.assertEqual(
            [feature.tokens[4:-1] for feature in windows],
            [["ab", "cd", "ef", "gh"], ["gh", "ij", "k"]],
        )
        positions = [(feature.start_position, feature.end_position) for feature in windows]
        self.assertEqual(positions, [(6, 6), (0, 0)])
        self.assertEqual([feature.unique_id for feature in windows], [1000000000, 1000000001])
        # "gh" has more around it in neither: the longer window has it.
        self.assertEqual(windows[0].token_is_max_context[7], True)
        self.assertEqual(windows[1].token_is_max_context[4], False)

    def test_no_answer(self):
        content = squad(question(answers=[], is_impossible=True))
        (feature,) = self.features(content, (40, 9, 2), version_2_with_negative=True)
        self.assertEqual((feature.start_position, feature.end_position), (0, 0))
        self.assertIs(feature.is_impossible, True)

    def test_no_paragraph(self):
        self.assertEqual(self.features(squad(question(), context=""), is_training=False), [])

    def test_rows_are_the_features(self):
        """What the script reads, beside the lists of BERT's function."""
        content = squad(*(question(f"q{i}", "who is it " * i, [("mat", 20)]) for i in range(1, 5)))
        content["data"].append(squad(question("q9", "eh"), context="A cat, " * 9)["data"][0])
        content["data"][1]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 2
        expected = self.features(content, (16, 4, 5))
        path = os.path.join(self.folder, "squad.json")
        tokenizer, parts = LetterTokenizer(), []
        with tf.test.mock.patch.object(sd, "_TOKENS_A_PART", 10):
            questions = sd.tokenized(
                sd.squad_examples(path, True), tokenizer, sd.Limits(16, 4, 5), True
            )
            sd.add_rows(questions, tokenizer, parts.append)
        self.assertGreater(len(parts), 2)
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.assertEqual(arrays.pop("num_questions").sum(), 5)
        # The five questions' paragraphs stand there once each.
        some = rows.TextRows(arrays, 1, 2, 16)
        self.assertLen(some, len(expected))
        taken = some.take(np.arange(len(some)))
        for index, feature in enumerate(expected):
            for name in ("input_ids", "input_mask", "segment_ids"):
                self.assertAllEqual(taken[name][index], getattr(feature, name))
            self.assertEqual(taken["start_positions"][index], feature.start_position)
            self.assertEqual(taken["end_positions"][index], feature.end_position)
            self.assertEqual(taken["question"][index], feature.example_index)

    def test_no_rows(self):
        parts = []
        path = self.write("squad.json", json.dumps(squad(question(), context="")))
        questions = sd.tokenized(
            sd.squad_examples(path, False), LetterTokenizer(), sd.Limits(16, 4, 5), False
        )
        sd.add_rows(questions, LetterTokenizer(), parts.append)
        (part,) = parts
        self.assertEqual(part["num_questions"].tolist(), [1])
        self.assertEqual(len(rows.TextRows(dict(part), 1, 2, 16)), 0)


@unittest.skipUnless(SHARED, "ADAPTER_BERT_DATA does not name the shared folder")
class GoldenTest(FileTestCase):
    def test_features_are_the_originals(self):
        tokenizer = minilm_tokenizer()
        for version in (1, 2):
            golden, content, _ = squad_golden(version)
            for article in content["data"]:
                for paragraph in article["paragraphs"]:
                    for qa in paragraph["qas"]:
                        qa["answers"] = qa["answers"][:1]  # As the goldens' training has them.
            path = self.write("squad.json", json.dumps(content))
            for setting in ("seq384", "seq96"):
                settings = golden[setting]["settings"]
                lengths = [
                    settings[name] for name in ("max_seq_length", "doc_stride", "max_query_length")
                ]
                for part in ("train", "predict"):
                    is_training, found = part == "train", []
                    examples = sd.read_squad_examples(
                        path, is_training, version_2_with_negative=version == 2
                    )
                    sd.convert_examples_to_features(
                        examples, tokenizer, *lengths, is_training, found.append
                    )
                    expected = golden[setting][part]
                    self.assertLen(found, len(expected))
                    for feature, wanted in zip(found, expected):
                        self.check(feature, examples[feature.example_index].qas_id, wanted)

    def check(self, feature, qas_id, wanted):
        found = {
            "unique_id": feature.unique_id,
            "qas_id": qas_id,
            "doc_span_index": feature.doc_span_index,
            "input_ids": feature.input_ids[: len(wanted["input_ids"])],
            "segment_ids_sum": sum(feature.segment_ids),
            "token_to_orig_map": {str(k): v for k, v in feature.token_to_orig_map.items()},
            "token_is_max_context": [
                value for _, value in sorted(feature.token_is_max_context.items())
            ],
            "start_position": feature.start_position,
            "end_position": feature.end_position,
            "is_impossible": feature.is_impossible,
        }
        for name, value in found.items():
            self.assertEqual(value, wanted[name], (wanted["unique_id"], name))
        self.assertFalse(any(feature.input_ids[len(wanted["input_ids"]) :]))


if __name__ == "__main__":
    tf.test.main()
