"""Tests of tables.py: tables in memory become the same rows as files."""

import datetime

import numpy as np
import pytest
from absl.testing import parameterized

from adapter_bert.tasks import tables
from adapter_tests.support.refusals import RefusalTestCase

ROWS = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
LABELED = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [1], []]}


def values(data, columns=()):
    """Returns the columns of a table in memory, and its rows' values."""
    table = tables.from_memory(data, "train", columns)
    names = range(len(table.columns))
    return table.columns, [[row.fields.get(name) for name in names] for row in table.rows]


class TablesTest(RefusalTestCase, parameterized.TestCase):
    def test_lists_tuples_and_columns_are_the_same_table(self):
        expected = ("text", "label"), [["a", "x"], ["b", "y"]]
        for data in (
            ROWS,
            tuple(ROWS),
            [("a", "x"), ["b", "y"]],
            {"text": ["a", "b"], "label": np.array(["x", "y"])},
        ):
            self.assertEqual(values(data, ("text", "label")), expected)
        table = tables.from_memory(ROWS, "train")
        self.assertEqual(table.where(table.rows[1]), "train, row 1")

    def test_rows_may_lack_keys(self):
        self.assertEqual(values([{"a": 1}, {"b": 2}]), (("a", "b"), [[1, None], [None, 2]]))

    def test_names_are_normalized_as_in_files(self):
        self.assertEqual(values([{"\ufeffcafe\u0301": "a"}])[0], ("caf\u00e9",))

    def test_values_are_those_of_json(self):
        row = [np.str_("a"), np.int64(3), np.float32(0.5), np.bool_(True), False, np.array([1, 2])]
        ((found,),) = [values([dict(enumerate(row))])[1]]
        self.assertEqual(found, ["a", 3, 0.5, "True", "False", [1, 2]])
        self.assertEqual([type(value) for value in found[1:4]], [int, float, str])
        self.assertEqual(values([{"a": {"b": np.arange(2)}}])[1], [[{"b": [0, 1]}]])

    @parameterized.parameters(
        (datetime.date(2020, 1, 2),), (np.datetime64("2020-01-02T00", "ns"),), (b"text",)
    )
    def test_other_values_are_no_text(self, value):
        table = tables.from_memory([{"a": value}], "train")
        parts = ["train, row 0: a is ", "expected a string or a number."]
        self.assert_refused(parts, table.text, table.rows[0], 0)

    @parameterized.parameters(
        ([], "train: the table has no rows."),
        ({}, "train: the table has no rows."),
        ({"text": []}, "train: the table has no rows."),
        (None, "train: found a NoneType; expected a DataFrame, "),
        (3, "train: found a int; expected a DataFrame, "),
        ([("a", "x"), ("b",)], "train, row 1: found ('b',); expected a dict, or text, label."),
        ([*ROWS, "c"], "train, row 2: found 'c'; expected a dict, or text, label."),
        ({"text": ["a"], "label": []}, "the columns differ in length: {'text': 1, 'label': 0}."),
        ({"text": "abc"}, "train: the column text is 'abc'; expected a list."),
        ({"text": None}, "train: the column text is None; expected a list."),
    )
    def test_other_data_is_refused(self, data, part):
        self.assert_refused([part], tables.from_memory, data, "train", ("text", "label"))


class PandasTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.pandas = pytest.importorskip("pandas", reason="Python 3.7 has no pandas of today")

    def test_frame_is_the_same_table(self):
        frame = self.pandas.DataFrame(ROWS, index=[7, 7])
        expected = ("text", "label"), [["a", "x"], ["b", "y"]]
        self.assertEqual(values(frame), expected)
        self.assertEqual(values(frame.astype("category")), expected)
        self.assertEqual(values(frame.astype("string")), expected)
        self.assertEqual(values({name: frame[name] for name in frame}), expected)

    def test_numbers_and_bools_keep_their_types(self):
        frame = self.pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.0], "c": [True, False]})
        self.assertEqual(values(frame)[1], [[1, 0.5, "True"], [2, 1.0, "False"]])

    def test_missing_values_are_blank(self):
        pandas = self.pandas
        for missing in (None, float("nan"), pandas.NA, pandas.NaT):
            for data in (
                pandas.DataFrame({"a": ["x", missing]}),
                pandas.DataFrame({"a": ["x", missing]}, dtype=object),
                [{"a": "x"}, {"a": missing}],
                {"a": ["x", missing]},
            ):
                table = tables.from_memory(data, "train")
                blank = [table.is_blank(row, 0) for row in table.rows]
                self.assertEqual(blank, [False, True], repr(missing))
                parts = ["train, row 1: a is ", "expected a string or a number."]
                self.assert_refused(parts, table.text, table.rows[1], 0)

    def test_times_are_no_texts(self):
        frame = self.pandas.DataFrame({"a": self.pandas.to_datetime(["2020-01-02"])})
        table = tables.from_memory(frame, "train")
        parts = ["train, row 0: a is", "Timestamp", "expected a string or a number."]
        self.assert_refused(parts, table.text, table.rows[0], 0)

    def test_column_that_occurs_twice_is_refused(self):
        frame = self.pandas.DataFrame([["a", "b"]], columns=["text", "text"])
        parts = ["train: the column text occurs twice."]
        self.assert_refused(parts, tables.from_memory, frame, "train")

    def test_dict_of_tables_is_refused(self):
        frame = self.pandas.DataFrame(ROWS)
        parts = ["train: found a dict of tables, train, test; expected one of them"]
        self.assert_refused(parts, tables.from_memory, {"train": frame, "test": frame}, "train")


class ArrowTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.pyarrow = pytest.importorskip("pyarrow", reason="Python 3.7 has no pyarrow of today")

    def test_arrow_table_is_the_same_table(self):
        table = self.pyarrow.table({"text": ["a", "b"], "label": ["x", None]})
        self.assertEqual(values(table), (("text", "label"), [["a", "x"], ["b", None]]))
        twice = self.pyarrow.Table.from_arrays(list(table.columns), ["a", "a"])
        self.assert_refused(
            ["train: the column a occurs twice."], tables.from_memory, twice, "train"
        )

    def test_metadata_of_another_program_is_ignored(self):
        table = self.pyarrow.table({"label": [1]})
        for content in (b"{", b"[]", b'{"info": 3}', b'{"info": {"features": [1]}}'):
            odd = table.replace_schema_metadata({b"huggingface": content})
            self.assertEqual(values(odd)[1], [[1]])

    def test_labels_of_datasets_are_their_names(self):
        datasets = pytest.importorskip("datasets", reason="Python 3.7 has no datasets of today")
        label = datasets.ClassLabel(names=["no", "yes"])
        tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-X"]))
        features = {"text": datasets.Value("string"), "label": label, "tags": tags}
        data = datasets.Dataset.from_dict(LABELED, features=datasets.Features(features))
        expected = [["a", "yes", ["O", "B-X"]], ["b", "no", ["B-X"]], ["c", None, []]]
        for each in (data, data.with_format("numpy"), data.data.table, data.to_iterable_dataset()):
            self.assertEqual(values(each), (("text", "label", "tags"), expected))
