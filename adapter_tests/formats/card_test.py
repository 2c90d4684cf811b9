"""Tests of card.py: reads cards as YAML and Markdown."""

import contextlib
import dataclasses
import io
import json
import os
import re

import numpy as np
import tensorflow.compat.v1 as tf

import convert_checkpoint
import modeling
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.model import configs
from adapter_bert.shell.errors import UserError
from adapter_tests.support import task_adapters


class CardTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(self.get_temp_dir(), "adapter")

    def save(self, **changes):
        adapter = task_adapters.random_adapter(labels=("no", "yes"))
        description = dataclasses.replace(adapter.description, **changes)
        shapes = task_adapter.shapes(description)
        tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        task_adapter.save(self.folder, task_adapter.TaskAdapter(description, tensors))
        return self.read()

    def read(self):
        with open(os.path.join(self.folder, "README.md"), encoding="utf-8") as reader:
            return reader.read()

    def front_matter(self, card):
        """Returns the fields of the YAML, whose values are JSON."""
        match = re.match(r"---\n(.*?)\n---\n", card, re.S)
        fields = dict(line.split(": ", 1) for line in match.group(1).split("\n"))
        return {name: json.loads(value) for name, value in fields.items()}

    def test_save_writes_a_card(self):
        training = {"learning_rate": 3e-4, "random_seed": 7}
        card = self.save(training=training, scores={"eval_accuracy": 0.75, "eval_f1": 0.5})
        fields = self.front_matter(card)
        self.assertNotIn("license", fields)
        self.assertNotRegex(card, "Apache|License")
        self.assertEqual(fields["pipeline_tag"], "text-classification")
        (model,) = fields["model-index"]
        (result,) = model["results"]
        self.assertEqual(result["dataset"], {"name": "MRPC", "type": "MRPC", "split": "dev"})
        metrics = {metric["type"]: metric["value"] for metric in result["metrics"]}
        self.assertEqual(metrics, {"accuracy": 0.75, "f1": 0.5})
        # Head 18, LayerNorms 80, and four adapters with 2 * 4 * 8 + 4 + 8 parameters.
        for part in (
            "| labels | no, yes |",
            f"| size | {18 + 80 + 4 * 76} parameters, 0.0 MB |",
            "f" * 64,
            "random seed 7",
            "| accuracy | 0.7500 |",
            "| learning rate | 0.0003 |",
            "| adapter size | 4 |",
            "python run_classifier.py --adapter=",
            "python serve.py --adapters=",
            "to_adapterhub",
        ):
            self.assertIn(part, card)

    def test_card_has_tag_and_commands_of_the_task_kind(self):
        for kind, labels, tag, script in (
            ("span", (), "question-answering", "run_squad.py"),
            ("tagging", ("O", "B-X", "I-X"), "token-classification", "run_tagger.py"),
            ("regression", (), "text-classification", "run_classifier.py"),
        ):
            card = self.save(kind=kind, labels=labels, scores={})
            self.assertEqual(self.front_matter(card)["pipeline_tag"], tag)
            self.assertIn(f"python {script} ", card)
            self.assertIn("It has not been evaluated.", card)
            self.assertNotIn("model-index", self.front_matter(card))
        self.assertIn("serve.py", card)
        tuning = configs.Tuning("full")
        self.assertNotIn("serve.py", self.save(tuning=tuning, adapter=None))
        adapter = modeling.AdapterConfig(4, placement="normalized", depth=2)
        card = self.save(adapter=adapter)
        self.assertIn("| depth | 2 |", card)
        # The server and AdapterHub do not support this adapter.
        self.assertNotIn("serve.py", card)
        self.assertNotIn("to_adapterhub", card)

    def test_card_names_license_and_examples_that_the_adapter_has(self):
        examples = {"text": "*a*\nb", "text_b": "c"}, {"text": "d", "text_b": "e"}
        card = self.save(
            presentation=task_adapter.Presentation(examples=examples, license="cc-by-4.0")
        )
        self.assertEqual(self.front_matter(card)["license"], "cc-by-4.0")
        self.assertIn("## License\n\ncc-by-4.0. BERT and the data have", card)
        self.assertIn("## Examples\n\n- \\*a\\* b / c\n- d / e\n\n", card)
        self.assertNotIn("## Examples", self.save())

    def test_scores_that_describe_predictions_are_sentences(self):
        scores = {"eval_accuracy": 0.75, "eval_loss": 0.5, "loss": 0.51}
        described = {"eval_majority_accuracy": 0.8, "eval_predicted_labels": 1.0}
        card = self.save(scores={**scores, **described})
        (model,) = self.front_matter(card)["model-index"]
        metrics = [metric["type"] for metric in model["results"][0]["metrics"]]
        self.assertEqual(metrics, ["accuracy", "loss"])
        rows = "| accuracy | 0.7500 |\n| loss | 0.5000 |\n\nAlways predicting the most frequent"
        self.assertIn(rows + " answer: accuracy 0.8000.\n", card)
        self.assertIn("The adapter predicts only one label.", card)
        described["eval_predicted_labels"] = 2.0
        self.assertNotIn("only one label", self.save(scores={**scores, **described}))
        self.assertIn("| loss | 0.5100 |", self.save(scores={"loss": 0.51}))

    def test_card_follows_what_adapterhub_supports(self):
        parallel = modeling.AdapterConfig(4, placement="parallel")
        self.assertIn("to_adapterhub", self.save(adapter=parallel))
        for changes in (
            {"adapter": modeling.AdapterConfig(4, "elu")},
            {"task": "conll.2003"},
        ):
            self.assertNotIn("to_adapterhub", self.save(**changes))

    def test_scores_that_are_not_json_are_left_out_of_the_metadata(self):
        card = self.save(scores={"eval_loss": float("nan"), "eval_f1": 0.5})
        (model,) = self.front_matter(card)["model-index"]
        self.assertEqual(model["results"][0]["metrics"], [{"type": "f1", "value": 0.5}])
        self.assertIn("| loss | nan |", card)

    def test_huge_scores_are_short(self):
        for value, shown in (
            (1e308, "1e+308"),
            (-1.7976931348623157e308, "-1.798e+308"),
            (2.5e15, "2.5e+15"),
            (float("inf"), "inf"),
            (123456789.125, "123456789.1250"),
            (-0.00004, "-0.0000"),
            (1, "1.0000"),
        ):
            card = self.save(scores={"eval_accuracy": value})
            self.assertIn(f"| accuracy | {shown} |", card)
            self.assertLess(max(map(len, card.split("\n"))), 400)
            self.assertIn(
                f"Dev scores: eval_accuracy {shown}", adapter_folders.describe(self.folder, "PATH")
            )

    def test_names_are_escaped(self):
        task = "a | b\x1b[2J\n\n<script>---\nlicense: mit\n# [x](y) `z` é"
        card = self.save(task=task, labels=('"', "|"), training={"a|b": "c\nd"})
        self.assertNotIn("license", self.front_matter(card))
        (model,) = self.front_matter(card)["model-index"]
        self.assertEqual(model["name"], task)
        body = card.split("\n---\n", 1)[1]
        self.assertNotRegex(body, "(?<!\\\\)<script>|\x1b")
        self.assertNotIn("\nlicense", body)
        for line in body.split("\n"):
            if line.startswith("| "):
                self.assertLen(re.findall(r"(?<!\\)\|", line), 3, line)

    def test_card_command_writes_card_for_older_adapters(self):
        card = self.save()
        with self.assertRaisesRegex(UserError, "has a card already; replace it by --overwrite"):
            self.run_main("card", self.folder)
        os.remove(os.path.join(self.folder, "README.md"))
        before = task_adapter.load(self.folder)
        self.assertIn("README.md", self.run_main("card", self.folder))
        self.assertEqual(self.read(), card)
        with open(os.path.join(self.folder, "README.md"), "w") as writer:
            writer.write("mine")
        self.run_main("card", self.folder, "--overwrite")
        self.assertEqual(self.read(), card)
        self.assertEqual(task_adapter.load(self.folder).description, before.description)

    def run_main(self, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            convert_checkpoint.main(list(arguments))
        return output.getvalue()
