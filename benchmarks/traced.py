"""Runs an unmodified script of the project, and marks its progress.

    python benchmarks/traced.py run_classifier.py --task_name=MRPC ...

Marks (see worker.py): python, imports, data, graph, session, step (each), end.
"""

import os
import runpy
import sys

import worker

worker.mark("python")

from adapter_bert.shell import imports

imports.import_tensorflow()

# isort: split
import tensorflow.compat.v1 as tf
from absl import app

from adapter_bert.training import estimator, model_fn

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def marked(function, before=None, after=None, **values):
    """Returns the function with marks before (with `values`) and after each call."""

    def call(*arguments, **options):
        if before:
            worker.mark(before, **values)
        result = function(*arguments, **options)
        if after:
            worker.mark(after)
        return result

    return call


def install():
    """Adds marks to the functions that every script calls."""
    app.run = marked(app.run, before="imports", version="TensorFlow " + tf.__version__)
    for name in ("train", "evaluate", "predict"):
        setattr(
            estimator.Estimator, name, marked(getattr(estimator.Estimator, name), before="data")
        )
    build = model_fn.model_fn_builder

    def model_fn_builder(*arguments, **options):
        inner = build(*arguments, **options)

        # Estimator inspects the arguments' names.
        def marked_model_fn(features, labels, mode, params, config=None):
            spec = inner(features, labels, mode, params, config)
            worker.mark("graph")
            return spec

        return marked_model_fn

    model_fn.model_fn_builder = model_fn_builder
    session = tf.train.MonitoredSession
    session.__init__ = marked(session.__init__, after="session")
    session.run = marked(session.run, after="step")


def main():
    script = os.path.join(_ROOT, sys.argv[1])
    sys.argv = [script, *sys.argv[2:]]
    install()
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        worker.mark("end")


if __name__ == "__main__":
    main()
