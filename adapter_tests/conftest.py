"""Fixtures for all tests: their temporary folders and XLA. Also selects and orders the tests."""

import importlib
import os
import tempfile
from unittest import mock

import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # Tests may import onnxruntime first.


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory):
    """Gives tests a cache and temporary folders that pytest removes three runs later."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    folder = tmp_path_factory.mktemp("tmp")
    # The variable is for processes that tests start.
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    yield
    for path in list(folder.rglob("*")):
        if path.is_symlink():  # TensorFlow fails to remove its folder if it contains a link.
            path.unlink()


@pytest.fixture(autouse=True, scope="class")
def without_xla(request):
    """Disables XLA in modules and classes with the marker `without_xla`."""
    if not request.node.get_closest_marker("without_xla"):
        yield
        return
    with mock.patch.object(
        importlib.import_module("adapter_bert.ops.xla"), "can_fuse", lambda: False
    ):
        yield


def pytest_collection_modifyitems(items):
    # `test_session` is a method of tf.test.TestCase, not a test. pytest would report it as skipped
    # in each class, which would hide real skips.
    items[:] = [item for item in items if item.name != "test_session"]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
