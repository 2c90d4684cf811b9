"""Tests of multilabel.py: head and loss against NumPy, answers, sets of labels in files."""

import numpy as np

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text.multilabel import KIND
from adapter_tests.support.head_case import HeadCase


class MultilabelTest(HeadCase):
    def test_head_equals_numpy(self):
        labels = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
        loss, predictions = self.run_head("multilabel", 3, labels)
        expected = 1 / (1 + np.exp(-self.POOLED @ self.WEIGHTS.T))
        losses = -np.log(np.where(labels, expected, 1 - expected)).mean(axis=1)
        self.assertAllClose(predictions["probabilities"], expected, atol=1e-5)
        self.assertAllClose(predictions["loss"], losses, atol=1e-5)
        self.assertAllClose(loss, losses.mean(), atol=1e-5)

    def test_probabilities_are_sigmoids(self):
        logits = np.array([1.0, -1.0, 0.5], np.float32)
        self.assertAllClose(KIND.decode(logits), {"probabilities": 1 / (1 + np.exp(-logits))})

    def test_answers_accept_one_row_or_many(self):
        odds = np.array([[[0.9, 0.8, 0.1], [0.2, 0.6, 0.7]], [[0.4, 0.3, 0.5], [0.0, 0.1, 0.0]]])
        sets = [[[1, 1, 0], [0, 1, 1]], [[0, 0, 0], [0, 0, 0]]]
        self.assertAllEqual(KIND.answers({"probabilities": odds}), sets)
        self.assertAllEqual(KIND.answers({"probabilities": odds[0, 1]}), sets[0][1])
        self.assertEqual(
            KIND.answer({"probabilities": np.array([0.25, 0.75])}, ("x", "y")),
            {"labels": ["y"], "probabilities": {"x": 0.25, "y": 0.75}},
        )

    def test_label_sets_are_parsed_and_formatted(self):
        for text, expected in (
            ("a,b", ("a", "b")),
            (" a ,, b  c", ("a", "b c")),
            ('["a", "b\\nc"]', ("a", "b c")),
            ("[b", ("[b",)),
            ("(a),{b}", ("(a)", "{b}")),
            ("", ()),
        ):
            self.assertEqual(KIND.parse_label(text, "f, line 2"), expected)
        for text, part in (
            *((text, "not a JSON list") for text in ("['a', 'b']", "['a' 'b']", "[a, b]")),
            *((text, "not a JSON list") for text in ("{'a', 'b'}", "('a',)", '{"a": 1, "b": 0}')),
            ("[null]", "found null in a list"),
            ('["a,b"]', 'found "a,b" in a list'),
            ('[{"name": "a"}]', 'found {"name": "a"} in a list'),
            ('[["x"]]', r'found \["x"\] in a list'),
            ("[true]", "found true in a list"),
        ):
            with self.assertRaisesRegex(UserError, f"^f, line 2: .*{part}"):
                KIND.parse_label(text, "f, line 2")
        self.assertEqual(KIND.placeholder(("x", "y")), ())
        self.assertEqual(KIND.texts([[1, 1], [0, 0]], ("x", "y")), ["x,y", ""])
