"""Tests of request_texts.py: ids and answers equal hand-made ones and those of BERT's code."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.formats import task_adapter
from adapter_bert.serving.inference import request_texts
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.squad import squad_data, squad_features
from adapter_tests.support import tiny
from adapter_tests.support.task_adapters import description

CLS, SEP = tiny.VOCABULARY.index("[CLS]"), tiny.VOCABULARY.index("[SEP]")


def ids(text):
    return [tiny.VOCABULARY.index(word) for word in text.split()]


class TaskTextsTest(parameterized.TestCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = os.path.join(tempfile.mkdtemp(dir=tf.test.get_temp_dir()), "vocab.txt")
        with open(path, "w") as writer:
            writer.write("\n".join(tiny.VOCABULARY) + "\n")
        cls.tokenizers = request_texts.Tokenizers(path)

    def texts(self, max_text_length=100, **changes):
        fields = {"vocabulary": task_adapter.digest(tiny.VOCABULARY), "max_seq_length": 16}
        about = description(**{**fields, **changes})
        reading = request_texts.TextEncoding(tiny.config(), self.tokenizers, max_text_length)
        return request_texts.TaskTexts(about, reading, "Task mine")

    def span(self, max_seq_length=12, **training):
        settings = {"doc_stride": 3, "max_query_length": 4, **training}
        return self.texts(
            10000, kind="span", labels=(), max_seq_length=max_seq_length, training=settings
        )

    def test_texts_bare_strings_and_pairs_are_encoded(self):
        texts = self.texts()
        self.assertEqual(texts.fields, ("text", "text_b"))
        row = ([CLS, *ids("the dog"), SEP], [0] * 4)
        self.assertEqual(texts.encode({"text": "The dog"}).rows, [row])
        self.assertEqual(texts.encode("the dog").rows, [row])
        pair = texts.encode({"text": "the dog", "text_b": "a cat ."}).rows
        expected = [CLS, *ids("the dog"), SEP, *ids("a cat ."), SEP], [0] * 4 + [1] * 4
        self.assertEqual(pair, [expected])

    def test_instances_must_have_the_fields_of_the_task(self):
        both, one = ("text", "text_b"), ("text",)
        for fields, instances in (
            (both, ("a dog", {"text": "a dog"}, {"text_b": "a dog"})),
            (one, ({"text": "a dog", "text_b": "a cat"}, {"text_b": "a dog"})),
        ):
            texts = self.texts(presentation=task_adapter.Presentation(fields=fields))
            self.assertEqual(texts.fields, fields)
            texts.encode(dict.fromkeys(fields, "a dog"))
            for instance in instances:
                expected = f"expected .*{' and '.join(fields)}, or input_ids"
                with self.subTest(instance), self.assertRaisesRegex(UserError, expected):
                    texts.encode(instance)

    def test_long_texts_are_truncated_as_in_training(self):
        texts = self.texts(max_seq_length=6)
        (row,) = texts.encode("a dog sees a cat and a bird").rows
        self.assertEqual(row[0], [CLS, *ids("a dog sees a"), SEP])
        (row,) = texts.encode({"text": "a", "text_b": "dog sees cat"}).rows
        self.assertEqual(row[0], [CLS, *ids("a"), SEP, *ids("dog sees"), SEP])

    def test_tokenizer_follows_do_lower_case_of_the_task(self):
        (row,) = self.texts(do_lower_case=False).encode("The dog").rows
        self.assertEqual(row[0], [CLS, tiny.VOCABULARY.index("[UNK]"), *ids("dog"), SEP])

    def test_long_context_is_split_into_windows(self):
        question = {"question": "who sees", "context": "The dog Sees a cat and a Bird. "}
        asked = self.span().encode(question)
        start = [CLS, *ids("who sees".replace("who", "[UNK]")), SEP]
        context = ids("the dog sees a cat and a bird .")
        self.assertEqual(
            asked.rows,
            [
                (start + context[:7] + [SEP], [0] * 4 + [1] * 8),
                (start + context[3:] + [SEP], [0] * 4 + [1] * 7),
            ],
        )
        # The best span is "a bird", the fourth and fifth context token of the second window.
        logits = np.zeros([2, 2, 12], np.float32)
        logits[1, 0, 4 + 3], logits[1, 1, 4 + 4] = 9, 9
        outputs = [
            {"start_logits": start[: len(row)], "end_logits": end[: len(row)]}
            for (row, _), (start, end) in zip(asked.rows, logits)
        ]
        answer = asked.decode(outputs)
        self.assertEqual(answer["answer"], "a Bird")
        self.assertEqual((answer["start"], answer["end"]), (23, 29))
        self.assertGreater(answer["probability"], 0.9)

    def test_windows_equal_training_features(self):
        context = "the dog sees a cat and a bird . the old man hears the young woman ."
        example = squad_data.SquadExample("", "a dog", context.split())
        features = []
        tokenizer = self.tokenizers.get(True)
        squad_features.convert_examples_to_features(
            [example], tokenizer, 12, 3, 4, False, features.append
        )
        found = self.span().encode({"question": "a dog", "context": context}).rows
        self.assertEqual(
            [ids + [0] * (12 - len(ids)) for ids, _ in found], [f.input_ids for f in features]
        )

    def test_answer_is_the_original_context_from_start_to_end(self):
        for part in ("the\ndog  sees . the cat", "the\u202fdog\tsees . the cat", "the\r\n\r\ncat"):
            context = f" the cat,\U0001f600 {part}."
            asked = self.span(24).encode({"question": "who", "context": context})
            ((row, _),) = asked.rows
            tokens = [tiny.VOCABULARY[token] for token in row]
            *_, the, cat = (i for i, token in enumerate(tokens) if token in ("the", "cat"))
            first = max(i for i, token in enumerate(tokens[:the]) if token == "[UNK]") + 1
            for start, expected in ((the, part[part.rindex("the") :]), (first, part)):
                logits = np.zeros([2, len(row)], np.float32)
                logits[0, start] = logits[1, cat] = 9
                answer = asked.decode([{"start_logits": logits[0], "end_logits": logits[1]}])
                self.assertEqual(answer["answer"], expected)
                self.assertEqual(context[answer["start"] : answer["end"]], expected)
                self.assertEqual(answer["start"], context.rindex(expected))

    def test_repeated_answer_has_the_offsets_of_its_tokens(self):
        for context, starts in (
            ("the cat,the cat,the cat", (4, 12, 20)),
            ("\u5317cat\u5317cat\u5317cat", (1, 5, 9)),  # Ideographs separate words.
            ("cat\u3000Cat\u00a0cat", (0, 4, 8)),
            ("(cat\u0301-cat-c\u00e1t)", (1, 6, 10)),
        ):
            asked = self.span(24).encode({"question": "who", "context": context})
            ((row, _),) = asked.rows
            positions = [i for i, id in enumerate(row) if tiny.VOCABULARY[id] == "cat"]
            for position, start in zip(positions, starts):
                logits = np.eye(len(row), dtype=np.float32)[position] * 9
                answer = asked.decode([{"start_logits": logits, "end_logits": logits}])
                self.assertEqual((answer["start"], len(positions)), (start, 3), context)
                self.assertEqual(context[answer["start"] : answer["end"]], answer["answer"])

    def test_best_null_answer_is_returned_as_empty_text(self):
        asked = self.span(version_2_with_negative=True).encode(
            {"question": "a", "context": "the dog"}
        )
        logits = np.array([9, 0, 0, 0, 0, 0], np.float32)
        found = asked.decode([{"start_logits": logits, "end_logits": logits}])
        self.assertEqual((found["answer"], found["start"], found["end"]), ("", 0, 0))
        self.assertGreater(found["probability"], 0.9)

    def test_recorded_answer_settings_select_the_answer(self):
        start, end = np.array([[9, 0, 0, 2, 1, 0], [9, 0, 0, 1, 2, 0]], np.float32)
        for answers, expected in (
            ({}, ""),
            ({"null_score_diff_threshold": 16.5}, "the dog"),
            ({"null_score_diff_threshold": 16.5, "max_answer_length": 1}, "the"),
        ):
            texts = self.span(version_2_with_negative=True, answers=answers)
            asked = texts.encode({"question": "a", "context": "the dog"})
            found = asked.decode([{"start_logits": start, "end_logits": end}])
            self.assertEqual(found["answer"], expected)
        for answers in ([], {"max_answer_length": 0}, {"null_score_diff_threshold": "1"}):
            with self.assertRaisesRegex(UserError, "^Task mine: training.answers"):
                self.span(answers=answers)

    def test_answer_is_empty_if_no_span_is_valid(self):
        asked = self.span(40).encode({"question": "a", "context": "dog " * 36})
        ((row, _),) = asked.rows
        rising = np.arange(len(row), dtype=np.float32)
        found = asked.decode([{"start_logits": rising, "end_logits": -rising}])
        self.assertEqual(found, {"answer": "", "probability": 0.0, "start": 0, "end": 0})

    def test_context_with_too_many_windows_is_refused(self):
        texts = self.span(doc_stride=1)
        with self.assertRaisesRegex(UserError, "context has 1,0.. windows; expected at most 1,024"):
            texts.encode({"question": "a", "context": "a " * 1050})

    def test_input_ids_replace_texts(self):
        row = [CLS, *ids("a dog"), SEP]
        texts = self.texts()
        self.assertEqual(texts.encode({"input_ids": row}).rows, [(row, [0] * 4)])
        padded = {
            "input_ids": row + [0, 0],
            "input_mask": [1] * 4 + [0, 0],
            "segment_ids": [0, 0, 1, 1, 0, 0],
        }
        asked = texts.encode(padded)
        self.assertEqual(asked.rows, [(row, [0, 0, 1, 1])])
        found = asked.decode([{"probabilities": np.array([0.25, 0.75], np.float32)}])
        self.assertEqual(found["label"], "1")
        logits = {"start_logits": np.arange(4.0), "end_logits": np.zeros(4)}
        found = self.span().encode({"input_ids": row}).decode([logits])
        self.assertEqual(found, {"start_logits": [0, 1, 2, 3], "end_logits": [0] * 4})

    @parameterized.parameters(
        (7, "expected an object with text"),
        ({}, "found nothing; expected text"),
        ({"text_b": "a"}, "found text_b; expected text"),
        ({"text": "a", "txt_b": "b"}, "found text, txt_b; expected text"),
        ({"text": ["a"]}, "text is not a string"),
        ({"text": "a", "text_b": None}, "text_b is not a string"),
        ({"text": "a" * 101}, "101 characters; expected at most 100"),
        ({"input_ids": "1"}, "input_ids is not a list of integers"),
        ({"input_ids": [1, True]}, "input_ids is not a list of integers"),
        ({"input_ids": []}, "input_ids has 0 values; expected 1 to 40"),
        ({"input_ids": [1] * 41}, "input_ids has 41 values; expected 1 to 40"),
        ({"input_ids": [1, 99]}, "values from 1 to 99; expected 0 to 22"),
        ({"input_ids": [1], "segment_ids": [2]}, "expected 0 to 1"),
        ({"input_ids": [1], "segment_ids": [0, 0]}, "segment_ids has 2 values"),
        ({"input_ids": [1, 1], "input_mask": [0, 1]}, "input_mask must be ones"),
        ({"input_ids": [1], "text": "a"}, "found 'text'; expected only input_ids"),
    )
    def test_invalid_instances_are_refused(self, instance, pattern):
        with self.assertRaisesRegex(UserError, pattern):
            self.texts().encode(instance)

    @parameterized.parameters(
        ("a", "expected an object with question and context"),
        ({"question": "a"}, "found question; expected question and context"),
        ({"question": "a", "context": " \n"}, "context has no words"),
    )
    def test_invalid_questions_are_refused(self, instance, pattern):
        with self.assertRaisesRegex(UserError, pattern):
            self.span().encode(instance)

    @parameterized.parameters(
        ({"vocabulary": "0123"}, "^Task mine was .* vocabulary, whose digest is '0123'"),
        ({"max_seq_length": 41}, "^Task mine has max_seq_length 41; expected 4 to 40"),
        ({"max_seq_length": 3}, "max_seq_length 3; expected 4 to 40"),
        ({"kind": "span", "max_seq_length": 40}, "^Task mine: .*no room for a paragraph"),
        ({"kind": "span", "training": {"doc_stride": "3"}}, "doc_stride is '3'"),
        ({"kind": "span", "training": {"max_query_length": 0}}, "max_query_length is 0"),
    )
    def test_unusable_tasks_are_refused(self, changes, pattern):
        with self.assertRaisesRegex(UserError, pattern):
            self.texts(**changes)
