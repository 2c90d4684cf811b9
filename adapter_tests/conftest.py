"""What pytest needs to know of tf.test, and what tests leave alone."""

import importlib
import os
from unittest import mock

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Scripts keep features in the user's cache: tests have one of their own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="class")
def without_xla(request):
    """Lets XLA compile nothing in modules and classes with the marker of this name."""
    if not request.node.get_closest_marker("without_xla"):
        yield
        return
    with mock.patch.object(
        importlib.import_module("adapter_bert.ops.xla"), "can_fuse", lambda: False
    ):
        yield


def pytest_collection_modifyitems(items):
    # tf.test.TestCase has a method of this name that is no test; it would count as skipped in each
    # class, among which a real skip goes unseen.
    items[:] = [item for item in items if item.name != "test_session"]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
