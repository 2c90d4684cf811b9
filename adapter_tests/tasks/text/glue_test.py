"""Tests of glue.py: small files with hand-computed examples, each error, and the row counts of the
real files (where ADAPTER_BERT_DATA names the shared folder)."""

import os

import tensorflow.compat.v1 as tf

import run_classifier
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import glue
from adapter_tests.support import mutations
from adapter_tests.support.file_cases import (
    FileTestCase,
    as_tuples,
    make_features,
    tiny_tokenizer,
)
from adapter_tests.support.shared import SHARED, needs_shared

MNLI_ROW = "{}\tp\tq\tgenre\tb1\tb2\tp1\tp2\t{}\t{}"
XNLI_DEV_ROW = "{}\t{}\tx\tx\tx\tx\t{}\t{}\t12"
STSB_HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
STSB_ROW = "0\tmain-news\tMSRvid\t2012test\t24\tnone\tnone\tOne.\tTwo."

# By task and split: the file's name, its content, and the expected examples.
EXPECTED = {
    ("cola", "train"): (
        "train.tsv",
        "gj04\t1\t\tIt rains.\ngj04\t0\t*\tRains it.\n",
        [("train-0", "It rains.", None, "1"), ("train-1", "Rains it.", None, "0")],
    ),
    ("cola", "dev"): (
        "dev.tsv",
        "gj04\t0\t*\tRains it.",
        [("dev-0", "Rains it.", None, "0")],
    ),
    ("cola", "test"): (
        "test.tsv",
        "index\tsentence\n0\tIt snows.\n1\tSnows.\n",
        [("test-1", "It snows.", None, "0"), ("test-2", "Snows.", None, "0")],
    ),
    ("mrpc", "train"): (
        "train.tsv",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t" One "\tOne "\n'
        "0\t9\t10\tTwo\tThree\n",
        [("train-1", '" One "', 'One "', "1"), ("train-2", "Two", "Three", "0")],
    ),
    ("mrpc", "dev"): (
        "dev.tsv",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n0\t7\t8\tOne\tTwo\r\n",
        [("dev-1", "One", "Two", "0")],
    ),
    ("mrpc", "test"): (
        "test.tsv",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tOne\tTwo\n",
        [("test-1", "One", "Two", "0")],
    ),
    ("mnli", "train"): (
        "train.tsv",
        MNLI_ROW.format("index", "sentence1", "sentence2")
        + "\tlabel1\tgold_label\n"
        + MNLI_ROW.format("31193", "One.", "Two.")
        + "\tneutral\tentailment\n",
        [("train-31193", "One.", "Two.", "entailment")],
    ),
    ("mnli", "dev"): (
        "dev_matched.tsv",
        MNLI_ROW.format("index", "sentence1", "sentence2")
        + "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
        + MNLI_ROW.format("4", "One.", "Two.")
        + "\tentailment\tentailment\tentailment\tneutral\tneutral\tneutral\n",
        [("dev_matched-4", "One.", "Two.", "neutral")],
    ),
    ("mnli", "test"): (
        "test_matched.tsv",
        MNLI_ROW.format("index", "sentence1", "sentence2")
        + "\n"
        + MNLI_ROW.format("9", "One.", "Two.")
        + "\n",
        [("test-9", "One.", "Two.", "contradiction")],
    ),
    ("mnli", "dev_mismatched"): (
        "dev_mismatched.tsv",
        MNLI_ROW.format("index", "sentence1", "sentence2")
        + "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
        + MNLI_ROW.format("5", "One.", "Two.")
        + "\tneutral\tneutral\tneutral\tneutral\tneutral\tentailment\n",
        [("dev_mismatched-5", "One.", "Two.", "entailment")],
    ),
    ("mnli", "test_mismatched"): (
        "test_mismatched.tsv",
        MNLI_ROW.format("index", "sentence1", "sentence2")
        + "\n"
        + MNLI_ROW.format("8", "One.", "Two.")
        + "\n",
        [("test_mismatched-8", "One.", "Two.", "contradiction")],
    ),
    ("sst-2", "train"): (
        "train.tsv",
        'sentence\tlabel\na "fine" film \t1\ndull \t0\n',
        [("train-1", 'a "fine" film ', None, "1"), ("train-2", "dull ", None, "0")],
    ),
    ("sst-2", "dev"): (
        "dev.tsv",
        "sentence\tlabel\ndull \t0\n",
        [("dev-1", "dull ", None, "0")],
    ),
    ("sst-2", "test"): (
        "test.tsv",
        "index\tsentence\n0\ta film\n",
        [("test-1", "a film", None, "0")],
    ),
    ("sts-b", "train"): (
        "train.tsv",
        STSB_HEADER + "\tscore\n" + STSB_ROW + "\t3.800\n",
        [("train-1", "One.", "Two.", "3.800")],
    ),
    ("sts-b", "dev"): (
        "dev.tsv",
        STSB_HEADER + "\tscore\n" + STSB_ROW + "\t0\n",
        [("dev-1", "One.", "Two.", "0")],
    ),
    ("sts-b", "test"): (
        "test.tsv",
        STSB_HEADER + "\n" + STSB_ROW + "\n",
        [("test-1", "One.", "Two.", "0")],
    ),
    ("qqp", "train"): (
        "train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t1\t2\tWho?\tWhat?\t1\n"
        "8\t1\tWho?\n9\t3\t4\tHow?\tWhy?\t0\n",
        [("train-1", "Who?", "What?", "1"), ("train-3", "How?", "Why?", "0")],
    ),
    ("qqp", "dev"): (
        "dev.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t1\t2\tWho?\tWhat?\t0\n",
        [("dev-1", "Who?", "What?", "0")],
    ),
    ("qqp", "test"): (
        "test.tsv",
        "id\tquestion1\tquestion2\n0\tWho?\tWhat?\n",
        [("test-1", "Who?", "What?", "0")],
    ),
    **{
        (task, split): (
            split + ".tsv",
            f"index\t{first}\t{second}"
            + ("\n" if split == "test" else "\tlabel\n")
            + "0\tOne.\tTwo."
            + ("\n" if split == "test" else f"\t{label}\n"),
            [(split + "-1", "One.", "Two.", placeholder if split == "test" else label)],
        )
        for task, first, second, label, placeholder in (
            ("qnli", "question", "sentence", "not_entailment", "entailment"),
            ("rte", "sentence1", "sentence2", "not_entailment", "entailment"),
            ("wnli", "sentence1", "sentence2", "1", "0"),
        )
        for split in ("train", "dev", "test")
    },
    ("ax", "test"): (
        "diagnostic.tsv",
        "index\tsentence1\tsentence2\n0\tOne.\tTwo.\n",
        [("test-1", "One.", "Two.", "contradiction")],
    ),
    ("xnli", "train"): (
        "multinli/multinli.train.zh.tsv",
        "premise\thypo\tlabel\n他来了\t他走了\tcontradictory\n甲\t乙\tneutral\n",
        [("train-1", "他来了", "他走了", "contradiction"), ("train-2", "甲", "乙", "neutral")],
    ),
    ("xnli", "dev"): (
        "xnli.dev.tsv",
        "\n".join(
            [
                XNLI_DEV_ROW.format("language", "gold_label", "sentence1", "sentence2"),
                XNLI_DEV_ROW.format("ar", "neutral", "x", "y"),
                XNLI_DEV_ROW.format("zh", "entailment", "甲", "乙"),
            ]
        ),
        [("dev-2", "甲", "乙", "entailment")],
    ),
}

