"""Tests of published.py against the paper's means and, with the shared folder, its tables."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.paper import published
from adapter_bert.tasks.text.custom_tasks import LAYOUTS
from adapter_bert.tasks.text.glue import TASKS
from adapter_tests.support.shared import SHARED, needs_shared


def read_rows(name):
    with open(os.path.join(SHARED, "paper", name), encoding="utf-8") as reader:
        return [line.split("\t") for line in reader.read().splitlines()[1:]]


class PublishedTest(tf.test.TestCase):
    def test_means_match_the_paper(self):
        for method, of_table_1, of_table_2 in (
            ("no-BERT baseline", None, 72.7),
            ("full fine-tuning", 82.0, 73.7),
            ("variable fine-tuning", None, 74.0),
            (published.BEST_SIZE, 81.5, None),
            ("adapters 64", 81.1, None),
            ("adapters", None, 73.3),
        ):
            for names, expected in ((published.GLUE, of_table_1), (published.TABLE_2, of_table_2)):
                scores = published.scores(method)
                found = [scores[task][0] for task in names if task in scores]
                self.assertEqual(bool(found), expected is not None)
                if found:
                    self.assertAllClose(np.mean(found), expected, atol=0.1, msg=method)

    def test_task_names_match_supported_tasks(self):
        self.assertEqual(set(published.TABLE_2), set(LAYOUTS))
        names = {name.split("-m")[0] for name in published.GLUE}
        self.assertEqual(names, {task.name for task in TASKS.values()} - {"AX", "XNLI"})

    def test_glue_samples_have_titles_and_count_as_glue(self):
        for task, title, is_glue in (
            ("mnli_9k", "MNLI (9k rows)", True),
            ("qqp_9k", "QQP (9k rows)", True),
            ("stsb_2k", "STS-B (2k rows)", True),
            ("MNLI", "MNLI", True),
            ("mails_9k", "mails_9k", False),
            ("sms_spam", "SMS spam", False),
        ):
            self.assertEqual((published.title(task), published.is_glue(task)), (title, is_glue))

    def test_tasks_sort_in_the_order_of_the_paper(self):
        tasks = ["own", "sms_spam", "WNLI", "MNLI", "qqp_9k", "CoLA", "newsgroups", "QNLI"]
        self.assertEqual(
            sorted(tasks, key=published.sort_key),
            ["CoLA", "qqp_9k", "MNLI", "QNLI", "WNLI", "newsgroups", "sms_spam", "own"],
        )

    @needs_shared
    def test_tables_match_the_shared_copies(self):
        costs = published.COSTS_1
        rows = read_rows("table1_glue_test.tsv")
        for method, theirs in zip(costs["total parameters"], rows):
            scores = published.scores(method)
            ours = [f"{scores[task][0]:.1f}" for task in published.GLUE if task in scores]
            self.assertEqual(ours, theirs[3:-1])
            total, trained = (column[method] for column in costs.values())
            self.assertEqual([total.replace("×", "x"), trained], theirs[1:3])
        rows = read_rows("table2_further_tasks.tsv")[:-1]
        self.assertLen(rows, len(published.TABLE_2))
        for (_, *ours), theirs in zip(published.TABLE_2.values(), rows):
            self.assertEqual([f"{value:.1f}" for value in ours], theirs[1:])
