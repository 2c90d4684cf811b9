"""Tests of squad_report.py: hand-computed scores of questions by their first question word."""

import os

import tensorflow.compat.v1 as tf

from adapter_bert.tasks.squad import squad_report
from adapter_bert.tasks.squad.squad_answers import Answer

QUESTIONS = {
    "a": "What is red?",
    "b": "In what year\tdid it\nend?",
    "c": "Whose cat is it?",
    "d": "Name a dog.",
}
TRUTHS = {"a": ["the cat", "red cat"], "b": ["1999"], "c": [], "d": ["Rex"]}


def answer(text, probability):
    return Answer(text, [{"text": text, "probability": probability}], 0.0)


ANSWERS = {
    "a": answer("a red cat", 0.25),
    "b": answer("late 1999", 0.5),
    "c": answer("Ann", 0.75),
    "d": answer("", 1.0),
}


class DescribeTest(tf.test.TestCase):
    def lines(self, version_2):
        truths = TRUTHS if version_2 else {key: TRUTHS[key] for key in "abd"}
        answers = {key: ANSWERS[key] for key in truths}
        return squad_report.describe(QUESTIONS, truths, answers, version_2).split("\n")

    def test_scores_are_shown_by_question_word(self):
        rows = [line.split() for line in self.lines(True)[3:9]]
        self.assertEqual(
            rows,
            [
                ["all", "4", "25.0", "41.7"],
                ["what", "2", "50.0", "83.3"],
                ["who", "1", "0.0", "0.0"],
                ["other", "1", "0.0", "0.0"],
                ["answerable", "3", "33.3", "55.6"],
                ["not", "answerable", "1", "0.0", "0.0"],
            ],
        )
        lines = self.lines(False)
        self.assertEqual(lines[0], "dev, 3 questions:")
        self.assertNotIn("answerable", "".join(lines))

    def test_most_confident_wrong_answers_are_shown(self):
        lines = self.lines(True)
        first = lines.index("The 3 most confident of 3 answers that are not exact:")
        self.assertEqual(
            [" ".join(line.split()) for line in lines[first + 3 :]],
            [
                "1.000 0.00 (no answer) Rex Name a dog. d",
                "0.750 0.00 Ann (no answer) Whose cat is it? c",
                "0.500 0.67 late 1999 1999 In what year did it end? b",
                "",
            ],
        )

    def test_picture_of_question_words_is_drawn(self):
        path = os.path.join(self.get_temp_dir(), "questions.png")
        found = squad_report.plot(path, "SQuAD", QUESTIONS, TRUTHS, ANSWERS, True)
        self.assertEqual(found, path)
        self.assertTrue(os.path.exists(path))
