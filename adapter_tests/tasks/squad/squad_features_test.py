"""Tests of squad_features.py against windows by hand and the original's features of real data.

The latter need the shared folder, which ADAPTER_BERT_DATA names.
"""

import json

import numpy as np
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.squad import squad_data, squad_features
from adapter_bert.training import rows
from adapter_tests.support import tiny
from adapter_tests.support.file_cases import FileTestCase
from adapter_tests.support.shared import needs_shared
from adapter_tests.support.squad import CONTEXT, minilm_tokenizer, question, squad, squad_golden


class LetterTokenizer:
    """Splits words into pieces of two letters; a piece's id is computed from its letters."""

    def tokenize(self, text):
        return [word[i : i + 2] for word in text.split() for i in range(0, len(word), 2)]

    def convert_tokens_to_ids(self, tokens):
        special = {"[CLS]": 1, "[SEP]": 2}
        return [special.get(t) or sum(ord(c) << 8 * i for i, c in enumerate(t)) for t in tokens]


class WindowsTest(tf.test.TestCase):
    def test_doc_spans_cover_paragraph_by_stride(self):
        limits = squad_features.Limits(0, 3, 0)
        for num_tokens, room, expected in (
            (10, 6, [(0, 6), (3, 6), (6, 4)]),
            (6, 6, [(0, 6)]),
            (7, 6, [(0, 6), (3, 4)]),
            (0, 6, []),
            # A window shorter than the stride: the next one begins where it ends.
            (5, 2, [(0, 2), (2, 2), (4, 1)]),
        ):
            self.assertEqual(squad_features.doc_spans(num_tokens, room, limits), expected)

    def test_max_context_matches_docstring_example(self):
        # the man went to the store and bought a gallon of milk
        winners = squad_features.max_context([(0, 5), (3, 5), (6, 5)])
        self.assertEqual(winners[7], 2)
        self.assertAllEqual(winners, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2])

    def test_longer_window_wins_if_contexts_are_equal(self):
        # Token 4 has one token next to it in both; the first window is longer.
        self.assertEqual(squad_features.max_context([(0, 6), (3, 3)])[4], 0)
        self.assertEqual(squad_features.max_context([(3, 3), (0, 6)])[4], 1)

    def test_invalid_limits_are_refused(self):
        squad_features.check_limits(squad_features.Limits(68, 1, 64))
        for limits, part in (
            ((67, 128, 64), "--max_seq_length=67 .* --max_query_length=64 .* 68"),
            ((384, 0, 64), "--doc_stride=0"),
        ):
            with self.assertRaisesRegex(UserError, part):
                squad_features.check_limits(squad_features.Limits(*limits))


