"""Tests of squad_scores.py by hand, by brute force and against the official scripts' scores.

The latter need the shared folder, which ADAPTER_BERT_DATA names.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.tasks.squad import squad_scores
from adapter_tests.support.shared import needs_shared
from adapter_tests.support.squad import squad_golden


class AnswersTest(tf.test.TestCase):
    def test_normalize_answer_drops_case_articles_punctuation(self):
        texts = ("The  Cat!", "an apple a day", "theory", "U.S.", "the")
        found = list(map(squad_scores.normalize_answer, texts))
        self.assertEqual(found, ["cat", "apple day", "theory", "us", ""])

    def test_exact_match_compares_normalized_answers(self):
        self.assertEqual(squad_scores.exact_match("The Cat.", "cat"), 1.0)
        self.assertEqual(squad_scores.exact_match("cats", "cat"), 0.0)

    def test_f1_counts_shared_words(self):
        for prediction, truth, expected in (
            ("the red cat", "red cat", 1.0),
            ("red cat sat", "a cat", 2 * (1 / 3) * 1 / (1 / 3 + 1)),
            ("cat cat", "cat", 2 * 0.5 * 1 / 1.5),
            ("dog", "cat", 0.0),
            ("", "cat", 0.0),
        ):
            for f1 in (squad_scores.f1_v1, squad_scores.f1_v2):
                self.assertAllClose(f1(prediction, truth), expected, rtol=1e-12)

    def test_f1_versions_differ_for_answers_without_words(self):
        for prediction, truth, expected in (("the", "a.", 1.0), ("", "the", 1.0), ("cat", "", 0.0)):
            self.assertEqual(squad_scores.f1_v1(prediction, truth), 0.0)
            self.assertEqual(squad_scores.f1_v2(prediction, truth), expected)


class ScoresTest(tf.test.TestCase):
    def test_scores_v1_match_hand_computation(self):
        truths = {"a": ["cat", "red cat"], "b": ["dog"], "c": ["cow"], "d": []}
        found = squad_scores.scores_v1(truths, {"a": "Red cat", "b": "dog house", "d": "x"})
        self.assertAllClose(found, {"exact_match": 25.0, "f1": 100 * (1 + 2 / 3) / 4})
        found = squad_scores.scores_v1({"a": ["the"]}, {"a": "the"})  # As in evaluate-v1.1.py.
        self.assertEqual(found, {"exact_match": 100.0, "f1": 0.0})
        self.assertEqual(squad_scores.scores_v1({}, {}), {"exact_match": 0.0, "f1": 0.0})

    def test_scores_v2_match_hand_computation(self):
        truths = {"a": ["cat"], "b": ["dog"], "c": [], "d": []}
        predictions = {"a": "cat", "b": "", "c": "", "d": "cow"}
        odds = {"a": -1.0, "b": 0.5, "c": 0.2, "d": -0.5}
        found = squad_scores.scores_v2(truths, predictions, odds)
        self.assertAllClose(
            {name: found[name] for name in ("exact", "f1", "HasAns_exact", "NoAns_f1")},
            {"exact": 50.0, "f1": 50.0, "HasAns_exact": 50.0, "NoAns_f1": 50.0},
        )
        totals = [found[start + "total"] for start in ("", "HasAns_", "NoAns_")]
        self.assertEqual(totals, [4.0, 2.0, 2.0])
        # Answering only "a" is correct for "a" and for the two questions without an answer.
        self.assertEqual((found["best_exact"], found["best_exact_thresh"]), (75.0, -1.0))

    def test_scores_v2_omit_empty_groups(self):
        for texts, start in ((["cat"], "HasAns_"), ([], "NoAns_")):
            found = squad_scores.scores_v2(
                {"a": texts}, {"a": "" if start == "NoAns_" else "cat"}, {"a": 0}
            )
            names = {name for name in found if not name.startswith("best_")}
            self.assertEqual(names, {s + n for s in ("", start) for n in ("exact", "f1", "total")})
            self.assertEqual((found[start + "exact"], found[start + "total"]), (100.0, 1.0))

    def test_scores_v2_use_threshold_of_predictions(self):
        """If the threshold is above 1, the scores are those of the written answers."""
        truths = {"a": ["cat"], "b": ["dog"], "c": []}
        predictions, odds = {"a": "cat", "b": "", "c": ""}, {"a": 2.0, "b": 3.5, "c": 4.0}
        for threshold, expected in ((3.0, 50.0), (0.0, 0.0)):
            found = squad_scores.scores_v2(truths, predictions, odds, threshold)
            self.assertEqual((found["HasAns_exact"], found["NoAns_exact"]), (expected, 100.0))

    def test_scores_v2_count_wordless_truths_as_answers(self):
        """A question whose correct answer has no words still has an answer."""
        truths = {"a": ["the"], "b": ["x"]}
        found = squad_scores.scores_v2(truths, {"a": "the", "b": "x"}, {"a": -1.0, "b": -1.0})
        self.assertEqual((found["HasAns_total"], found["HasAns_f1"]), (2.0, 100.0))
        self.assertNotIn("NoAns_total", found)
        self.assertEqual((found["best_exact"], found["best_f1"]), (100.0, 100.0))

    def test_best_threshold_equals_brute_force(self):
        random = np.random.RandomState(0)
        for _ in range(50):
            keys = range(8)
            truths = {key: ["x"] * random.randint(2) for key in keys}
            predictions = {key: "x" * random.randint(2) for key in keys}
            values = {
                key: random.rand() if truths[key] else float(not predictions[key]) for key in keys
            }
            odds = {key: random.randn() for key in keys}
            sums = {
                threshold: sum(
                    values[key] if odds[key] <= threshold else float(not truths[key])
                    for key in keys
                )
                for threshold in [-9.0, *odds.values()]
            }
            best, threshold = squad_scores.best_threshold(truths, predictions, values, odds)
            self.assertAlmostEqual(best, max(sums.values()))
            if best > sums[-9.0]:
                self.assertAlmostEqual(sums[threshold], best)

    @needs_shared
    def test_scores_equal_official_scripts(self):
        for version in (1, 2):
            golden, content, _ = squad_golden(version)
            truths = {
                qa["id"]: [answer["text"] for answer in qa["answers"]]
                for article in content["data"]
                for paragraph in article["paragraphs"]
                for qa in paragraph["qas"]
            }
            for part in golden.values():
                arguments = [truths, part["scored_predictions"]]
                if version == 1:
                    found = squad_scores.scores_v1(*arguments)
                else:
                    found = squad_scores.scores_v2(*arguments, part["null_odds"])
                self.assertEqual(set(found), set(part["official_scores"]))
                self.assertAllClose(found, part["official_scores"], rtol=0, atol=1e-9)
