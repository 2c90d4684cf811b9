"""Contestant: one training step or forward pass of this project's graph."""

from adapter_bert.shell import environment  # noqa: F401  First: it sets TensorFlow's environment.

# isort: split
import functools

import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import tuning
import worker
import workload
from adapter_bert.model import configs
from adapter_bert.ops import devices
from adapter_bert.shell import tf_estimator
from adapter_bert.training import estimator, model_fn

MODEL_FN_BUILDER = functools.partial(
    run_classifier.model_fn_builder, num_labels=workload.NUM_LABELS
)
_STEPS = 1000  # The schedule's length, which has no influence on the time.


def settings(sizes, precision, **more):
    """Returns `model_fn.ModelSettings` with random weights, updated with `more`."""
    return model_fn.ModelSettings(
        bert_config=modeling.BertConfig(**sizes),
        adapter_fn=modeling.AdapterConfig(size=workload.ADAPTER_SIZE),
        tuning=tuning.Tuning("adapters"),
        learning_rate=workload.LEARNING_RATE,
        num_train_steps=_STEPS,
        num_warmup_steps=_STEPS // 10,
        random_seed=12345,
        precision=precision,
        **more,
    )


def build(model, work, batch_size=workload.BATCH_SIZE):
    """Builds the graph for training or predicting, for batches of any length.

    Args:
      model: `model_fn.ModelSettings`.
      work: "step" or "forward".
      batch_size: int.

    Returns:
      function without arguments that runs the work once and returns loss or probabilities.
    """
    batch = workload.features(model.bert_config.vocab_size, batch_size)
    inputs = {
        name: tf.placeholder(tf.int32, [batch_size] + [None] * (values.ndim - 1))
        for name, values in batch.items()
    }
    run = estimator.RunSettings(output_dir="unused", train_batch_size=batch_size)
    trainer = estimator.build_estimator(model, run, MODEL_FN_BUILDER)
    mode = tf_estimator.ModeKeys.TRAIN if work == "step" else tf_estimator.ModeKeys.PREDICT
    params = {"batch_size": batch_size}
    tf.set_random_seed(0)
    spec = MODEL_FN_BUILDER(**vars(model))(inputs, None, mode, params)
    session = tf.Session(config=trainer.config.session_config)
    session.run(tf.global_variables_initializer())
    fetches = (spec.loss, spec.train_op) if work == "step" else spec.predictions["probabilities"]
    feed = {inputs[name]: values for name, values in batch.items()}
    return lambda: session.run(fetches, feed)


def build_for_predicting(model):
    """Builds a `model_fn.ModelSettings`' graph for predicting; returns an initialized session."""
    features = {
        name: tf.constant(values)
        for name, values in workload.features(model.bert_config.vocab_size, 1, 8).items()
    }
    mode = tf_estimator.ModeKeys.PREDICT
    MODEL_FN_BUILDER(**vars(model))(features, None, mode, {"batch_size": 1})
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def main():
    parser = workload.parser(__doc__, precision=False)
    parser.add_argument("--precision", choices=configs.PRECISIONS, default="auto")
    arguments = parser.parse_args()
    sizes = workload.MODELS[arguments.model]
    width = sizes["hidden_size"], sizes["intermediate_size"]
    precision = devices.choose_precision(arguments.precision, False, width)
    run = build(settings(sizes, precision), arguments.work)
    worker.serve(run, facts={"version": "TensorFlow " + tf.__version__})


if __name__ == "__main__":
    tf.disable_eager_execution()
    main()