LABELS = {
    "cola": ["0", "1"],
    "mrpc": ["0", "1"],
    "mnli": ["contradiction", "entailment", "neutral"],
    "xnli": ["contradiction", "entailment", "neutral"],
    "ax": ["contradiction", "entailment", "neutral"],
    "sst-2": ["0", "1"],
    "sts-b": [],
    "qqp": ["0", "1"],
    "qnli": ["entailment", "not_entailment"],
    "rte": ["entailment", "not_entailment"],
    "wnli": ["0", "1"],
}

# As the tasks' pages say, and as GLUE's leaderboard ranks.
SCORES = {
    **dict.fromkeys(LABELS, "accuracy"),
    "cola": "matthews",
    "ax": "matthews",
    "mrpc": "f1",
    "qqp": "f1",
    "sts-b": "spearman",
}


class TableTest(FileTestCase):
    def test_main_scores_match_the_leaderboard(self):
        self.assertEqual({name: task.score for name, task in glue.TASKS.items()}, SCORES)

    def test_every_split_of_every_task_is_tested(self):
        splits = {(name, split) for name, task in glue.TASKS.items() for split in task.splits}
        self.assertEqual(splits, set(EXPECTED))

    def test_every_split_gives_the_expected_examples(self):
        for (task_name, split), (file_name, content, expected) in EXPECTED.items():
            with self.subTest(task=task_name, split=split):
                folder = os.path.join(self.folder, task_name)
                self.write(os.path.join(task_name, file_name), content)
                processor = glue.get_processor(task_name)
                examples = processor.get_examples(split, folder)
                self.assertEqual(as_tuples(examples), expected)

    def test_named_processors_read_their_task(self):
        classes = {
            "cola": glue.ColaProcessor,
            "mnli": glue.MnliProcessor,
            "mrpc": glue.MrpcProcessor,
            "xnli": glue.XnliProcessor,
        }
        for task_name, processor in classes.items():
            file_name, content, expected = EXPECTED[task_name, "dev"]
            self.write(os.path.join(task_name, file_name), content)
            examples = processor().get_dev_examples(os.path.join(self.folder, task_name))
            self.assertEqual(as_tuples(examples), expected)

    def test_subclass_can_define_its_own_labels(self):
        class SignProcessor(glue.ColaProcessor):
            def get_labels(self):
                return ["plus", "minus"]

        self.write("train.tsv", "x\tminus\t\tfirst\nx\tplus\t\tsecond\n")
        self.write("test.tsv", "index\tsentence\n0\tthird\n")
        processor = SignProcessor()
        examples = processor.get_train_examples(self.folder)
        self.assertEqual([example.label for example in examples], ["minus", "plus"])
        (unknown,) = processor.get_test_examples(self.folder)
        self.assertEqual(unknown.label, "plus")

    def test_processors_return_the_labels_of_their_task(self):
        self.assertEqual(set(LABELS), set(glue.TASKS))
        for task_name, labels in LABELS.items():
            self.assertEqual(glue.get_processor(task_name).get_labels(), labels)

    def test_task_names_ignore_case_and_separators(self):
        for given, name in (
            ("MrPc", "MRPC"),
            ("sst-2", "SST-2"),
            ("SST2", "SST-2"),
            ("stsb", "STS-B"),
            ("STS_b", "STS-B"),
        ):
            self.assertEqual(glue.get_processor(given).task.name, name)

    def test_unknown_task_name_suggests_similar_names(self):
        self.assert_refused(
            ["--task_name=spam", "CoLA, SST-2, MRPC, STS-B"], glue.get_processor, "spam"
        )
        others = ["airline", "sms_spam", "custom"]
        for given, nearest in (
            ("MRCP", "name is MRPC "),
            ("mprc", "name is MRPC "),
            ("sst_3", "name is SST-2 "),
            ("MLNI", "name is MNLI "),
            ("NLI", "names are XNLI, WNLI, QNLI "),
            ("sms-span", "name is sms_spam "),
            ("custm", "name is custom "),
        ):
            with self.assertRaisesRegex(UserError, f"--task_name={given} .*{nearest}") as caught:
                glue.get_processor(given, others)
            self.assertNotIn("QQP", str(caught.exception))

    def test_xnli_processor_reads_its_language(self):
        self.write("multinli/multinli.train.ar.tsv", "premise\thypo\tlabel\nx\ty\tneutral\n")
        self.write("xnli.dev.tsv", EXPECTED["xnli", "dev"][1])
        processor = glue.XnliProcessor()
        processor.language = "ar"
        self.assertEqual(
            as_tuples(processor.get_train_examples(self.folder)),
            [("train-1", "x", "y", "neutral")],
        )
        self.assertEqual(
            as_tuples(processor.get_dev_examples(self.folder)), [("dev-1", "x", "y", "neutral")]
        )

    def test_language_missing_from_file_is_refused(self):
        path = self.write("xnli.dev.tsv", EXPECTED["xnli", "dev"][1])
        processor = glue.XnliProcessor()
        processor.language = "fr"
        self.assert_refused(
            [path, "found the languages ar, zh", "expected fr"],
            processor.get_dev_examples,
            self.folder,
        )

    def test_split_missing_from_the_task_is_refused(self):
        self.assert_refused(
            ["XNLI has no test split", "train, dev"],
            glue.XnliProcessor().get_test_examples,
            self.folder,
        )

    def test_tasks_of_berts_script_have_its_processors(self):
        for name, processor in (
            ("CoLA", run_classifier.ColaProcessor),
            ("MNLI", run_classifier.MnliProcessor),
            ("MRPC", run_classifier.MrpcProcessor),
            ("XNLI", run_classifier.XnliProcessor),
        ):
            self.assertIs(type(glue.get_processor(name)), processor)

    def test_mismatched_split_without_a_file_is_skipped(self):
        self.write("dev_mismatched.tsv", "")
        processor = glue.MnliProcessor()
        self.assertEqual(processor.splits_of("dev", self.folder), ["dev", "dev_mismatched"])
        with self.assertLogs("absl", "INFO") as log:
            self.assertEqual(processor.splits_of("test", self.folder), ["test"])
        self.assertIn(f"{self.folder} has no test_mismatched.tsv", log.output[0])

    def test_base_class_methods_raise_not_implemented_error(self):
        processor = glue.DataProcessor()
        for split in ("train", "dev", "test"):
            with self.assertRaises(NotImplementedError):
                getattr(processor, f"get_{split}_examples")(self.folder)
        with self.assertRaises(NotImplementedError):
            processor.get_labels()


MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


class RefusedRowsTest(FileTestCase):
    """Checks the errors of a task's reader and the locations that they name."""

    def assert_split_refused(self, parts, processor, split, file_name, content):
        path = self.write(file_name, content)
        read = getattr(processor(), f"get_{split}_examples")
        self.assert_refused([path + part for part in parts[:1]] + parts[1:], read, self.folder)

    def test_missing_data_dir_is_refused(self):
        read = glue.MrpcProcessor().get_train_examples
        self.assert_refused(["--data_dir is required", "train.tsv"], read, None)
        self.assert_refused(["--data_dir is required", "train.tsv"], read, "")
        missing = os.path.join(self.folder, "nowhere")
        self.assert_refused(
            [os.path.join(missing, "train.tsv"), "neither does its folder", "--data_dir"],
            read,
            missing,
        )

    def test_row_with_too_few_columns_is_refused(self):
        self.assert_split_refused(
            [", line 3: found 4 columns", "at least 5 columns"],
            *(glue.MrpcProcessor, "train", "train.tsv"),
            MRPC_HEADER + "1\t1\t2\ta\tb\n1\t1\t2\ta b\n",
        )

    def test_row_without_its_last_label_column_is_refused(self):
        # Ten columns hold both texts.
        header, row, _ = EXPECTED["mnli", "train"][1].split("\n")
        self.assert_split_refused(
            [", line 2: found 10 columns", "at least 12 columns"],
            *(glue.MnliProcessor, "train", "train.tsv"),
            header + "\n" + "\t".join(row.split("\t")[:10]),
        )

    def test_file_with_wrong_separator_is_refused(self):
        self.assert_split_refused(
            [", line 1: found 1 columns", "at least 4 columns"],
            *(glue.ColaProcessor, "dev", "dev.tsv"),
            "gj04,1,,It rains.\n",
        )

    def test_blank_line_between_rows_is_refused(self):
        self.assert_split_refused(
            [", line 2: found a blank line"],
            *(glue.ColaProcessor, "train", "train.tsv"),
            "gj04\t1\t\ta\n\ngj04\t1\t\tb\n",
        )

    def test_blank_lines_at_the_end_are_ignored(self):
        self.write("train.tsv", "gj04\t1\t\ta\r\n\r\n\n")
        examples = glue.ColaProcessor().get_train_examples(self.folder)
        self.assertEqual(as_tuples(examples), [("train-0", "a", None, "1")])

    def test_unknown_label_is_refused(self):
        self.assert_split_refused(
            [", line 3: found the label '2'", "expected one of 0, 1"],
            *(glue.MrpcProcessor, "dev", "dev.tsv"),
            MRPC_HEADER + "1\t1\t2\ta\tb\n2\t1\t2\ta\tb\n",
        )
        self.assert_split_refused(
            [", line 2: found the label '-'", "contradiction, entailment, neutral"],
            *(glue.MnliProcessor, "dev", "dev_matched.tsv"),
            EXPECTED["mnli", "dev"][1].rpartition("\t")[0] + "\t-\n",
        )

    def test_empty_file_is_refused(self):
        for content in ("", "\n\n"):
            self.assert_split_refused(
                [": found an empty file"], glue.ColaProcessor, "train", "train.tsv", content
            )

    def test_file_with_only_a_header_is_refused(self):
        self.assert_split_refused(
            [": found only a header"], glue.MrpcProcessor, "train", "train.tsv", MRPC_HEADER
        )

    def test_file_without_its_header_is_refused(self):
        cases = [
            (glue.MrpcProcessor, "train", "train.tsv", "1\t7\t8\ta\tb\n0\t7\t8\ta\tb\n"),
            (glue.MrpcProcessor, "test", "test.tsv", "0\t7\t8\ta\tb\n1\t7\t8\ta\tb\n"),
            (glue.ColaProcessor, "test", "test.tsv", "0\ta\n1\tb\n"),
            (
                *(glue.XnliProcessor, "train", "multinli/multinli.train.zh.tsv"),
                "a\tb\tcontradictory\na\tb\tneutral\n",
            ),
        ]
        for case in cases:
            self.assert_split_refused([", line 1: found the columns ", "a header"], *case)

    def test_unexpected_header_is_refused(self):
        sst2, stsb = (lambda: glue.get_processor("SST-2")), (lambda: glue.get_processor("STS-B"))
        mnli, cola = glue.MnliProcessor, glue.ColaProcessor
        for parts, processor, split, file_name, content in (
            (
                [", line 1: found the columns 'text', 'label'", "once: sentence, label."],
                *(sst2, "train", "train.tsv", "text\tlabel\na fine day\t1\n"),
            ),
            (
                [", line 1: ", "once: #1 String (or sentence1), #2 String (or sentence2)."],
                *(glue.MrpcProcessor, "test", "test.tsv", "index\tone\ttwo\n0\ta\tb\n"),
            ),
            (
                [", line 3: found 3 columns, expected 2"],
                *(sst2, "train", "train.tsv", "sentence\tlabel\na\t1\n1\ta\tfine\n"),
            ),
            (
                [", line 3: found a byte order mark"],
                *(sst2, "test", "test.tsv", "index\tsentence\n0\ta\n\ufeffsentence\tidx\nb\t0\n"),
            ),
            (
                [", line 1: found the columns 'sentence', 'sentence'"],
                *(sst2, "test", "test.tsv", "sentence\tsentence\na\tb\n"),
            ),
            (
                [", line 1: ", "'gold_label', 'label'"],
                mnli,
                *("train", "train.tsv", "premise\thypothesis\tgold_label\tlabel\na\tb\tc\td\n"),
            ),
            (
                [", line 1: found the label 'accepted'", "no header"],
                *(cola, "train", "train.tsv", "id\taccepted\tmark\ttext\ngj04\t1\t\ta\n"),
            ),
            (
                [", line 2: found 3 columns, expected 2"],  # R writes row names without a header.
                *(sst2, "test", "test.tsv", "index\tsentence\n1\t0\ta\n2\t1\tb\n"),
            ),
            (
                [", line 3: found the header again"],
                *(sst2, "test", "test.tsv", "index\tsentence\n0\ta\nindex\tsentence\n0\tb\n"),
            ),
            (
                [", line 2: found the label '1'", "contradiction, entailment"],  # In which order?
                *(mnli, "train", "train.tsv", "premise\thypothesis\tlabel\na\tb\t1\n"),
            ),
            *(
                (
                    [f", line 2: found the label '{label}', expected a number from 0 to 5"],
                    stsb,
                    *("dev", "dev.tsv", f"sentence1\tsentence2\tlabel\na\tb\t{label}\n"),
                )
                for label in ("-1", "5.1", "nan")
            ),
        ):
            with self.subTest(parts[0]):
                self.assert_split_refused(parts, processor, split, file_name, content)

    def test_headers_of_the_hub_are_read_by_name(self):
        for name, split, file, content, expected in (
            ("sst-2", "test", "test", "sentence\tlabel\tidx\na fine day\t-1\t0\n", "a fine day"),
            ("sst-2", "dev", "dev", "idx\tsentence\tlabel\n0\ta fine day\t1\n", "a fine day||1"),
            ("cola", "train", "train", "sentence\tlabel\tidx\nA b.\t1\t0\nB a.\t0\t1\n", "A b.||1"),
            # As pandas writes it, without the Hub's index and with one of its own.
            ("sst-2", "train", "train", 'sentence\tlabel\n"a ""b"""\t1\n', 'a "b"||1'),
            (
                *("rte", "dev", "dev"),
                '\tsentence1\tsentence2\tlabel\n0\t"a ""b"""\tc\tentailment\n',
                'a "b"|c|entailment',
            ),
            ("cola", "dev", "dev", "source\tlabel\tmark\tsentence\ngj04\t1\t\tA\n", "A||1"),
            ("cola", "test", "test", "sentence\tlabel\tidx\nA b.\t-1\t0\n", "A b."),
            ("mrpc", "train", "train", "sentence1\tsentence2\tlabel\tidx\na\tb\t1\t0\n", "a|b|1"),
            ("mrpc", "test", "test", "label\tidx\tsentence2\tsentence1\n0\t0\tb\ta\n", "a|b"),
            (
                "sts-b",
                "train",
                "train",
                "sentence1\tsentence2\tlabel\tidx\na\tb\t5.0\t0\n",
                "a|b|5.0",
            ),
            ("sts-b", "test", "test", "sentence1\tsentence2\tlabel\tidx\na\tb\t-1\t0\n", "a|b"),
            ("qqp", "dev", "dev", "question1\tquestion2\tlabel\tidx\na\tb\t1\t0\n", "a|b|1"),
            ("qqp", "test", "test", "question1\tquestion2\tlabel\tidx\na\tb\t-1\t0\n", "a|b"),
            (
                *("mnli", "dev", "dev_matched"),
                "premise\thypothesis\tlabel\tidx\na\tb\tneutral\t0\n",
                "a|b|neutral",
            ),
            (
                *("mnli", "test_mismatched", "test_mismatched"),
                "idx\tpremise\thypothesis\tlabel\n0\ta\tb\t-1\n",
                "a|b",
            ),
            ("qnli", "test", "test", "question\tsentence\tlabel\tidx\na\tb\t-1\t0\n", "a|b"),
            (
                "rte",
                "dev",
                "dev",
                "sentence1\tsentence2\tlabel\na\tb\tentailment\n",
                "a|b|entailment",
            ),
            ("wnli", "test", "test", "sentence1\tsentence2\tlabel\tidx\na\tb\t-1\t0\n", "a|b"),
            ("ax", "test", "diagnostic", "premise\thypothesis\tlabel\tidx\na\tb\t-1\t0\n", "a|b"),
        ):
            with self.subTest(task=name, split=split):
                folder = os.path.join(self.folder, name)
                self.write(os.path.join(name, file + ".tsv"), content)
                first = glue.get_processor(name).get_examples(split, folder)[0]
                text_a, text_b, label, *_ = [*expected.split("|"), "", ""]
                self.assertEqual((first.text_a, first.text_b), (text_a, text_b or None))
                if split in ("train", "dev"):
                    self.assertEqual(first.label, label)

    def test_another_index_than_the_submissions_is_warned_of(self):
        for content in ("index\tsentence\n0\ta\n2\tb\n", "sentence\tidx\na\t0\nb\t2\n"):
            path = self.write("test.tsv", content)
            with self.assertLogs("absl", "WARNING") as log:
                glue.ColaProcessor().get_test_examples(self.folder)
            self.assertIn(f"{path}: row 1 has the index '2'", log.output[0])


