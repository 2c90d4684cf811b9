"""Tests of squad_answers.py with hand-made logits and texts.

Where ADAPTER_BERT_DATA names the shared folder, answers are compared with the original script's.
"""

import json
import os
import tempfile
import tracemalloc
import unicodedata

import numpy as np
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.tasks.squad import squad_answers, squad_data, squad_features
from adapter_tests.support.shared import needs_shared
from adapter_tests.support.squad import minilm_tokenizer, squad_golden

WORDS = ["Steve", "Smith's", "cat", "sat."]
TOKENS = ["[CLS]", "who", "[SEP]", "steve", "smith", "'", "s", "cat", "sat", ".", "[SEP]"]
CHARS_OF = {3: (0, 5), 4: (0, 5), 5: (5, 6), 6: (6, 7), 7: (0, 3), 8: (0, 3), 9: (3, 4)}
WORD_OF = {3: 0, 4: 1, 5: 1, 6: 1, 7: 2, 8: 3, 9: 3}


def feature(unique_id=0, is_max_context=None, first=3):
    """Returns a window over WORDS that begins at the token `first`."""
    tokens = TOKENS[:3] + TOKENS[first:]
    words = {3 + i: WORD_OF[first + i] for i in range(len(TOKENS) - 1 - first)}
    best = dict.fromkeys(words, True) if is_max_context is None else is_max_context
    chars = {3 + i: CHARS_OF[first + i] for i in range(len(TOKENS) - 1 - first)}
    return squad_features.InputFeatures(
        unique_id, 0, 0, tokens, words, best, [], [], [], token_to_chars=chars
    )


def logits(unique_id=0, start=(), end=(), length=12):
    """Returns logits of -9 except for pairs of (position, value)."""
    values = np.full([2, length], -9.0)
    for row, pairs in enumerate((start, end)):
        for place, value in pairs:
            values[row, place] = value
    return squad_answers.RawResult(unique_id, *values.tolist())


def texts(answer):
    return [entry["text"] for entry in answer.nbest]


def choose(windows, words=WORDS, **settings):
    return squad_answers.choose_answer(words, windows, squad_answers.AnswerSettings(**settings))


