"""Tests of glue.py: small files with hand-computed examples, each error, and the row counts of the
real files (where ADAPTER_BERT_DATA names the shared folder)."""

import os
import tracemalloc

import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import run_classifier
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import glue
from adapter_tests.support import mutations
from adapter_tests.support.file_cases import FileTestCase, make_features, tiny_tokenizer
from adapter_tests.support.shared import SHARED, needs_shared

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

# In all tables below, "|" stands for a tab.
MRPC = "#1 ID|#2 ID|#1 String|#2 String"
STSB = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
STSB_ROW = "0|main-news|MSRvid|2012test|24|none|none|One.|Two."
MNLI = "index|promptID|pairID|genre|b1|b2|p1|p2|sentence1|sentence2"
MNLI_ROW = "31193|p|q|genre|b1|b2|p1|p2|One.|Two."
MNLI_TRAIN = f"{MNLI}|label1|gold_label\n{MNLI_ROW}|neutral|entailment\n"
MNLI_DEV = f"{MNLI}|label1|label2|label3|label4|label5|gold_label\n{MNLI_ROW}" + 5 * "|entailment"
XNLI_DEV = (
    "language|gold_label|x|x|x|x|sentence1|sentence2|n\n"
    "ar|neutral|-|-|-|-|x|y|1\nzh|entailment|-|-|-|-|甲|乙|2"
)

# By task: a row of train.tsv and dev.tsv, one of test.tsv, their texts, and the first one's label.
UNIFORM = {
    "cola": ("gj04|1|*|It rains.", "index|sentence\n0|It rains.\n", "It rains.", "1"),
    "mrpc": (
        f'\ufeffQuality|{MRPC}\r\n1|7|8|" One "|One "\r\n',
        f'index|{MRPC}\n0|7|8|" One "|One "\n',
        *('" One "|One "', "1"),
    ),
    "sst-2": (
        *('sentence|label\na "fine" film |1\n', 'index|sentence\n0|a "fine" film \n'),
        *('a "fine" film ', "1"),
    ),
    "sts-b": (
        *(f"{STSB}|score\n{STSB_ROW}|3.800\n", f"{STSB}\n{STSB_ROW}\n"),
        *("One.|Two.", "3.800"),
    ),
    "qqp": (
        "id|qid1|qid2|question1|question2|is_duplicate\n7|1|2|Who?|What?|1\n",
        "id|question1|question2\n0|Who?|What?\n",
        *("Who?|What?", "1"),
    ),
    **{
        task: (
            f"index|{names}|label\n0|One.|Two.|{label}\n",
            f"index|{names}\n0|One.|Two.\n",
            *("One.|Two.", label),
        )
        for task, names, label in (
            ("qnli", "question|sentence", "not_entailment"),
            ("rte", "sentence1|sentence2", "not_entailment"),
            ("wnli", "sentence1|sentence2", "1"),
        )
    },
}

# By task and split: the file's content, and the expected examples.
EXPECTED = {
    ("mnli", "train"): (MNLI_TRAIN, ["train-31193|One.|Two.|entailment"]),
    ("mnli", "dev"): (f"{MNLI_DEV}|neutral\n", ["dev_matched-31193|One.|Two.|neutral"]),
    ("mnli", "test"): (f"{MNLI}\n{MNLI_ROW}\n", ["test-31193|One.|Two.|contradiction"]),
    ("mnli", "dev_mismatched"): (
        *(f"{MNLI_DEV}|neutral\n", ["dev_mismatched-31193|One.|Two.|neutral"]),
    ),
    ("mnli", "test_mismatched"): (
        *(f"{MNLI}\n{MNLI_ROW}\n", ["test_mismatched-31193|One.|Two.|contradiction"]),
    ),
    ("ax", "test"): (
        *("index|sentence1|sentence2\n0|One.|Two.\n", ["test-1|One.|Two.|contradiction"]),
    ),
    ("xnli", "train"): (
        "premise|hypo|label\n他来了|他走了|contradictory\n甲|乙|neutral\n",
        ["train-1|他来了|他走了|contradiction", "train-2|甲|乙|neutral"],
    ),
    ("xnli", "dev"): (XNLI_DEV, ["dev-2|甲|乙|entailment"]),
}
for name, (labelled, unlabelled, row, label) in UNIFORM.items():
    number = int(name != "cola")  # CoLA's files have no header.
    for split in ("train", "dev"):
        EXPECTED[name, split] = labelled, [f"{split}-{number}|{row}|{label}"]
    EXPECTED[name, "test"] = unlabelled, [f"test-1|{row}|{(LABELS[name] or ['0'])[0]}"]

