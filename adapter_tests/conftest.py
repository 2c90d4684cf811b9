"""What pytest needs to know of tf.test, and what tests leave alone."""

import importlib
import os
from unittest import mock

import pytest

# Tests of what scripts do with a model, whatever computes it. XLA's compilations, made anew for
# every little graph, would take a third of their time; tests of other modules train with them.
_WITHOUT_XLA = {
    "batch_norm_training_test",
    "docs_test",
    "jobs_test",
    "remote_paths_test",
    "run_ablation_test",
    "run_classifier_test",
    "run_squad_test",
    "training_test::EvaluationTest",
    "training_test::FreezingTest",
    "training_test::PaddingTest",
    "training_test::ResumingTest",
    "training_test::TaskCheckpointTest",
}

# These take longest: begun last, one of them would leave the other processes without work.
_FIRST = (
    "jobs_test.py::AdapterFlagTest",
    "jobs_test.py::BestTest",
    "jobs_test.py::ProcessTest",
    "distribution_test.py::KilledWorkerTest",
    "distribution_test.py::TrainingTest",
    "docs_test.py::RunTest",
    "optimization_test.py::GoldenTest",
    "run_sweep_test.py::RunSweepTest",
    "training_test.py::LessMemoryTest",
    "training_test.py::ResumingTest",
)

# Tests of what depends on TensorFlow's version: Estimator, the originals' results, resuming,
# several devices and machines. `-m estimator` selects them.
_OF_ESTIMATOR = {
    "cluster_jobs_test",
    "distribution_test",
    "estimator_training_test",
    "jobs_test",
    "modeling_test::GoldenTest",
    "optimization_test::GoldenTest",
    "run_classifier_library_test",
    "scaffold_test",
    "tf_estimator_test",
    "training_test",
}


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Scripts keep features in the user's cache: tests have one of their own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="class")
def without_xla(request):
    """Nothing is compiled in the modules and classes of `_WITHOUT_XLA`."""
    if not _is_listed(request, _WITHOUT_XLA):
        yield
        return
    with mock.patch.object(importlib.import_module("fusion"), "can_fuse", lambda: False):
        yield


def _is_listed(item, names):
    """Whether names has the module of a test, or its class as "module::class"."""
    module = item.module.__name__.split(".")[-1]
    return not names.isdisjoint({module, f"{module}::{item.cls.__name__}"})


def pytest_collection_modifyitems(items):
    # tf.test.TestCase has a method of this name that is no test; it would count as skipped in each
    # class, among which a real skip goes unseen.
    items[:] = [item for item in items if item.name != "test_session"]
    items.sort(key=lambda item: not any(name in item.nodeid for name in _FIRST))
    for item in items:
        if _is_listed(item, _OF_ESTIMATOR):
            item.add_marker("estimator")