class ChooseAnswerTest(tf.test.TestCase):
    def test_best_spans_are_ranked_with_probabilities(self):
        result = logits(start=[(3, 2.0), (7, 1.0)], end=[(4, 1.0), (7, 0.5)])
        answer = choose([(feature(), result)], n_best_size=2)
        # Valid spans of 2 starts and 2 ends: 3-4 (3.0), 3-7 (2.5), 7-7 (1.5). The best two remain.
        self.assertEqual(texts(answer), ["Steve Smith", "Steve Smith's cat"])
        self.assertEqual((answer.text, answer.null_odds), ("Steve Smith", None))
        odds = np.exp([3.0, 2.5])
        found = [entry["probability"] for entry in answer.nbest]
        self.assertAllClose(found, odds / odds.sum(), rtol=1e-12)
        self.assertEqual((answer.nbest[1]["start_logit"], answer.nbest[1]["end_logit"]), (2.0, 0.5))

    def test_invalid_spans_are_not_answers(self):
        high = [(place, 5.0) for place in (0, 1, 2, 10, 11)]  # Outside the paragraph.
        result = logits(start=[*high, (8, 2.0), (7, 1.0)], end=[*high, (3, 4.0), (8, 1.0)])
        answer = choose([(feature(), result)], n_best_size=8, max_answer_length=1)
        self.assertEqual(texts(answer)[0], "sat")  # 7-8 is too long, 8-3 ends before it begins.
        self.assertNotIn("cat sat", texts(answer))
        answer = choose([(feature(), result)], n_best_size=8, max_answer_length=2)
        self.assertEqual(texts(answer)[:2], ["sat", "cat sat"])

    def test_answer_comes_from_window_of_maximum_context(self):
        half = dict.fromkeys(WORD_OF, False)
        windows = [
            (feature(0, half), logits(0, [(3, 9.0)], [(3, 9.0)])),
            (feature(1, None, 7), logits(1, [(3, 1.0)], [(4, 1.0)])),
        ]
        self.assertEqual(choose(windows).text, "cat sat")

    def test_equal_texts_are_listed_once(self):
        windows = [
            (feature(0), logits(0, [(7, 3.0)], [(7, 3.0)])),
            (feature(1, None, 7), logits(1, [(3, 2.0)], [(3, 2.0)])),
        ]
        self.assertEqual(texts(choose(windows)).count("cat"), 1)

    def test_no_answer_is_chosen_above_the_threshold(self):
        result = logits(start=[(0, 2.0), (7, 1.0)], end=[(0, 2.0), (7, 1.5)])
        for threshold, expected in ((0.0, ""), (1.4, ""), (1.5, "cat"), (2.0, "cat")):
            settings = {"version_2_with_negative": True, "null_score_diff_threshold": threshold}
            answer = choose([(feature(), result)], **settings)
            self.assertEqual((answer.text, answer.null_odds), (expected, 1.5))
            self.assertEqual(texts(answer)[:2], ["", "cat"])

    def test_no_answer_score_is_the_minimum_over_windows(self):
        windows = [
            (feature(0), logits(0, [(0, 5.0), (7, 1.0)], [(0, 5.0), (7, 1.0)])),
            (feature(1, None, 7), logits(1, [(0, -1.0)], [(0, -2.0)])),
        ]
        answer = choose(windows, version_2_with_negative=True)
        self.assertEqual((answer.text, answer.null_odds), ("cat", -3.0 - 2.0))

    def test_no_answer_is_appended_to_a_full_list(self):
        result = logits(start=[(0, -99.0), (7, 1.0), (3, 0.5)], end=[(0, -99.0), (7, 1.5)])
        answer = choose([(feature(), result)], version_2_with_negative=True, n_best_size=1)
        self.assertEqual(texts(answer), ["cat", ""])

    def test_question_without_candidate_span_has_empty_answer(self):
        # BERT's script ends in an AttributeError here (best_non_null_entry is None).
        nowhere = logits(start=[(1, 9.0)], end=[(1, 9.0)])
        for windows in ([], [(feature(), nowhere)]):
            answer = choose(windows, version_2_with_negative=True, n_best_size=1)
            self.assertEqual((answer.text, texts(answer)), ("", [""]))
            self.assertGreater(answer.null_odds, 1000)
            self.assertEqual(answer.nbest[0]["probability"], 1.0)
            answer = choose(windows, n_best_size=1)
            self.assertEqual((answer.text, answer.nbest[0]["probability"]), ("empty", 1.0))

    def test_answer_has_the_characters_of_its_tokens(self):
        thai = "\u0e17\u0e35\u0e48", "\u0e01\u0e23\u0e38\u0e07", "\u0e40\u0e17\u0e1e", "."
        for words, ends, first, last, exact, expected in (
            # Chinese or Thai text is one "word".
            (["北京在北京。"], [1, 2, 3, 4, 5, 6], 3, 4, True, (3, 5, "北京")),
            (["".join(thai)], [3, 7, 10, 11], 1, 2, True, (3, 10, thai[1] + thai[2])),
            (["(cat-cat)"], [1, 4, 5, 8, 9], 3, 3, True, (5, 8, "cat")),
            # A space of SentencePiece alone stands for its word.
            (["(cat)"], [0, 1, 4, 5], 0, 0, True, (0, 5, "(cat)")),
            # In BERT's script, the words are searched, and unknown tokens are not found.
            (["(Cat-cat)"], [1, 4, 5, 8, 9], 3, 3, False, (5, 8, "Cat")),
            (["在" * 50 + "Cat-cat)"], [50, 53, 54, 57, 58], 3, 3, False, (54, 57, "cat")),
        ):
            pieces = [words[0][a:b].lower() for a, b in zip([0, *ends], ends)]
            tokens = ["[CLS]", "who", "[SEP]", *pieces, "[SEP]"]
            word_of = dict.fromkeys(range(3, 3 + len(pieces)), 0)
            chars = dict(zip(word_of, zip([0, *ends], ends)))
            window = squad_features.InputFeatures(
                0, 0, 0, tokens, word_of, word_of, [], [], [], token_to_chars=chars
            )
            window.token_is_max_context = dict.fromkeys(word_of, True)
            result = logits(start=[(3 + first, 5.0)], end=[(3 + last, 5.0)])
            answer = choose([(window, result)], words, exact=exact)
            self.assertEqual((answer.words, (*answer.characters, answer.text)), ((0, 0), expected))

    def test_answers_in_words_without_case_have_the_characters_of_their_tokens(self):
        path = os.path.join(self.get_temp_dir(), "vocab.txt")
        letters = unicodedata.normalize("NFD", "서울에서한글")
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"?他叫王。在東京都千代田区,", *letters]
        with open(path, "w", encoding="utf-8") as writer:
            writer.write("\n".join(dict.fromkeys([*tokens, *(f"##{a}" for a in letters)])) + "\n")
        tokenizer, limits = tokenization.FullTokenizer(path), squad_features.Limits(60, 9, 9)
        for context, text in (
            ("他叫王喆。", "王喆"),  # Not in the vocabulary.
            ("在東京都\u3000千代田区。", "東京都\u3000千代田区"),
            ("서울에서", "서울"),  # Letters are taken apart.
            ("他在한글,", "한글"),
            ("在東京\u00ad都。", "東京\u00ad都"),  # Invisible.
        ):
            place = context.index(text), context.index(text) + len(text)
            example = squad_data.SquadExample("q", "?", [context], text, 0, 0, False, *place)
            (found,) = squad_features.tokenize_questions([example], tokenizer, limits, True)
            (window,) = squad_features.window_features(found, 0, 0, tokenizer, 60)
            start, end = window.start_position, window.end_position
            result = logits(start=[(start, 5.0)], end=[(end, 5.0)], length=60)
            self.assertEqual(choose([(window, result)], [context]).text, text)

    def test_best_positions_are_sorted_and_ties_keep_order(self):
        self.assertEqual(squad_answers.best_positions([1.0, 3.0, 3.0, 2.0], 3), [1, 2, 3])
        self.assertEqual(squad_answers.best_positions([1.0, 2.0], 5), [1, 0])

    def test_softmax_of_large_scores_does_not_overflow(self):
        self.assertAllClose(squad_answers.softmax([1000.0, 1000.0, 0.0]), [0.5, 0.5, 0.0])