@needs_shared
class SharedDataTest(tf.test.TestCase):
    def glue(self, *parts):
        return os.path.join(SHARED, "data", "glue", *parts)

    def test_shared_files_have_the_expected_row_counts(self):
        # Sizes from data/README.md for train and MNLI, otherwise as published by GLUE.
        counts = {
            ("CoLA", "train"): 8551,
            ("CoLA", "dev"): 1043,
            ("CoLA", "test"): 1063,
            ("MRPC", "train"): 3668,
            ("MRPC", "dev"): 408,
            ("MRPC", "test"): 1725,
            ("MNLI", "train"): 240,
            ("MNLI", "dev"): 240,
            ("SST-2", "train"): 67349,
            ("SST-2", "dev"): 872,
            ("SST-2", "test"): 1821,
            ("STS-B", "train"): 5749,
            ("STS-B", "dev"): 1500,
            ("STS-B", "test"): 1379,
            ("QNLI", "train"): 160,
            ("QNLI", "dev"): 5463,
            ("QNLI", "test"): 5463,
            ("QQP", "train"): 160,
            ("QQP", "dev"): 160,
            ("AX", "test"): 1104,
        }
        for (task_name, split), count in counts.items():
            task = glue.TASKS[task_name.lower()]
            examples = glue.read_examples(task, split, self.glue(task.folder or task.name))
            self.assertLen(examples, count)


def rows_of(task, split):
    """Returns the bytes of a valid file for a `glue.Split`."""
    names = (split.text_a, split.text_b, split.label, split.language)
    columns = split.columns or ("other", *(name for name in names if name))
    lines = [] if split.columns else ["\t".join(columns)]
    for row in range(30):
        fields = {name: f"the dog {row} sees {name}" for name in columns}
        if split.label is not None:
            fields[split.label] = task.labels[row % len(task.labels)] if task.labels else "2.5"
        if split.language is not None:
            fields[split.language] = task.language
        lines.append("\t".join(fields.values()))
    return ("\n".join(lines) + "\n").encode()


class DamagedFilesTest(tf.test.TestCase):
    def test_a_tasks_damaged_files_are_read_or_refused(self):
        tokenizer = tiny_tokenizer()
        for task in glue.TASKS.values():
            contents = {
                split.file.format(language=task.language): rows_of(task, split)
                for split in task.splits.values()
            }

            def read(folder, task=task):
                processor = glue.get_processor(task.name)
                for stage in sorted({name.split("_")[0] for name in task.splits}):
                    for split in processor.splits_of(stage, folder):
                        make_features(processor, split, folder, tokenizer)

            with self.subTest(task.name):
                mutations.check(contents, read)