# Tables of the Hugging Face Hub: the first example's texts and label.
HUB = (
    ("sst-2", "test", "sentence|label|idx\na fine day|-1|0", "a fine day|0"),
    ("sst-2", "dev", "idx|sentence|label\n0|a fine day|1", "a fine day|1"),
    ("cola", "train", "sentence|label|idx\nA b.|1|0\nB a.|0|1", "A b.|1"),
    # As pandas writes it, without the Hub's index and with one of its own.
    ("sst-2", "train", 'sentence|label\n"a ""b"""|1', 'a "b"|1'),
    ("rte", "dev", '|sentence1|sentence2|label\n0|"a ""b"""|c|entailment', 'a "b"|c|entailment'),
    ("cola", "dev", "source|label|mark|sentence\ngj04|1||A", "A|1"),
    ("cola", "test", "sentence|label|idx\nA b.|-1|0", "A b.|0"),
    ("mrpc", "train", "sentence1|sentence2|label|idx\na|b|1|0", "a|b|1"),
    ("mrpc", "test", "label|idx|sentence2|sentence1\n0|0|b|a", "a|b|0"),
    ("sts-b", "train", "sentence1|sentence2|label|idx\na|b|5.0|0", "a|b|5.0"),
    ("sts-b", "test", "sentence1|sentence2|label|idx\na|b|-1|0", "a|b|0"),
    ("qqp", "dev", "question1|question2|label|idx\na|b|1|0", "a|b|1"),
    ("qqp", "test", "question1|question2|label|idx\na|b|-1|0", "a|b|0"),
    ("mnli", "dev", "premise|hypothesis|label|idx\na|b|neutral|0", "a|b|neutral"),
    ("mnli", "test_mismatched", "idx|premise|hypothesis|label\n0|a|b|-1", "a|b|contradiction"),
    ("qnli", "test", "question|sentence|label|idx\na|b|-1|0", "a|b|entailment"),
    ("rte", "dev", "sentence1|sentence2|label\na|b|entailment", "a|b|entailment"),
    ("wnli", "test", "sentence1|sentence2|label|idx\na|b|-1|0", "a|b|0"),
    ("ax", "test", "premise|hypothesis|label|idx\na|b|-1|0", "a|b|contradiction"),
)