class FinalTextTest(tf.test.TestCase):
    def test_predicted_tokens_are_located_in_the_original(self):
        for tokens, original, lower, expected in (
            ("steve smith", "Steve Smith's", True, "Steve Smith"),
            ("steve smith", "Steve Smith's", False, "Steve Smith's"),
            ("Steve Smith", "Steve Smith's", False, "Steve Smith"),
            ("cafe", "(Caf\u00e9,", True, "Caf\u00e9"),
            ("cafe", "(Cafe\u0301,", True, "(Cafe\u0301,"),  # Not aligned: an accent is lost.
            ("cafe", "(Cafe,", True, "Cafe"),
            ("$ 5 . 00", "about $5.00.", True, "$5.00"),
            ("\u4e2d \u56fd", "\u5728\u4e2d\u56fd\u5317", True, "\u4e2d\u56fd"),
            ("dog", "Steve's cat", True, "Steve's cat"),
            ("", "Steve's cat", True, "Steve's cat"),
            ("", "", True, ""),
        ):
            found = squad_answers.get_final_text(tokens, original, lower)
            self.assertEqual(found, expected, original)

    def test_verbose_logging_reports_failed_alignment(self):
        with self.assertLogs("absl", "INFO") as log:
            squad_answers.get_final_text("dog", "Steve's cat", True, verbose_logging=True)
        self.assertIn("Not found: 'dog' in \"Steve's cat\"", log.output[0])


