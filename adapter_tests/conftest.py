"""What pytest needs to know of tf.test, and what tests leave alone."""

import importlib
import os
from unittest import mock

import pytest

# Tests of what scripts do with a model, whatever computes it. XLA's compilations, made anew for
# every little graph, would take a third of their time; tests of other modules train with them.
_WITHOUT_XLA = {
    "training/batch_norm_training_test",
    "docs_test",
    "training/finetuning_test",
    "common/remote_paths_test",
    "run_ablation_test",
    "run_classifier_test",
    "run_squad_test",
    "training/estimator_test::EvaluationTest",
    "training/estimator_test::FreezingTest",
    "training/estimator_test::PaddingTest",
    "training/estimator_test::ResumingTest",
    "training/estimator_test::TaskCheckpointTest",
}

# These take longest: begun last, one of them would leave the other processes without work.
_FIRST = (
    "training/finetuning_test.py::AdapterFlagTest",
    "training/finetuning_test.py::BestTest",
    "training/finetuning_test.py::ProcessTest",
    "training/distribution_test.py::KilledWorkerTest",
    "training/distribution_test.py::TrainingTest",
    "docs_test.py::RunTest",
    "optimization_test.py::GoldenTest",
    "run_sweep_test.py::RunSweepTest",
    "training/estimator_test.py::LessMemoryTest",
    "training/estimator_test.py::ResumingTest",
)

# Tests of what depends on TensorFlow's version: Estimator, the originals' results, resuming,
# several devices and machines. `-m estimator` selects them.
_OF_ESTIMATOR = {
    "training/cluster_jobs_test",
    "training/distribution_test",
    "common/estimator_training_test",
    "training/finetuning_test",
    "modeling_test::GoldenTest",
    "optimization_test::GoldenTest",
    "run_classifier_library_test",
    "training/restore_test",
    "common/tf_estimator_test",
    "training/estimator_test",
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
    with mock.patch.object(
        importlib.import_module("adapter_bert.ops.xla"), "can_fuse", lambda: False
    ):
        yield


def _is_listed(item, names):
    """Returns whether names has the path of a test's module, or its class as "path::class"."""
    path = os.path.relpath(str(item.fspath), os.path.dirname(__file__))
    module = os.path.splitext(path)[0]
    return not names.isdisjoint({module, f"{module}::{item.cls.__name__}"})


def pytest_collection_modifyitems(items):
    # tf.test.TestCase has a method of this name that is no test; it would count as skipped in each
    # class, among which a real skip goes unseen.
    items[:] = [item for item in items if item.name != "test_session"]
    items.sort(key=lambda item: not any(name in item.nodeid for name in _FIRST))
    for item in items:
        if _is_listed(item, _OF_ESTIMATOR):
            item.add_marker("estimator")
