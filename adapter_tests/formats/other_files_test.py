"""Tests of other_files.py: errors of convert_checkpoint.py for files that are not models."""

import os
import zipfile

import numpy as np
import safetensors.numpy

import convert_checkpoint
from adapter_bert.formats import other_files
from adapter_tests.support.refusals import RefusalTestCase


class OtherFilesTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_files_that_are_not_models_are_described(self):
        with zipfile.ZipFile(self.path("archive.zip"), "w") as archive:
            archive.writestr("a", "b")
        np.save(self.path("array.npy"), np.zeros(3))
        safetensors.numpy.save_file({"a": np.zeros(3)}, self.path("a.safetensors"))
        contents = {
            "README.md": (b"# Names\n", "is a text file, not a checkpoint"),
            "empty": (b"", "is an empty file, not a checkpoint"),
            "settings.json": (b'{"a": 1}', "is a JSON file, not a checkpoint"),
            "picture.png": (b"\x89PNG\r\n\x1a\n\0\0", "is an image (PNG)"),
            "model.h5": (b"\x89HDF\r\n\x1a\n\0\0", "is an HDF5 file, such as Keras writes"),
            "model.gz": (b"\x1f\x8b\x08", "is a file compressed with gzip"),
            "random": (bytes(range(128, 256)), "is a damaged or unknown file"),
            "archive.zip": (None, "is a ZIP archive"),
            "array.npy": (None, "is a NumPy array"),
            "a.safetensors": (None, "is a safetensors file without its config"),
        }
        for name, (content, expected) in contents.items():
            if content is not None:
                with open(self.path(name), "wb") as writer:
                    writer.write(content)
            self.assertStartsWith(other_files.describe(self.path(name)), expected)
            error = self.assert_refused(
                [self.path(name), expected], convert_checkpoint.describe, self.path(name)
            )
            for word in ("TensorFlow", "sstable", "DataLoss"):
                self.assertNotIn(word, str(error))

    def test_folders_that_are_not_models_are_described(self):
        os.mkdir(self.path("empty"))
        self.assert_refused(["holds nothing;"], convert_checkpoint.describe, self.path("empty"))
        for index in range(7):
            open(self.path(f"file{index}"), "w").close()
        self.assert_refused(
            ["is a folder that holds empty, file0, file1, file2, file3 and 3 more;"],
            convert_checkpoint.describe,
            self.folder,
        )
        self.assert_refused(["does not exist"], convert_checkpoint.describe, self.path("nothing"))