REFUSED = (
    ("mrpc", "train", f"Quality|{MRPC}\n1|1|2|a|b\n1|1|2|a b\n", ", line 3: found 4 columns"),
    # Ten columns hold both texts of MNLI.
    ("mnli", "train", MNLI_TRAIN.rpartition("|neutral|")[0], "at least 12 columns"),
    ("cola", "dev", "gj04,1,,It rains.\n", ", line 1: found 1 columns"),  # Commas.
    ("cola", "train", "gj04|1||a\n\ngj04|1||b\n", ", line 2: found a blank line"),
    ("mrpc", "dev", f"Quality|{MRPC}\n2|1|2|a|b\n", ", line 2: found the label '2', expected one"),
    ("mnli", "dev", f"{MNLI_DEV}|-\n", "contradiction, entailment, neutral"),
    ("cola", "train", "", ": found an empty file"),
    ("cola", "train", "\n\n", ": found an empty file"),
    ("mrpc", "train", f"Quality|{MRPC}\n", ": found only a header"),
    ("mrpc", "train", "1|7|8|a|b\n0|7|8|a|b\n", ", line 1: found the columns "),
    ("mrpc", "test", "0|7|8|a|b\n1|7|8|a|b\n", ", line 1: found the columns "),
    ("cola", "test", "0|a\n1|b\n", ", line 1: found the columns "),
    ("xnli", "train", "a|b|contradictory\na|b|neutral\n", ", line 1: found the columns "),
    ("sst-2", "train", "text|label\na fine day|1\n", "'text', 'label'"),
    ("sst-2", "train", "text|label\na fine day|1\n", "once: sentence, label."),
    (
        "mrpc",
        "test",
        "index|one|two\n0|a|b\n",
        "#1 String (or sentence1), #2 String (or sentence2).",
    ),
    ("sst-2", "train", "sentence|label\na|1\n1|a|fine\n", ", line 3: found 3 columns, expected 2"),
    (
        *("sst-2", "test", "index|sentence\n0|a\n\ufeffsentence|idx\nb|0\n"),
        ", line 3: found a byte order mark",
    ),
    ("sst-2", "test", "sentence|sentence\na|b\n", "'sentence', 'sentence'"),
    ("mnli", "train", "premise|hypothesis|gold_label|label\na|b|c|d\n", "'gold_label', 'label'"),
    ("cola", "train", "id|accepted|mark|text\ngj04|1||a\n", "(this file has no header)"),
    # R writes row names without a header.
    ("sst-2", "test", "index|sentence\n1|0|a\n2|1|b\n", ", line 2: found 3 columns, expected 2"),
    ("sst-2", "test", "index|sentence\n0|a\nindex|sentence\n0|b\n", ", line 3: found the header"),
    ("mnli", "train", "premise|hypothesis|label\na|b|1\n", "the label '1'"),  # In which order?
    *(
        ("sts-b", "dev", f"sentence1|sentence2|label\na|b|{label}\n", "a number from 0 to 5")
        for label in ("-1", "5.1", "nan")
    ),
)


def as_row(example):
    parts = example.guid, example.text_a, example.text_b, example.label
    return "|".join(part for part in parts if part is not None)


class GlueTestCase(FileTestCase, parameterized.TestCase):
    def write_split(self, task_name, split, content):
        """Writes a split's file; returns (its path, the task's processor)."""
        task = glue.TASKS[task_name]
        name = task.splits[split].file.format(language=task.language)
        return self.write(name, content.replace("|", "\t")), glue.get_processor(task_name)


