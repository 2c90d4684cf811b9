"""Tests of rows.py against rows assembled one by one."""

import types

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.training import rows

CLS, SEP = 101, 102


def row_of(a, b, length):
    """Returns (input_ids, input_mask, segment_ids) as in BERT's script."""
    ids = [CLS, *a, SEP] + ([*b, SEP] if b else [])
    segments = [0] * (len(a) + 2) + [1] * (len(ids) - len(a) - 2)
    padding = [0] * (length - len(ids))
    return ids + padding, [1] * len(ids) + padding, segments + padding


def features_of(padded):
    """Returns the rows as a list of objects with the attributes of BERT's `InputFeatures`."""
    columns = {name: values.tolist() for name, values in padded.items()}
    columns["label_id"] = columns.pop("label_ids")
    return [types.SimpleNamespace(**dict(zip(columns, row))) for row in zip(*columns.values())]


class TextRowsTest(tf.test.TestCase):
    TOKENS = np.arange(200, 220)
    # Start and length of a and of b; the second and third row share their b.
    SLICES = [(0, 3, 3, 0), (3, 2, 10, 4), (5, 1, 10, 4), (7, 0, 8, 1), (0, 0, 0, 0)]

    def rows(self):
        arrays = dict(zip(rows.PARTS[1:], np.array(self.SLICES).T), tokens=self.TOKENS)
        arrays["label_ids"] = np.array([[i, i + 10] for i in range(5)], np.float32)
        return rows.TextRows(arrays, CLS, SEP, 9)

    def expected(self, indices, length):
        found = []
        for index in indices:
            start_a, length_a, start_b, length_b = self.SLICES[index]
            a = self.TOKENS[start_a : start_a + length_a].tolist()
            found.append(row_of(a, self.TOKENS[start_b : start_b + length_b].tolist(), length))
        return np.moveaxis(np.array(found), 1, 0)

    def test_take_equals_rows_assembled_one_by_one(self):
        some = self.rows()
        self.assertLen(some, 5)
        self.assertAllEqual(some.lengths, [5, 9, 8, 4, 2])
        for indices, length in (([0, 1, 2, 3, 4], None), ([3, 1, 1], 9), ([4, 3, 0], 5), ([], 4)):
            taken = some.take(np.array(indices, int), length)
            names = ("input_ids", "input_mask", "segment_ids")
            if not indices:
                self.assertEqual(taken["input_ids"].shape, (0, 4))
                continue
            for name, values in zip(names, self.expected(indices, length or 9)):
                self.assertEqual(taken[name].dtype, np.int32)
                self.assertAllEqual(taken[name], values, name)
            self.assertAllEqual(taken["label_ids"], some["label_ids"][indices])
            self.assertEqual(taken["label_ids"].dtype, np.float32)

    def test_empty_texts_give_only_cls_and_sep(self):
        arrays = {name: np.zeros(2, np.int32) for name in rows.PARTS[1:]}
        arrays["tokens"] = np.zeros(0, np.int32)
        taken = rows.TextRows(arrays, CLS, SEP, 4).take([0, -1])
        self.assertAllEqual(taken["input_ids"], [[CLS, SEP, 0, 0], [0, 0, 0, 0]])

    def test_padding_rows_are_zero(self):
        taken = self.rows().take([1, -1])
        self.assertAllEqual(taken["input_ids"][0], self.expected([1], 9)[0, 0])
        for name in ("input_ids", "input_mask", "segment_ids"):
            self.assertAllEqual(taken[name][1], np.zeros(9), name)
        self.assertAllEqual(taken["is_real_example"], [1, 0])