class FeaturesTest(FileTestCase):
    def features(self, content, lengths=(12, 3, 2), is_training=True, **options):
        path = self.write("squad.json", json.dumps(content))
        examples = squad_data.read_squad_examples(path, is_training, **options)
        found = []
        squad_features.convert_examples_to_features(
            examples, LetterTokenizer(), *lengths, is_training, found.append
        )
        return found

    def test_windows_match_hand_computation(self):
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

        windows = self.features(content, (9, 3, 2))  # Room for 4 tokens.
        found = [feature.tokens[4:-1] for feature in windows]
        self.assertEqual(found, [["ab", "cd", "ef", "gh"], ["gh", "ij", "k"]])
        positions = [(feature.start_position, feature.end_position) for feature in windows]
        self.assertEqual(positions, [(6, 6), (0, 0)])
        self.assertEqual([feature.unique_id for feature in windows], [1000000000, 1000000001])
        # "gh" has equal context in both: the longer window wins.
        self.assertEqual(windows[0].token_is_max_context[7], True)
        self.assertEqual(windows[1].token_is_max_context[4], False)

    def test_full_word_cache_does_not_change_features(self):
        content = squad(*(question(f"q{i}", "who", [("mat", 20)]) for i in range(3)))
        content["data"] += squad(question("q9", "who"), context="A cat on a mat. " * 2)["data"]
        content["data"][1]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 2
        expected = [vars(feature) for feature in self.features(content)]
        with tf.test.mock.patch.object(squad_features, "_MAX_CACHED_WORDS", 2):
            self.assertEqual([vars(feature) for feature in self.features(content)], expected)

    def test_only_add_rows_logs_progress(self):
        content = squad(*(question(f"q{i}") for i in range(3)))
        patch = tf.test.mock.patch.object(squad_features, "_PROGRESS_EVERY", 2)
        with patch, self.assertLogs("absl", "INFO") as logs:
            self.arrays(content, True)
            self.features(content)  # As in each evaluation; it logs its own progress.
        self.assertEqual([record.getMessage() for record in logs.records], ["Read 2 questions."])

    def test_impossible_questions_have_positions_0(self):
        content = squad(question(answers=[], is_impossible=True))
        (feature,) = self.features(content, (40, 9, 2), version_2_with_negative=True)
        self.assertEqual((feature.start_position, feature.end_position), (0, 0))
        self.assertIs(feature.is_impossible, True)

    def test_rows_equal_features(self):
        """Compares the script's encoding with BERT's function."""
        content = squad(*(question(f"q{i}", "who is it " * i, [("mat", 20)]) for i in range(1, 5)))
        content["data"].append(squad(question("q9", "eh"), context="A cat, " * 9)["data"][0])
        content["data"][1]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 2
        expected = self.features(content, (16, 4, 5))
        arrays, num_parts = self.arrays(content, True, 10)
        self.assertGreater(num_parts, 2)
        self.assertEqual(arrays.pop("num_questions").sum(), 5)
        positions = {"start_positions", "end_positions"}
        self.assertEqual(set(arrays), {*rows.PARTS, *positions})
        # The paragraphs of the five questions are stored once each.
        texts = [CONTEXT, "A cat, " * 9, *("who is it " * i for i in range(1, 5)), "eh"]
        pieces = [LetterTokenizer().tokenize(text) for text in texts]
        num_tokens = [len(some) for some in pieces[:2]] + [min(len(some), 5) for some in pieces[2:]]
        self.assertLen(arrays["tokens"], sum(num_tokens))
        some = rows.TextRows(arrays, 1, 2, 16)
        self.assertLen(some, len(expected))
        taken = some.take(np.arange(len(some)))
        for index, feature in enumerate(expected):
            for name in ("input_ids", "input_mask", "segment_ids"):
                self.assertAllEqual(taken[name][index], getattr(feature, name))
            self.assertEqual(taken["start_positions"][index], feature.start_position)
            self.assertEqual(taken["end_positions"][index], feature.end_position)

    def arrays(self, content, is_training, tokens_per_part=1 << 18):
        """Returns (concatenated arrays from `add_rows`, number of parts)."""
        path = self.write("squad.json", json.dumps(content))
        tokenizer, limits, parts = LetterTokenizer(), squad_features.Limits(16, 4, 5), []
        with tf.test.mock.patch.object(squad_features, "_TOKENS_PER_PART", tokens_per_part):
            reader = squad_data.read_squad_examples
            examples = reader(path, is_training, version_2_with_negative=True)
            questions = squad_features.tokenize_questions(examples, tokenizer, limits, is_training)
            squad_features.add_rows(questions, tokenizer, parts.append)
        names = {name for part in parts for name in part}
        joined = {n: np.concatenate([part[n] for part in parts if n in part]) for n in names}
        return joined, len(parts)

    def test_parts_without_rows_can_be_joined(self):
        first, last = (
            squad(question(qas_id, "who is it", answers=[]), context="")["data"]
            for qas_id in ("q0", "q2")
        )
        content = {"data": [*first, *squad(question())["data"], *last]}
        for is_training in (False, True):
            arrays, num_parts = self.arrays(content, is_training, 3)
            self.assertEqual(num_parts, 3)
            self.assertEqual("start_positions" in arrays, is_training)
            for name in set(arrays) - {"tokens", "num_questions"}:
                self.assertLen(arrays[name], 3, name)  # The windows of question().

    def test_empty_paragraph_gives_no_rows(self):
        content = squad(question(), context="")
        self.assertEqual(self.features(content, is_training=False), [])
        arrays, _ = self.arrays(content, False)
        self.assertEqual(arrays["num_questions"].tolist(), [1])
        self.assertEqual(len(rows.TextRows(arrays, 1, 2, 16)), 0)


