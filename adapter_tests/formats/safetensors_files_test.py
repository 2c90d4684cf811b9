"""Tests of safetensors_files.py against the package safetensors and hand-written headers."""

import json
import os
import struct
from unittest import mock

import numpy as np
import safetensors
import safetensors.numpy
from absl.testing import parameterized

from adapter_bert.formats import safetensors_files
from adapter_tests.support.refusals import RefusalTestCase

VALUES = np.arange(6, dtype="<f4").reshape(2, 3)
BYTES = VALUES.tobytes()
ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


class SafetensorsTest(RefusalTestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.get_temp_dir(), "a.safetensors")

    def write(self, header, data=BYTES):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        with open(self.path, "wb") as writer:
            writer.write(struct.pack("<Q", len(text)) + text + data)

    def read(self, **options):
        return safetensors_files.read(self.path, f"--flag {self.path}", **options)

    def test_tensors_and_metadata_are_those_of_the_package(self):
        for dtype in (np.float32, np.float16):
            tensors = {"b": VALUES.astype(dtype), "a": VALUES[0].astype(dtype)}
            safetensors.numpy.save_file(tensors, self.path, {"x": "y"})
            content = self.read(ignored=["c"])
            self.assertEqual(list(content.tensors), ["a", "b"])
            self.assertEqual(content.metadata, {"x": "y"})
            for name, value in tensors.items():
                self.assertEqual(content.tensors[name].dtype, np.float32)
                np.testing.assert_array_equal(content.tensors[name], value)
        self.assertEqual(list(self.read(ignored=["a"]).tensors), ["b"])

    def test_bfloat16_is_widened(self):
        halves = (VALUES.view("<u4") >> 16).astype("<u2")  # NumPy has no bfloat16.
        self.write({"a": {**ENTRY, "dtype": "BF16", "data_offsets": [0, 12]}}, halves.tobytes())
        np.testing.assert_array_equal(self.read().tensors["a"], VALUES)

    def test_written_files_are_read_by_the_package(self):
        safetensors_files.write(self.path, {"a": VALUES.T})
        np.testing.assert_array_equal(safetensors.numpy.load_file(self.path)["a"], VALUES.T)
        self.assertEqual(self.read().metadata, {"format": "pt"})

    def test_other_dtypes_are_refused(self):
        self.write({"a": {**ENTRY, "dtype": "I32"}})
        self.assert_refused([self.path, "expected F32 or F16 or BF16, but a is I32"], self.read)
        self.write({"a": {**ENTRY, "dtype": "F16", "data_offsets": [0, 12]}}, bytes(12))
        self.assert_refused(["expected F32, but a is F16"], self.read, dtypes=("F32",))

    @parameterized.parameters(
        {"dtype": "pickle"},
        {"shape": [2, 9]},
        {"shape": [-2, -3]},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [2, 3, *[1] * 70]},
        {"shape": [0, (1 << 64) - 1], "data_offsets": [0, 0]},
        {"shape": []},
        {"data_offsets": [0, 1 << 60]},
        {"data_offsets": [24, 0]},
    )
    def test_hostile_entries_are_refused(self, **changes):
        self.write({"a": {**ENTRY, **changes}})
        self.assert_refused([f"--flag {self.path} is damaged"], self.read)

    @parameterized.parameters(
        (b"[]",),
        (b'"header"',),
        (b"[" * 100_000,),
        (b'{"__metadata__": 5}',),
        (json.dumps({"a": ENTRY}).encode()[:-1] + b', "a": {}}',),
    )
    def test_hostile_headers_are_refused(self, header):
        self.write(header)
        self.assert_refused([f"--flag {self.path} is damaged"], self.read)

    def test_damaged_files_are_refused(self):
        self.write({"a": ENTRY})
        with open(self.path, "rb") as reader:
            content = reader.read()
        # A Git pointer, a pickle, and the beginnings of a valid file.
        others = (b"version https://git-lfs" * 9, b"\x80\x04cos\nsystem\n(S'touch x'\ntR.")
        for damaged in (b"", bytes(8), content[:30], content[:-1], content + b"\0", *others):
            with open(self.path, "wb") as writer:
                writer.write(damaged)
            self.assert_refused([f"--flag {self.path}"], self.read)
        os.remove(self.path)
        self.assert_refused([f"--flag {self.path} cannot be read"], self.read)

    @parameterized.parameters((4 << 20) + 1, 90_000_000, 1 << 62)
    def test_large_headers_are_refused_unread(self, size):
        with open(self.path, "wb") as writer:
            writer.write(struct.pack("<Q", size) + b'{"')
            writer.truncate(95_000_000)  # Sparse.
        with mock.patch.object(safetensors, "deserialize", side_effect=MemoryError):
            self.assert_refused([f"its header has {size:,} bytes"], self.read)
