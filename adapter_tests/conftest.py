"""What pytest needs to know of tf.test, and what tests leave alone."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Scripts keep features in the user's cache: tests have one of their own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


def pytest_collection_modifyitems(items):
    # tf.test.TestCase has a method of this name that is no test; it would count as skipped in each
    # class, among which a real skip goes unseen.
    items[:] = [item for item in items if item.name != "test_session"]
