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
    def test_table_1_means_match_the_paper(self):
        means = [np.mean(list(row.scores.values())) for row in published.TABLE_1]
        self.assertAllClose(means, [82.0, 81.5, 81.1], atol=0.05)

    def test_table_2_averages_match_the_paper(self):
        for name, average in (
            ("no_bert", 72.7),
            ("full", 73.7),
            ("variable", 74.0),
            ("adapters", 73.3),
        ):
            values = [getattr(row, name)[0] for row in published.TABLE_2.values()]
            self.assertAllClose(np.mean(values), average, atol=0.1, msg=name)

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
        for ours, theirs in zip(published.TABLE_1, read_rows("table1_glue_test.tsv")):
            self.assertEqual([f"{value:.1f}" for value in ours.scores.values()], theirs[3:-1])
            self.assertEqual([ours.total.replace("×", "x"), ours.trained], theirs[1:3])
        rows = read_rows("table2_further_tasks.tsv")[:-1]
        self.assertLen(rows, len(published.TABLE_2))
        for ours, theirs in zip(published.TABLE_2.values(), rows):
            values = [value for pair in ours[1:] for value in pair if value is not None]
            self.assertEqual([f"{value:.1f}" for value in values], theirs[1:], ours.title)
