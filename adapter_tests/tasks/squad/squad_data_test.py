"""Tests of squad_data.py: hand-made paragraphs and damaged files."""

import io
import json
import os
from unittest import mock

from absl.testing import parameterized

from adapter_bert.tasks.squad import squad_data
from adapter_tests.support.file_cases import FileTestCase
from adapter_tests.support.squad import CONTEXT, question, squad

GOOD = json.dumps(squad(question()))
UNLABELLED = {"id": "q", "question": "Who?"}
# Contents of a training file, as JSON or as a value, and parts of the refusal.
MALFORMED = (
    ([question()], "no articles", '{"data"'),
    ({}, "no articles"),
    ({"data": {}}, "no articles"),
    (squad(), "no questions", '{"data"'),
    ({"data": [{"paragraphs": []}, ["a"]]}, "paragraphs of article 2"),
    ({"data": [{"paragraphs": [{"qas": []}]}]}, "nothing as context of paragraph 1 of"),
    (squad(question(), context=7), "found 7 as context of paragraph 1 of article 1,"),
    (squad({"id": "q", "answers": []}), "nothing as question of question q"),
    (squad(question(), {"question": "Who?"}), "nothing as id of question 2 of paragraph"),
    (squad(question(), question()), "question q1 occurs twice"),
    (squad(question(answers=[])), "q1 has 0 answers", "--version_2_with_negative"),
    (squad(question(answers=[("a", 5), ("a", 5)])), "q1 has 2 answers"),
    (squad(UNLABELLED), "q has 0 answers"),
    (squad({**question(), "answers": [{"text": "cat"}]}), "answer_start"),
    (squad({**question(), "answers": ["cat"]}), "text of an answer of question q1"),
    (GOOD[:-3], "line 1", "JSON"),
    (GOOD.replace(", ", ",\n").replace('"Who', "Who"), "line 4", "JSON"),
    (b"", "line 1", "JSON"),
    (GOOD.encode().replace(b"Who", b"Wh\xff"), "line 1", "not UTF-8"),
    ("[" * 100000, "JSON"),
    (GOOD.replace('"id"', '"id": "q0", "id"'), ': an object has the key "id" twice'),
    (GOOD[:-1] + ', "data": []}', ': an object has the key "data" twice'),
    (GOOD.replace('"q1"', "9" * 5000), "JSON"),
    # Valid JSON to Python, but not to ijson, which has its own messages.
    (GOOD.replace('"t"', "NaN"), "not SQuAD's JSON (", ")."),
    (GOOD.replace('"t"', "1e400"), "not SQuAD's JSON (", ")."),
    (GOOD.replace('"q1"', "9" * 23), "not SQuAD's JSON (", ")."),
)