class LabelTest(FileTestCase):
    """Tests labels, which are the tokens of the characters at answer_start."""

    def labels(self, context, text, starts, tokenizer=None):
        """Returns the labelled tokens, and their indices, of an answer at each of `starts`."""
        if tokenizer is None:
            words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *tiny.VOCABULARY[5:], *"北京在-(), €"]
            vocabulary = [*words, "japanese", "american", "cat", "##53", "53", "20", "18", "##s"]
            path = self.write("vocab.txt", "\n".join(dict.fromkeys(vocabulary)) + "\n")
            tokenizer = tokenization.FullTokenizer(path)
        questions = [question(f"q{i}", "?", [(text, start)]) for i, start in enumerate(starts)]
        path = self.write("squad.json", json.dumps(squad(*questions, context=context)))
        examples, found = squad_data.read_squad_examples(path, True), []
        squad_features.convert_examples_to_features(
            examples, tokenizer, 400, 9, 20, True, found.append
        )
        spans = [(f.start_position, f.end_position) for f in found]
        offset = found[0].tokens.index("[SEP]") + 1
        texts = [" ".join(f.tokens[a : b + 1]) for f, (a, b) in zip(found, spans)]
        return texts, [(a - offset, b - offset) for a, b in spans]

    def test_repeated_answer_is_labelled_at_its_offset(self):
        chinese = "王小明在北京出生。他的母亲也在北京工作,后来他去上海,最后回到北京。"
        for context, text, starts, expected in (
            (chinese, "北京", (4, 15, 31), [(4, 5), (15, 16), (31, 32)]),
            ("cat-cat-cat", "cat", (0, 4, 8), [(0, 0), (2, 2), (4, 4)]),
            # After a white space that is no blank.
            ("北京,在\u3000北京在", "北京在", (5,), [(4, 6)]),
            ("a (cat-cat) cat", "cat", (3, 7, 12), [(2, 2), (4, 4), (6, 6)]),
            # With an answer_start that is off by one, the nearest occurrence counts.
            ("cat-cat-cat", "cat", (3, 5), [(2, 2), (2, 2)]),
        ):
            self.assertEqual(self.labels(context, text, starts)[1], expected, context)

    def test_answer_that_cuts_tokens_is_covered(self):
        without_blanks = "在" * 50
        for context, text, start, expected in (
            # BERT's labels of ordinary words.
            ("20-18", "8", 4, "20 - 18"),
            ("\u20ac53,", "53", 1, "\u20ac ##53 ,"),
            ("Japanese-American", "American", 9, "american"),
            ("Japanese-American", "Japan", 0, "japanese - american"),
            # Texts without blanks.
            (without_blanks + "20-18", "8", 54, "18"),
            (without_blanks + "cats在cats", "cat", 55, "cat"),
            (without_blanks + "魚魚在", "魚在", 51, "[UNK] 在"),
            ("cat-" * 20 + "Japanese", "Japan", 80, "japanese"),
            ("在20-18", "8", 5, "18"),
            # Characters without tokens, and a word of such characters.
            ("cat\u00ad", "\u00ad", 3, "cat"),
            ("cat\u200b-cat", "\u200b", 3, "cat - cat"),
            ("cat \u0301\u200b", "\u0301\u200b", 4, "[CLS]"),
        ):
            self.assertEqual(self.labels(context, text, [start])[0], [expected], context)

    def test_examples_without_offsets_find_their_answer(self):
        limits = squad_features.Limits(16, 4, 5)
        for text, expected in (("ef", (3, 3)), ("ab", (2, 2)), ("xy", (2, 3))):
            example = squad_data.SquadExample("q", "?", ["The", "abef"], text, 1, 1)
            (found,) = squad_features.tokenize_questions([example], LetterTokenizer(), limits, True)
            (window,) = found.windows
            positions = window.start_position - 3, window.end_position - 3
            self.assertEqual(positions, expected, text)