class PackedRowsTest(tf.test.TestCase):
    # The second mask has a gap, the third row has no tokens.
    FEATURES = {
        "input_ids": [[5, 6, 7, 0], [300, 2, 70000, 9], [0] * 4, [1, 0, 0, 0]],
        "input_mask": [[1, 1, 1, 0], [1, 0, 1, 0], [0] * 4, [1, 0, 0, 0]],
        "segment_ids": [[0, 1, 1, 0], [2, 0, 3, 0], [0] * 4, [0] * 4],
        "label_ids": [[0.5, 1.0], [2.0, 0.0], [0.0, 0.0], [3.0, 1.0]],
        "is_real_example": [True, True, False, True],
    }

    def test_rows_equal_the_features_until_the_last_token(self):
        arrays = {name: np.array(values) for name, values in self.FEATURES.items()}
        features = features_of(arrays)
        parts = [rows.pack(features[:1]), rows.pack(features[1:])]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.assertLen(joined["input_ids"], 3 + 3 + 0 + 1)
        arrays["input_ids"][1, 3] = 0
        arrays["label_ids"] = arrays["label_ids"].astype(np.float32)
        for some in (rows.as_rows(features), rows.PackedRows(joined, 4)):
            self.assertAllEqual(some.lengths, [3, 3, 0, 1])
            self.assertEqual(some.max_seq_length, 4)
            for length in (3, 4, None):
                taken = some.take([1, 0, -1, 2, 3], length)
                self.assertEqual(set(taken), set(arrays))
                for name, values in arrays.items():
                    expected = np.insert(values[[1, 0, 2, 3]], 2, 0, axis=0)
                    if name[:5] in ("input", "segme"):
                        expected = expected[:, :length]
                    is_label = name == "label_ids"
                    self.assertEqual(taken[name].dtype, np.float32 if is_label else np.int32)
                    self.assertAllEqual(taken[name], expected, name)
                    self.assertEqual(taken[name].shape, expected.shape)

    def test_features_may_be_arrays(self):
        arrays = {name: np.array(values) for name, values in self.FEATURES.items()}
        features = features_of(arrays)
        as_lists = rows.pack(features)
        for each in features:
            for name in ("input_ids", "input_mask", "segment_ids"):
                setattr(each, name, np.array(getattr(each, name), np.int32))
        for name, values in rows.pack(features).items():
            self.assertAllEqual(values, as_lists[name], name)

    def test_rows_without_tokens_are_zero(self):
        arrays = {name: np.zeros((2, 3), int) for name in list(self.FEATURES)[:3]}
        arrays.update(label_ids=np.zeros(2, int), is_real_example=np.zeros(2, int))
        taken = rows.as_rows(features_of(arrays)).take([0, -1, 1])
        self.assertAllEqual(taken["input_ids"], np.zeros((3, 3)))

    def test_an_empty_list_is_refused(self):
        with self.assertRaisesRegex(ValueError, "at least one"):
            rows.as_rows([])


class PaddedRowsTest(tf.test.TestCase):
    def arrays(self):
        mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]], np.int32)
        return {
            "input_ids": mask * np.arange(5, 9, dtype=np.int32),
            "input_mask": mask,
            "label_ids": np.arange(4),
            "scores": np.ones([4, 3]),
            "pairs": np.ones([4, 4, 2], np.int32),
        }

    def test_lengths_count_up_to_last_token(self):
        # A gap in the mask does not end the row.
        self.assertAllEqual(rows.as_rows(self.arrays()).lengths, [2, 4, 0, 3])

    def test_take_truncates_columns_per_token(self):
        arrays = self.arrays()
        taken = rows.as_rows(arrays).take(np.array([3, 0]), 3)
        for name in ("input_ids", "input_mask"):
            self.assertAllEqual(taken[name], arrays[name][[3, 0], :3])
        self.assertAllEqual(taken["label_ids"], [3, 0])
        self.assertAllEqual(rows.as_rows(arrays)["label_ids"], [0, 1, 2, 3])
        # An array that is not per token is not truncated.
        self.assertEqual(taken["scores"].shape, (2, 3))
        self.assertEqual(taken["pairs"].shape, (2, 4, 2))

    def test_untruncated_columns_stay_whole(self):
        sets = np.arange(16).reshape(4, 4)
        for name, whole in (("label_ids", ("label_ids",)), ("tags", ())):
            padded = rows.PaddedRows({**self.arrays(), name: sets}, whole)
            taken = padded.take([3, 0], 3)
            self.assertAllEqual(taken[name], sets[[3, 0]] if whole else sets[[3, 0], :3])
            self.assertEqual(taken["input_ids"].shape, (2, 3))

    def test_padding_rows_are_zero(self):
        arrays = self.arrays()
        taken = rows.as_rows(arrays).take([1, -1])
        for name, values in taken.items():
            self.assertEqual(values.dtype, arrays[name].dtype)
            self.assertAllEqual(values[0], arrays[name][1])
            self.assertAllEqual(values[1], np.zeros_like(arrays[name][1]))
        self.assertAllEqual(arrays["input_mask"], self.arrays()["input_mask"])


class ProductRowsTest(tf.test.TestCase):
    def test_product_pairs_each_row_with_each_value(self):
        arrays = {
            "input_ids": np.arange(6, dtype=np.int32).reshape(3, 2) + 1,
            "input_mask": np.array([[1, 1], [1, 0], [1, 1]], np.int32),
        }
        values = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], np.float32)
        product_rows = rows.ProductRows(rows.as_rows(arrays), "gates", values)
        self.assertLen(product_rows, 12)
        self.assertAllEqual(product_rows.lengths, [2] * 4 + [1] * 4 + [2] * 4)
        self.assertEqual(product_rows.max_seq_length, 2)
        taken = product_rows.take([0, 7, 9, 5], 1)
        self.assertAllEqual(taken["input_ids"], [[1], [3], [5], [3]])
        self.assertAllEqual(taken["gates"], [[0, 1], [0, 0], [1, 0], [1, 0]])
        self.assertEqual(taken["gates"].dtype, np.float32)