class ExamplesTest(GlueTestCase):
    def test_main_scores_match_the_leaderboard(self):
        self.assertEqual({name: task.score for name, task in glue.TASKS.items()}, SCORES)

    def test_every_split_of_every_task_is_tested(self):
        splits = {(name, split) for name, task in glue.TASKS.items() for split in task.splits}
        self.assertEqual(splits, set(EXPECTED))

    def test_files_have_their_published_names(self):
        """The other tests write each split where `TASKS` says."""
        mnli, xnli = glue.TASKS["mnli"].splits, glue.TASKS["xnli"].splits
        self.assertEqual(
            [mnli[split].file for split in ("train", "dev", "test")],
            ["train.tsv", "dev_matched.tsv", "test_matched.tsv"],
        )
        for split in ("dev_mismatched", "test_mismatched"):
            self.assertEqual(mnli[split].file, split + ".tsv")
        self.assertEqual(xnli["dev"].file, "xnli.dev.tsv")
        self.assertEqual(xnli["train"].file, "multinli/multinli.train.{language}.tsv")
        self.assertEqual(glue.TASKS["ax"].splits["test"].file, "diagnostic.tsv")
        for name in UNIFORM:
            for split in ("train", "dev", "test"):
                self.assertEqual(glue.TASKS[name].splits[split].file, split + ".tsv")

    @parameterized.parameters(*((*key, *value) for key, value in EXPECTED.items()))
    def test_every_split_gives_the_expected_examples(self, task_name, split, content, expected):
        _, processor = self.write_split(task_name, split, content)
        self.assertEqual(list(map(as_row, processor.get_examples(split, self.folder))), expected)

    def test_examples_are_numbered_by_line_and_short_rows_of_qqp_skipped(self):
        rows = "7|1|2|Who?|What?|1\n8|1|Who?\n9|3|4|How?|Why?|0\n"
        header = "id|qid1|qid2|question1|question2|is_duplicate\n"
        _, processor = self.write_split("qqp", "train", header + rows)
        self.assertEqual(
            list(map(as_row, processor.get_train_examples(self.folder))),
            ["train-1|Who?|What?|1", "train-3|How?|Why?|0"],
        )

    def test_columns_that_are_not_read_take_no_memory(self):
        rows = [f"{i}|a|b|{i:02000d}|neutral" for i in range(2000)]  # 4 MB.
        header = "index|sentence1|sentence2|sentence1_parse|gold_label"
        _, processor = self.write_split("mnli", "train", "\n".join([header, *rows]))
        tracemalloc.start()
        examples = processor.get_train_examples(self.folder)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.assertLen(examples, 2000)
        self.assertLess(peak, 2e6)

    def test_blank_lines_at_the_end_are_ignored(self):
        _, processor = self.write_split("cola", "train", "gj04|1||a\r\ngj04|0|*|b\r\n\r\n\n")
        examples = processor.get_train_examples(self.folder)
        self.assertEqual(list(map(as_row, examples)), ["train-0|a|1", "train-1|b|0"])

    @parameterized.parameters(*HUB)
    def test_headers_of_the_hub_are_read_by_name(self, task_name, split, content, expected):
        _, processor = self.write_split(task_name, split, content + "\n")
        first = processor.get_examples(split, self.folder)[0]
        self.assertEqual(as_row(first).partition("|")[2], expected)

    def test_another_index_than_the_submissions_is_warned_of(self):
        for content in ("index|sentence\n0|a\n2|b\n", "sentence|idx\na|0\nb|2\n"):
            path, processor = self.write_split("cola", "test", content)
            with self.assertLogs("absl", "WARNING") as log:
                processor.get_test_examples(self.folder)
            self.assertIn(f"{path}: row 1 has the index '2'", log.output[0])

    @parameterized.parameters(*REFUSED)
    def test_invalid_files_are_refused(self, task_name, split, content, part):
        path, processor = self.write_split(task_name, split, content)
        parts = [path + part] if part[0] in ",:" else [path, part]
        self.assert_refused(parts, processor.get_examples, split, self.folder)