class SentencePieceTest(FileTestCase):
    """Tests answers inside words, where the pieces differ from those of the answer alone."""

    def tokenizer(self):
        """Returns a tokenizer in whose small model "1985" is one piece at the start of a word."""
        lines = [
            "1985 \u5e74 \u6771\u4eac \u5927\u5b66 \u306f \u65e5\u672c \u306e \u5927\u5b66",
            "in 1985 a Japanese war , cat -",
            "1985 American ( \u6771 \u4eac \u5927 \u5b66 )",
        ]
        ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        options = {"model_type": "bpe", "vocab_size": 50, "character_coverage": 1.0}
        options["control_symbols"] = "[CLS],[SEP]"
        model = tiny.train_sentencepiece(5 * lines, **ids, **options)
        path = self.write("pieces.model", model)
        return tokenization.FullTokenizer(None, False, spm_model_file=path)

    def test_answer_positions_cover_pieces_of_answer(self):
        tokenizer = self.tokenizer()
        for text, pieces in (
            ("1985", ["\u25811985"]),
            ("(1985)", ["\u2581", "(", "19", "85", ")"]),
        ):
            self.assertEqual(tokenizer.tokenize(text), pieces)
        for context, answer, expected in (
            ("in (1985) war", "1985", "1985"),
            ("in 1985 war", "1985", "1985"),
            ("Japanese-American war", "American", "American"),
            ("a 1985\u5e74", "198", "1985"),
            # In "Tokyo University 1985": the second word, and the full-width digits.
            ("\u6771\u4eac\u5927\u5b661985\u5e74", "\u5927\u5b66", "\u5927\u5b66"),
            ("\u5927\u5b66\uff11\uff19\uff18\uff15", "\uff11\uff19\uff18\uff15", "1985"),
        ):
            place = context.index(answer)
            content = squad(question(answers=[(answer, place)]), context=context)
            path = self.write("squad.json", json.dumps(content))
            found = []
            squad_features.convert_examples_to_features(
                squad_data.read_squad_examples(path, True), tokenizer, 60, 9, 20, True, found.append
            )
            (feature,) = found
            tokens = feature.tokens[feature.start_position : feature.end_position + 1]
            self.assertEqual("".join(tokens).replace("\u2581", ""), expected, feature.tokens)


@needs_shared
class GoldenTest(FileTestCase):
    def test_features_equal_original(self):
        tokenizer = minilm_tokenizer()
        for version in (1, 2):
            golden, content, _ = squad_golden(version)
            for article in content["data"]:
                for paragraph in article["paragraphs"]:
                    for qa in paragraph["qas"]:
                        qa["answers"] = qa["answers"][:1]  # As in the goldens' training.
            path = self.write("squad.json", json.dumps(content))
            for setting in ("seq384", "seq96"):
                names = "max_seq_length", "doc_stride", "max_query_length"
                lengths = [golden[setting]["settings"][name] for name in names]
                for part in ("train", "predict"):
                    is_training, found = part == "train", []
                    examples = squad_data.read_squad_examples(
                        path, is_training, version_2_with_negative=version == 2
                    )
                    squad_features.convert_examples_to_features(
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