class WriteTest(tf.test.TestCase):
    def read(self, path):
        """Returns the JSON in a file, or None if there is no file."""
        if not os.path.exists(path):
            return None
        with open(path) as reader:
            return json.load(reader)

    def test_predictions_nbest_and_null_odds_are_written(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        names = ["predictions.json", "nbest_predictions.json", "null_odds.json"]
        example = squad_data.SquadExample("q1", "Who?", WORDS)
        result = logits(start=[(0, 2.0), (7, 1.0)], end=[(0, 2.0), (7, 1.5)])
        for version_2, expected in ((False, "cat"), (True, "")):
            paths = [os.path.join(folder, str(version_2) + name) for name in names]
            arguments = [example], [feature()], [result], 3, 30, True, *paths
            squad_answers.write_predictions(*arguments, version_2_with_negative=version_2)
            with open(paths[0]) as reader:
                self.assertEqual(reader.read(), f'{{\n    "q1": "{expected}"\n}}\n')
            self.assertEqual(self.read(paths[1])["q1"][0]["text"], expected)
            self.assertEqual(self.read(paths[2]), {"q1": 1.5} if version_2 else None)

    @needs_shared
    def test_answers_match_the_original_script(self):
        tokenizer = minilm_tokenizer()
        for version in (1, 2):
            golden, _, path = squad_golden(version)
            examples = squad_data.read_squad_examples(path, False)
            for setting in ("seq384", "seq96"):
                self.check(examples, tokenizer, golden[setting], version == 2)

    def check(self, examples, tokenizer, golden, version_2):
        settings, features = golden["settings"], []
        lengths = [settings[name] for name in ("max_seq_length", "doc_stride", "max_query_length")]
        squad_features.convert_examples_to_features(
            examples, tokenizer, *lengths, False, features.append
        )
        # An example of logits_rule:
        # "(numpy.random.RandomState(unique_id + 0).randn(2, 384) * 3).astype(float32); ..."
        shift = int(settings["logits_rule"].partition("unique_id + ")[2].partition(")")[0])
        results = []
        for each in features:
            random = np.random.RandomState(each.unique_id + shift)
            values = (random.randn(2, settings["max_seq_length"]) * 3).astype(np.float32)
            results.append(squad_answers.RawResult(each.unique_id, *values.tolist()))
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        paths = [os.path.join(folder, name) for name in ("predictions", "nbest", "odds")]
        names = "n_best_size", "max_answer_length", "do_lower_case"
        arguments = examples, features, results, *(settings[name] for name in names), *paths
        squad_answers.write_predictions(*arguments, version_2_with_negative=version_2)
        predictions, nbest, odds = map(self.read, paths)
        self.assertEqual(predictions, golden["predictions"])
        self.assertEqual(odds, golden.get("null_odds"))
        for key, expected in golden["nbest_top3"].items():
            for found, wanted in zip(nbest[key], expected):
                self.assertEqual(found["text"], wanted["text"])
                for name in ("probability", "start_logit", "end_logit"):
                    self.assertAllClose(found[name], wanted[name], rtol=0, atol=1e-6)

    def test_writing_takes_little_memory(self):
        folder = self.get_temp_dir()
        paths = [os.path.join(folder, name) for name in ("predictions", "nbest")]
        answers = dict.fromkeys(map(str, range(3000)), squad_answers.NO_CANDIDATE)
        tracemalloc.start()
        squad_answers.write_predictions((), (), (), 1, 1, True, *paths, None, answers=answers)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.assertLess(peak, 2 * os.path.getsize(paths[1]))
        with open(paths[1]) as reader:
            self.assertEqual(json.load(reader), {key: a.nbest for key, a in answers.items()})
