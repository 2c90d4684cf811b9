"""Drives the page in headless Chromium by keyboard alone: light and dark, down to 360 pixels."""

import contextlib
import dataclasses
import os
import shutil
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("starlette", reason="requirements-serving.txt is not installed")
pytest.importorskip("playwright", reason="requirements-dev.txt is not installed")

# isort: split
from playwright import sync_api

from adapter_bert.formats import task_adapter
from adapter_tests.support import own_models, served, servers

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TEXT = "the big dog sees the man"
PRESENTATIONS = {
    "sms": task_adapter.Presentation({"spam": "advertising"}, ("text",), {"text": TEXT}),
    "stars": task_adapter.Presentation({}, ("text", "text_b"), {"text": TEXT, "text_b": "a cat"}),
    "squad": task_adapter.Presentation(
        example={"question": "who", "context": "\U0001f600 man " + TEXT + "."}
    ),
    "topics": task_adapter.Presentation(
        {}, ("text", "text_b"), examples=({"text": TEXT, "text_b": "a"}, {"text": "b"})
    ),
    "names": task_adapter.Presentation({"PER": "a person"}, (), {"text": TEXT}),
}

SCORES = {"eval_accuracy": 0.98634}


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
class ServingPageTest(served.ServedTestCase):
    NAMES = ()

    def setUp(self):
        super().setUp()
        bert, adapters = served.prepare()
        names = own_models.build_task_adapter(
            bert, 9, task="names", kind="tagging", labels=("O", "B-PER", "I-PER")
        )
        for name, adapter in {**adapters, "names": names}.items():
            presentation = PRESENTATIONS.get(name, task_adapter.Presentation())
            description = dataclasses.replace(
                adapter.description, presentation=presentation, scores=SCORES
            )
            folder = os.path.join(self.root, name, "adapter")
            task_adapter.save(folder, adapter._replace(description=description))
        self.tasks.start()
        self.tasks.update()
        self.url = self.serve()

    def serve(self, *options):
        """Starts a server; returns its address."""
        api = self.api(mock.Mock(self.bank, predict=self.predict), *options)
        server = servers.serving(api.application(), stop_seconds=1)
        self.addCleanup(server.__exit__, None, None, None)
        return f"http://127.0.0.1:{server.__enter__()}/"

    def predict(self, rows, return_errors=False):
        """Returns fixed answers, so that the text on the page is known."""
        return [self.answer(self.bank.describe(row.task).kind, row) for row in rows]

    def answer(self, kind, row):
        at_token = np.zeros(len(row.input_ids), np.float32)
        at_token[-3] = 9.0  # The token "man", which "." and [SEP] follow.
        return {
            "classification": {"probabilities": np.array([0.25, 0.75, 0.0], np.float32)},
            "multilabel": {"probabilities": np.array([0.875, 0.125], np.float32)},
            "regression": {"prediction": 2.5},
            "span": {"start_logits": at_token, "end_logits": at_token},
            "tagging": {"tag_ids": np.array([0, 0, 1, 2] + [0] * 9)[: len(row.input_ids)]},
        }[kind]

    @contextlib.contextmanager
    def page(self, scheme, width):
        with sync_api.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            errors = []
            page.on("pageerror", lambda error: errors.append(error))
            page.goto(self.url)
            page.wait_for_selector("option", state="attached")
            yield page
            browser.close()
            self.assertEqual(errors, [])

    def test_late_answer_is_not_shown_under_another_task(self):
        with self.page("light", 900) as page:
            page.select_option("#task", "sms")
            page.evaluate("void (later = new Promise((resolve) => { answer = resolve; }))")
            page.evaluate("void (realCall = call)")
            page.evaluate("void (call = async (...sent) => (await later, realCall(...sent)))")
            page.focus("textarea")
            page.keyboard.press("Control+Enter")
            page.select_option("#task", "stars")
            page.evaluate("answer()")
            page.focus("textarea")
            page.keyboard.press("Control+Enter")
            page.wait_for_selector("#result .note")
            self.assertIn("2.500", page.inner_text("#result"))

    def test_button_shows_the_next_example(self):
        with self.page("light", 900) as page:
            page.select_option("#task", "topics")
            for expected in ([TEXT, "a"], ["b", ""], [TEXT, "a"]):
                fields = page.locator("textarea")
                self.assertEqual([fields.nth(i).input_value() for i in range(2)], expected)
                page.click("#example")

    def test_page_without_tasks_shows_no_fields(self):
        with self.page("light", 900) as page:
            for task in self.tasks.served.current():
                self.tasks.remove(task.name)
            page.evaluate("load()")
            page.wait_for_selector("#result p")
            page.click("#example")
            self.assertEqual(page.locator("textarea").count(), 0)

    def test_labels_and_scores_are_shown_before_a_question(self):
        with self.page("light", 900) as page:
            page.select_option("#task", "sms")
            facts = page.inner_text("#facts").split("\n")
            self.assertIn("spam: advertising", facts)
            self.assertIn("ham", facts)
            self.assertRegex(page.inner_text("#scores"), r"eval_accuracy\s+0\.9863")
            self.assertTrue(page.is_hidden("#access"))
            page.click("text=API")
            page.wait_for_url("**/openapi.json")

    def test_each_line_may_be_a_text(self):
        for width in (360, 900):
            with self.page("light", width) as page:
                page.select_option("#task", "sms")
                page.check("#lines")
                page.fill("#text", "a dog\n\nthe cat\n")
                page.keyboard.press("Control+Enter")
                page.wait_for_selector("#answers")
                rows = page.locator("#answers tbody tr")
                expected = [["a dog", "spam: advertising", "75.0%"]]
                expected.append(["the cat", *expected[0][1:]])
                for row, texts in zip(rows.all(), expected):
                    self.assertEqual(row.inner_text().split(), " ".join(texts).split())
                self.assertEqual(rows.count(), 2)
                self.assertFalse(page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    def test_fields_with_lines_go_together(self):
        with self.page("light", 900) as page:
            page.check("#lines")
            page.select_option("#task", "topics")
            areas = [page.input_value(name) for name in ("#text", "#text_b")]
            self.assertEqual(areas, [f"{TEXT}\nb", "a"])  # All examples.
            for first, second, asked in (
                ("a\nb", "c\nd", [{"text": "a", "text_b": "c"}, {"text": "b", "text_b": "d"}]),
                ("a\nb", "c", [{"text": "a", "text_b": "c"}, {"text": "b", "text_b": "c"}]),
                (
                    "a\n\nb\n",
                    "c\n\nd",
                    [{"text": "a", "text_b": "c"}, {"text": "b", "text_b": "d"}],
                ),
            ):
                page.fill("#text", first)
                page.fill("#text_b", second)
                self.assertEqual(page.evaluate("instances()"), asked)
            page.fill("#text_b", "c\nd")
            page.keyboard.press("Control+Enter")
            page.wait_for_selector("#result .error")
            self.assertIn("numbers of lines: 3 and 2", page.inner_text("#result"))

    def test_token_is_asked_for_if_there_is_one(self):
        with self.page("light", 900) as page:
            page.goto(self.serve("secret"))
            page.wait_for_selector("#access")
            self.assertIn("requires its access token", page.inner_text("#result"))
            page.fill("#token", "secret")
            page.click("#reload")
            page.wait_for_selector("option", state="attached")
            page.click("button[type=submit]")
            page.wait_for_selector("#result .note")
            self.assertIn("Authorization", page.text_content("#curl"))

    def test_each_task_kind_works_by_keyboard_alone(self):
        expected = {
            "names": ["big dog", "PER: a person"],
            "sets": ["x", "87.5%"],
            "sms": ["spam: advertising", "75.0%"],
            "squad": ["man", "Probability"],
            "stars": ["2.500"],
            "topics": ["b", "75.0%"],
        }
        num_fields = {"sms": 1, "names": 1}
        for scheme, width in (("light", 360), ("dark", 360), ("light", 900)):
            with self.page(scheme, width) as page:
                for _ in range(2):  # The link to the API comes first.
                    page.keyboard.press("Tab")
                for index, (name, parts) in enumerate(sorted(expected.items())):
                    with self.subTest(f"{name} {scheme} {width}"):
                        if index:
                            page.focus("#task")
                            page.keyboard.press("ArrowDown")
                        self.assertEqual(page.input_value("#task"), name)
                        self.assertEqual(page.locator("textarea").count(), num_fields.get(name, 2))
                        page.keyboard.press("Tab")
                        page.keyboard.press("Control+Enter")
                        page.wait_for_selector("#result .note")
                        shown = page.inner_text("#result")
                        for part in parts:
                            self.assertIn(part, shown)
                        self.assertIn(f"/v1/models/{name}:predict'", page.text_content("#curl"))
                        overflow = "document.documentElement.scrollWidth > innerWidth"
                        self.assertFalse(page.evaluate(overflow))
                        if name in ("squad", "names"):
                            marked = page.locator("mark").first.inner_text()
                            self.assertStartsWith(marked, parts[0])
                        if name == "squad":  # The last "man", not the first.
                            before = "document.querySelector('mark').previousSibling.textContent"
                            self.assertEndsWith(page.evaluate(before), "sees the ")
                none = "described('constructor', {label_descriptions: {}})"
                self.assertEqual(page.evaluate(none), "constructor")
