"""Tests of paths.py: the order of the search, its log, and its errors."""

import os
from unittest import mock

from adapter_bert.files import paths
from adapter_tests.support.refusals import RefusalTestCase


class PathsTestCase(RefusalTestCase):
    """Gives each test a folder and an environment without GLUE_DIR, BERT_BASE_DIR and the demo."""

    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        without = {k: v for k, v in os.environ.items() if k not in ("GLUE_DIR", "BERT_BASE_DIR")}
        for patch in (
            mock.patch.dict(os.environ, without, clear=True),
            mock.patch.object(paths, "DEMO_DATA", os.path.join(self.folder, "demo")),
            mock.patch.object(paths, "DEMO_BERT", os.path.join(self.folder, "demo", "bert")),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def make(self, *names):
        """Creates a folder inside the test's folder and returns its path."""
        path = os.path.join(self.folder, *names)
        os.makedirs(path)
        return path

    def logged(self, function, *args, **kwargs):
        """Calls a function; returns (its result, the log)."""
        with mock.patch.object(paths.logging, "info") as info:
            result = function(*args, **kwargs)
        return result, " ".join(call[0][0] % call[0][1:] for call in info.call_args_list)


class CacheFolderTest(PathsTestCase):
    def test_cache_folder_is_never_relative_to_the_working_directory(self):
        project = os.path.join(paths.PROJECT, ".cache/adapter-bert/x")
        for variables, home, expected in (
            ({"XDG_CACHE_HOME": "/cache"}, "/home/me", "/cache/adapter-bert/x"),
            ({}, "/home/me", "/home/me/.cache/adapter-bert/x"),
            ({"XDG_CACHE_HOME": ""}, "/home/me", "/home/me/.cache/adapter-bert/x"),
            ({"XDG_CACHE_HOME": "~/cache"}, "/home/me", "/home/me/.cache/adapter-bert/x"),
            ({}, "~", project),  # As expanduser answers without HOME for an unknown user.
            ({"XDG_CACHE_HOME": "cache"}, "me", project),
        ):
            environ = mock.patch.dict(os.environ, variables, clear=True)
            with environ, mock.patch.object(os.path, "expanduser", lambda path, home=home: home):
                self.assertEqual(paths.cache_folder("x"), expected)


class FindTest(PathsTestCase):
    def assert_found(self, expected, source, function, *arguments):
        """Checks that a function returns a path, and logs it with its source."""
        path, log = self.logged(function, *arguments)
        self.assertEqual(path, expected)
        for part in (expected, source):
            self.assertIn(part, log)

    def test_data_is_found_by_flag_then_glue_dir_then_demo(self):
        demo, glue, mine = (self.make(name, "MRPC") for name in ("demo", "glue", "mine"))
        for flag in (None, ""):
            self.assert_found(demo, "demo", paths.find_data_dir, flag, "MRPC")
        os.environ["GLUE_DIR"] = os.path.dirname(glue)
        self.assert_found(glue, "$GLUE_DIR", paths.find_data_dir, None, "MRPC")
        self.assertEqual(paths.find_data_dir(mine, "MRPC"), mine)

    def test_missing_data_is_refused(self):
        self.make("demo", "MRPC")
        self.assert_refused(["CoLA", "--data_dir", "GLUE_DIR"], paths.find_data_dir, None, "CoLA")
        missing = os.path.join(self.folder, "none")
        self.assert_refused(["--data_dir", missing], paths.find_data_dir, missing, "MRPC")
        os.environ["GLUE_DIR"] = missing
        parts = ["$GLUE_DIR/MRPC", os.path.join(missing, "MRPC")]
        self.assert_refused(parts, paths.find_data_dir, None, "MRPC")

    def test_bert_is_found_by_flag_then_bert_base_dir_then_demo(self):
        demo = self.make("demo", "bert")
        for name in ("vocab.txt", "bert_model.ckpt.index"):
            open(os.path.join(demo, name), "w").close()
        for flag, name in (("vocab_file", "vocab.txt"), ("init_checkpoint", "bert_model.ckpt")):
            expected = os.path.join(demo, name)
            self.assert_found(expected, "the demo's", paths.find_bert, flag, None)
        base = os.environ["BERT_BASE_DIR"] = self.make("base")
        for flag, name in paths.BERT_FILES.items():
            self.assert_found(
                os.path.join(base, name), "$BERT_BASE_DIR", paths.find_bert, flag, None
            )
        path = "gs://mine/vocab.txt"
        self.assertEqual(paths.find_bert("vocab_file", path), path)

    def test_missing_bert_is_refused(self):
        parts = ["--vocab_file", "BERT_BASE_DIR", "vocab.txt", "bert_model.ckpt", "make demo"]
        self.assert_refused(parts, paths.find_bert, "vocab_file", None)
        os.environ["BERT_BASE_DIR"] = missing = os.path.join(self.folder, "none")
        self.assert_refused(["$BERT_BASE_DIR", missing], paths.find_bert, "init_checkpoint", None)