class ReadTest(FileTestCase, parameterized.TestCase):
    def read(self, content, is_training=True, version_2=False):
        content = content if isinstance(content, (str, bytes)) else json.dumps(content)
        path = self.write("squad.json", content)
        return squad_data.read_squad_examples(path, is_training, version_2_with_negative=version_2)

    def assert_file_refused(self, parts, *args):
        path = os.path.join(self.folder, "squad.json")
        self.assert_refused([path, *parts], self.read, *args)

    def test_words_and_answer_positions_are_read(self):
        cases = (("cat", 4, 1, 1), ("on  the", 12, 3, 4), ("the mat. It", 16, 4, 6), ("a", 5, 1, 1))
        for text, start, first, last in cases:
            (example,) = self.read(squad(question(answers=[(text, start)])))
            self.assertEqual(
                example.doc_tokens, ["The", "cat", "sat", "on", "the", "mat.", "It", "slept."]
            )
            self.assertEqual((example.start_position, example.end_position), (first, last))
            self.assertEqual(example.orig_answer_text, text)
            ends = {"cat": (0, 3), "on  the": (0, 3), "the mat. It": (0, 2), "a": (1, 2)}
            self.assertEqual((example.start_offset, example.end_offset), ends[text])
            self.assertEqual((example.qas_id, example.question_text), ("q1", "Who sat?"))
            self.assertIs(example.is_impossible, False)

    def test_answers_are_not_read_for_predictions(self):
        for answers in ([("cat", 4)], [("dog", 999)], [("a", 5), ("b", 6)], []):
            (example,) = self.read(squad(question(answers=answers)), False)
            self.assertEqual((example.orig_answer_text, example.start_position), (None, None))

    def test_questions_with_misplaced_answers_are_skipped(self):
        wrong = [("dog", 4), ("cat", 12), ("slept.", 999), ("cat", -1), ("", 0)]
        questions = [question(f"q{i}", answers=[answer]) for i, answer in enumerate(wrong)]
        with self.assertLogs("absl", "WARNING") as log:
            found = self.read(squad(*questions, question("last")))
        self.assertEqual([example.qas_id for example in found], ["last"])
        (message,) = log.output
        self.assertIn("squad.json: skipped 5 of 6 questions", message)
        self.assertIn("(such as q0, q1, q2).", message)
        self.assert_file_refused(["skipped 5 of 5 questions", "none remains"], squad(*questions))

    def test_answer_at_its_offset_is_located_whatever_its_spaces(self):
        for context, text, start, expected in (
            ("1 1", " 1", 1, (1, 1, 0, 1)),
            ("a \na a", " \na", 1, (1, 1, 0, 1)),
            ("北 北", "\u3000 北 ", 1, (1, 1, 0, 1)),
            (" The", " The", 0, (0, 0, 0, 3)),
            ("10\u00a0000", "10\u00a0000", 0, (0, 0, 0, 6)),
            ("in (10\u2009000 m)", "10\u2009000 m", 4, (1, 2, 1, 1)),
            ("在東京都\u3000千代田区", "東京都\u3000千代田区", 1, (0, 0, 1, 9)),
            # Only spaces differ.
            ("10\u00a0\u00a0000,", "10 000", 0, (0, 0, 0, 7)),
            ("北京 \n大学在", "北京\u3000大学", 0, (0, 1, 0, 2)),
        ):
            (example,) = self.read(squad(question(answers=[(text, start)]), context=context))
            positions = example.start_position, example.end_position
            found = *positions, example.start_offset, example.end_offset
            self.assertEqual(found, expected, context)

    def test_misplaced_answer_in_words_without_case_is_skipped(self):
        chinese = "王小明在北京出生。他的母亲也在北京工作，后来他去上海，最后回到北京。"
        for context, text, wrong, right in (
            (chinese, "北京", (0, 3, 14, 22, 32), 15),
            ("北京和北京", "北京", (1, 2), 3),
            ("서울과 서울에서", "서울", (1, 3, 5), 4),
            ("ไปกรุงเทพ", "กรุงเทพ", (0, 1, 3), 2),
        ):
            questions = [question(f"q{at}", answers=[(text, at)]) for at in (*wrong, right)]
            found = self.read(squad(*questions, context=context))
            self.assertEqual([example.qas_id for example in found], [f"q{right}"])

    def test_answer_before_the_first_word_is_skipped(self):
        questions = [question("q0", answers=[("The", 0)]), question("q1", answers=[("The", 1)])]
        for context in (" " + CONTEXT, " The"):
            (example,) = self.read(squad(*questions, context=context))
            self.assertEqual((example.qas_id, example.end_position), ("q1", 0))

    def test_impossible_questions_have_no_answer_span(self):
        questions = [
            question("no", answers=[], is_impossible=True),
            question("yes", is_impossible=False),
            question("plausible", is_impossible=True),
            question("no field", answers=[]),
        ]
        found = self.read(squad(*questions), True, True)
        self.assertEqual([example.is_impossible for example in found], [True, False, True, True])
        for example in (found[0], found[2]):
            self.assertEqual(example.start_position, -1)
            self.assertEqual(example.orig_answer_text, "")

    def test_inconsistent_is_impossible_is_refused(self):
        for qa, part in (
            (UNLABELLED, "question q has 0 answers"),
            ({**UNLABELLED, "is_impossible": False}, "question q has 0 answers"),
            ({**UNLABELLED, "is_impossible": "false"}, '"false" as is_impossible of question q'),
            (question(is_impossible=None), "nothing as is_impossible of question q1"),
        ):
            self.assert_file_refused([part], squad(question("q0"), qa), True, True)

    def test_byte_order_mark_is_ignored(self):
        self.assertLen(self.read(b"\xef\xbb\xbf" + json.dumps(squad(question())).encode()), 1)

    def test_empty_context_has_no_words(self):
        (example,) = self.read(squad(question(), context=" \n"), False)
        self.assertEqual(example.doc_tokens, [])

    def test_reading_one_long_text_is_linear(self):
        # ijson reads an unfinished text again with each part, so there must be few parts.
        for text in ("x" * 2**22, "\u5317" * 2**20, "x y\n" * 2**20):
            content = json.dumps(squad(question(answers=[]), context=text)).encode()
            stream = io.BytesIO(content)
            reader = mock.Mock(read=mock.Mock(side_effect=stream.read))
            (article,) = squad_data._items_of_data(reader)
            self.assertEqual(article["paragraphs"][0]["context"], text)
            self.assertLess(reader.read.call_count, 12)  # 64 to 100 of 64 KiB.

    @parameterized.parameters(*MALFORMED)
    def test_malformed_files_are_refused(self, content, *parts):
        self.assert_file_refused(parts, content)

    def test_missing_or_unreadable_file_is_refused(self):
        path = os.path.join(self.folder, "none.json")
        self.assert_refused([path, "No such file"], squad_data.read_squad_examples, path, True)
        os.mkdir(path)
        self.assert_refused([path, "cannot be read"], squad_data.read_squad_examples, path, True)

    def test_answer_texts_are_read_by_question_id(self):
        cats = question("a", answers=[("cat", 4), ("The cat", 0)])
        none = question("b", answers=[])
        for version_2, questions in ((False, [cats]), (True, [cats, none]), (True, [none])):
            path = self.write("squad.json", json.dumps(squad(*questions)))
            found = squad_data.answer_texts(path, version_2)
            expected = {"a": ["cat", "The cat"], "b": []}
            self.assertEqual(found, {qa["id"]: expected[qa["id"]] for qa in questions})

    def test_answer_texts_refuse_missing_or_malformed_answers(self):
        hint = "--version_2_with_negative"
        for version_2, bad, parts in (
            (False, UNLABELLED, ["question q has no answers", "(--do_predict"]),
            (False, question("q", answers=[]), ["question q has no answers", hint]),
            (True, UNLABELLED, ["question q has no answers", "(--do_predict"]),
            (False, {**UNLABELLED, "answers": 5}, ["found 5 as answers of question q"]),
            (True, {**UNLABELLED, "answers": True}, ["found true as answers of question q"]),
            (True, {**UNLABELLED, "answers": [{}]}, ["nothing as text of an answer of question q"]),
        ):
            path = self.write("squad.json", json.dumps(squad(question("good"), bad)))
            self.assert_refused([path, *parts], squad_data.answer_texts, path, version_2)