class ProcessorsTest(GlueTestCase):
    def test_subclass_can_define_its_own_labels(self):
        class SignProcessor(glue.ColaProcessor):
            def get_labels(self):
                return ["plus", "minus"]

        self.write_split("cola", "train", "x|minus||first\nx|plus||second\n")
        self.write_split("cola", "test", "index|sentence\n0|third\n")
        processor = SignProcessor()
        examples = processor.get_train_examples(self.folder)
        self.assertEqual([example.label for example in examples], ["minus", "plus"])
        (unknown,) = processor.get_test_examples(self.folder)
        self.assertEqual(unknown.label, "plus")

    def test_processors_return_the_labels_of_their_task(self):
        found = {name: glue.get_processor(name).get_labels() for name in glue.TASKS}
        self.assertEqual(found, LABELS)

    def test_task_names_ignore_case_and_separators(self):
        names = {"MrPc": "MRPC", "sst-2": "SST-2", "SST2": "SST-2", "STS_b": "STS-B"}
        for given, name in names.items():
            self.assertEqual(glue.get_processor(given).task.name, name)

    @parameterized.parameters(
        ("MRCP", "name is MRPC "),
        ("mprc", "name is MRPC "),
        ("sst_3", "name is SST-2 "),
        ("MLNI", "name is MNLI "),
        ("NLI", "names are XNLI, WNLI, QNLI "),
        ("sms-span", "name is sms_spam "),
        ("custm", "name is custom "),
    )
    def test_unknown_task_name_suggests_similar_names(self, given, nearest):
        with self.assertRaisesRegex(UserError, f"--task_name={given} .*{nearest}") as caught:
            glue.get_processor(given, ["airline", "sms_spam", "custom"])
        self.assertNotIn("QQP", str(caught.exception))

    def test_name_unlike_any_task_lists_all(self):
        parts = ["--task_name=spam", "CoLA, SST-2, MRPC, STS-B"]
        self.assert_refused(parts, glue.get_processor, "spam")

    def test_xnli_processor_reads_its_language(self):
        self.write("multinli/multinli.train.ar.tsv", "premise\thypo\tlabel\nx\ty\tneutral\n")
        path, processor = self.write_split("xnli", "dev", XNLI_DEV)
        processor.language = "ar"
        for split in ("train", "dev"):
            (example,) = processor.get_examples(split, self.folder)
            self.assertEqual(as_row(example), f"{split}-1|x|y|neutral")
        processor.language = "fr"
        parts = [path, "found the languages ar, zh", "expected fr"]
        self.assert_refused(parts, processor.get_dev_examples, self.folder)

    def test_split_missing_from_the_task_is_refused(self):
        parts = ["XNLI has no test split", "train, dev"]
        self.assert_refused(parts, glue.XnliProcessor().get_test_examples, self.folder)

    def test_tasks_of_berts_script_have_its_processors(self):
        for name in ("Cola", "Mnli", "Mrpc", "Xnli"):
            processor = getattr(run_classifier, name + "Processor")
            self.assertIs(type(glue.get_processor(name)), processor)

    def test_mismatched_split_without_a_file_is_skipped(self):
        _, processor = self.write_split("mnli", "dev_mismatched", "")
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

    def test_missing_data_dir_is_refused(self):
        read = glue.MrpcProcessor().get_train_examples
        for missing in (None, ""):
            self.assert_refused(["--data_dir is required", "train.tsv"], read, missing)
        missing = os.path.join(self.folder, "nowhere")
        self.assert_refused([missing, "neither does its folder"], read, missing)


@needs_shared
class SharedDataTest(tf.test.TestCase):
    def test_shared_files_have_the_expected_row_counts(self):
        # Sizes from data/README.md for train and MNLI, otherwise as published by GLUE.
        counts = {
            "cola": {"train": 8551, "dev": 1043, "test": 1063},
            "mrpc": {"train": 3668, "dev": 408, "test": 1725},
            "mnli": {"train": 240, "dev": 240},
            "sst-2": {"train": 67349, "dev": 872, "test": 1821},
            "sts-b": {"train": 5749, "dev": 1500, "test": 1379},
            "qnli": {"train": 160, "dev": 5463, "test": 5463},
            "qqp": {"train": 160, "dev": 160},
            "ax": {"test": 1104},
        }
        for name, expected in counts.items():
            task = glue.TASKS[name]
            folder = os.path.join(SHARED, "data", "glue", task.folder or task.name)
            found = {split: len(glue.read_examples(task, split, folder)) for split in expected}
            self.assertEqual(found, expected)


class DamagedFilesTest(GlueTestCase):
    @parameterized.parameters(*LABELS)
    def test_damaged_files_are_read_or_refused(self, name):
        task, tokenizer = glue.TASKS[name], tiny_tokenizer()
        for split in task.splits:
            self.write_split(name, split, EXPECTED[name, split][0])

        def read(folder):
            processor = glue.get_processor(name)
            for stage in sorted({split.split("_")[0] for split in task.splits}):
                for split in processor.splits_of(stage, folder):
                    make_features(processor, split, folder, tokenizer)

        mutations.check(mutations.files_in(self.folder), read)
