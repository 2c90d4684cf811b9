"""Tests of studies.py: what run_ablation.py writes, read; and what is no such file."""

import json
import os
import tempfile

import tensorflow.compat.v1 as tf

from adapter_bert.common.errors import UserError
from adapter_bert.experiments import studies

WRITTEN = {
    "task": "CoLA",
    "score": "accuracy",
    "num_layers": 2,
    "all": 0.75,
    "none": 0.69,
    "majority": 0.6875,
    "spans": [[0, 0, 0.745], [0, 1, 0.69], [1, 1, 0.76]],
}

# The same in points.
ABLATION = {
    **{name: WRITTEN[name] for name in ("task", "score", "num_layers")},
    "all": 75.0,
    "none": 69.0,
    "majority": 68.75,
    "spans": {(0, 0): 74.5, (0, 1): 69.0, (1, 1): 76.0},
}


class AblationResultsTest(tf.test.TestCase):
    def write(self, content):
        path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "ablation.json")
        with open(path, "w") as writer:
            json.dump(content, writer)
        return path

    def test_it_is_read_in_points(self):
        found = studies.read_ablation(self.write(WRITTEN))
        self.assertEqual({**found, "spans": {}}, {**ABLATION, "spans": {}})
        self.assertEqual(found["spans"].keys(), ABLATION["spans"].keys())
        for span, points in ABLATION["spans"].items():
            self.assertAllClose(found["spans"][span], points)

    def test_a_regression_has_no_majority(self):
        content = {name: value for name, value in WRITTEN.items() if name != "majority"}
        found = studies.read_ablation(self.write(content))
        self.assertEqual(studies.ablation_table([found]).rows[0][-1], "–")
        methods = [cell.method for cell in studies.ablation_cells(found)]
        self.assertEqual(methods, ["all adapters", "no adapters", *["layers removed"] * 3])

    def test_broken_files(self):
        with self.assertRaisesRegex(UserError, "--ablations: missing.json: cannot be read"):
            studies.read_ablation("missing.json")
        spans = [[[0, 1]], [[0, 2, 0.5]], [[1, 0, 0.5]]]
        spans += [[["0", "1", 0.5]], [[0.0, 1, 0.5]], [[0, 1, "0.5"]], [[0, 1, 10**400]], 5]
        changes = [{"spans": some} for some in spans]
        changes += [{"all": "x"}, {"all": []}, {"none": None}, {"majority": "x"}, {"task": ["a"]}]
        changes += [{"num_layers": 10**9}, {"num_layers": None}, {"score": 1}]
        changes += [{"num_layers": 0, "spans": []}]
        for broken in ({"task": "CoLA"}, *({**WRITTEN, **change} for change in changes)):
            with self.assertRaisesRegex(UserError, "is no ablation.json"):
                studies.read_ablation(self.write(broken))
        nested = os.path.join(self.get_temp_dir(), "nested.json")
        with open(nested, "w") as writer:
            writer.write("[" * 100000)
        with self.assertRaisesRegex(UserError, "is not valid JSON"):
            studies.read_ablation(nested)
        with self.assertRaisesRegex(UserError, "expected a JSON object"):
            studies.read_ablation(self.write([]))


if __name__ == "__main__":
    tf.test.main()
