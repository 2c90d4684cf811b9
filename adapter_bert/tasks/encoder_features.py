"""Computes the outputs of BERT's layers for texts, with or without a task adapter.

    estimator, _ = build_estimator(config, setup)
    with feature_files.FeatureWriter(path, len(texts), config, hidden_size) as writer:
        for features, values in extract(estimator, texts, config, tokenizer):
            writer.write(features, values)

The outputs come in the order of the texts, a few batches after the texts are read.
`input_fn_builder` and `model_fn_builder` have the interface of BERT's extract_features.py.

Axes: N texts, T tokens, S positions, L requested layers, D hidden size.
"""

import collections
import contextlib
import functools
import itertools
from typing import Any, Callable, Generator, Iterable, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import tf_estimator
from adapter_bert.common.errors import UserError
from adapter_bert.tasks import feature_files
from adapter_bert.tasks.feature_files import InputExample, InputFeatures
from adapter_bert.training import finetuning, input_pipeline, model_fn
from adapter_bert.training.estimator import Estimator

# The most bytes of outputs that wait for the outputs of earlier texts.
_MAX_WAITING_BYTES = 1 << 28


def input_fn_builder(features: Sequence[InputFeatures], seq_length: int) -> Callable:
    """Returns an input_fn over a list of `InputFeatures`; BERT's function of this name."""
    del seq_length  # The features have it.
    names = ("unique_id", "input_ids", "input_mask", "input_type_ids")
    arrays = {name: np.array([getattr(f, name) for f in features], np.int32) for name in names}
    arrays["unique_ids"] = arrays.pop("unique_id")

    def input_fn(params):
        dataset = tf.data.Dataset.from_tensor_slices(arrays)
        return dataset.batch(params["batch_size"], drop_remainder=False)

    return input_fn


def model_fn_builder(
    bert_config,
    init_checkpoint: str,
    layer_indexes: Sequence[int],
    use_tpu: bool,
    use_one_hot_embeddings: bool,
) -> Callable:
    """Returns a model_fn that predicts unique_id and layer_output_0, layer_output_1 and so on.

    BERT's function of this name. The model_fn raises ValueError in other modes than PREDICT.
    """

    def build(features, is_training, **options):
        encoder = _encoder(bert_config, use_one_hot_embeddings, features, is_training, options)
        layers = encoder.get_all_encoder_layers()
        outputs = {f"layer_output_{i}": layers[index] for i, index in enumerate(layer_indexes)}
        predictions = {"unique_id": features["unique_ids"], **outputs}
        return model_fn.ModelOutput(tf.zeros([]), predictions)  # For prediction only.

    settings = model_fn.ModelSettings(
        bert_config=bert_config,
        init_checkpoint=init_checkpoint,
        adapter_fn=None,
        use_tpu=use_tpu,
        use_one_hot_embeddings=use_one_hot_embeddings,
    )
    inner = model_fn.model_fn_builder(settings, build)

    def predict(features, labels, mode, params, config=None):
        if mode != tf_estimator.ModeKeys.PREDICT:
            raise ValueError(f"mode={mode}: expected ModeKeys.PREDICT.")
        features = {**features, "segment_ids": features["input_type_ids"]}
        return inner(features, labels, mode, params, config)

    return predict


def check_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raises UserError unless the encoder has all of these layers."""
    for layer in layers:
        if not -num_layers <= layer < num_layers:
            raise UserError(
                f"--layers: the BERT has no layer {layer}; expected {-num_layers} to -1, counted"
                f" from the last, or 0 to {num_layers - 1}."
            )


def build_estimator(config, setup: finetuning.Setup) -> Tuple[Estimator, Any]:
    """Returns an Estimator of plain BERT, or of BERT with the task adapter in `setup`.

    Args:
      config: has layers, pooling and use_one_hot_embeddings.
      setup: the result of `finetuning.set_up_evaluation`.

    Returns:
      (`Estimator` that predicts "values" [S, L, D], or pooled [L, D], for each text; an object that
      the caller must keep alive as long as the Estimator).

    Raises:
      UserError: the task adapter belongs to another model.
    """
    builder = functools.partial(
        _model_fn_builder, layer_indexes=config.layers, pooling=config.pooling
    )
    one_hot = config.use_one_hot_embeddings
    if setup.start.adapter:
        given = setup.start.adapter.description
        task = finetuning.Task(given.task, given.kind, given.labels, score="")
        estimator, output = finetuning.begin_evaluation(setup, task, builder)
        return estimator.with_model(use_one_hot_embeddings=one_hot), output
    model = model_fn.ModelSettings(
        bert_config=setup.bert.config,
        init_checkpoint=setup.bert.init_checkpoint,
        adapter_fn=None,
        use_tpu=setup.use_tpu,
        precision=setup.precision,
        use_one_hot_embeddings=one_hot,
    )
    return Estimator(model, setup.run, builder), None


def _encoder(bert_config, use_one_hot_embeddings, features, is_training, options):
    return modeling.BertModel(
        bert_config,
        is_training,
        features["input_ids"],
        features["input_mask"],
        features["segment_ids"],
        use_one_hot_embeddings,
        **options,
    )


def _model_fn_builder(bert_config, use_one_hot_embeddings, layer_indexes, pooling, **settings):
    def build(features, is_training, **options):
        encoder = _encoder(bert_config, use_one_hot_embeddings, features, is_training, options)
        layers = encoder.get_all_encoder_layers()
        layers = [layers[index] for index in layer_indexes]
        if pooling == "cls":
            layers = [layer[:, 0] for layer in layers]
        elif pooling == "mean":
            mask = tf.cast(features["input_mask"], tf.float32)[:, :, None]
            count = tf.maximum(tf.reduce_sum(mask, 1), 1.0)  # Padding rows on a TPU have 0 tokens.
            layers = [tf.reduce_sum(mask * layer, 1) / count for layer in layers]
        return model_fn.ModelOutput(tf.zeros([]), {"values": tf.stack(layers, -2)})

    settings = model_fn.ModelSettings(
        bert_config=bert_config, use_one_hot_embeddings=use_one_hot_embeddings, **settings
    )
    return model_fn.model_fn_builder(settings, build)


def extract(
    estimator: Estimator, texts: Iterable[InputExample], config, tokenizer
) -> Generator[Tuple[InputFeatures, np.ndarray], None, None]:
    """Yields (`InputFeatures`, float32 array [T, L, D], or pooled [L, D]) for each text, in order.

    Args:
      estimator: the result of `build_estimator`.
      texts: `InputExample`s.
      config: has layers, pooling, max_seq_length and batch_size.
      tokenizer: `tokenization.FullTokenizer`.

    Raises:
      UserError: an output is NaN or Inf.
    """
    compute = _compute_at_once if estimator.model.use_tpu else _compute_in_chunks
    # Closes the graph even if an error's traceback keeps the generator alive.
    with contextlib.closing(compute(estimator, texts, config, tokenizer)) as computed:
        for features, values in computed:
            if config.pooling == "tokens":
                values = values[: len(features.tokens)]
            if not np.isfinite(values).all():
                raise UserError(
                    f"--init_checkpoint {estimator.model.init_checkpoint}: the outputs for line"
                    f" {features.unique_id + 1} of --input_file are NaN or Inf; the weights, or"
                    " those of --adapter, are broken."
                )
            yield features, values


def _compute_in_chunks(estimator, texts, config, tokenizer):
    """Computes a few batches of texts at a time, batching texts of similar length."""
    row_values = len(config.layers) * estimator.model.bert_config.hidden_size
    if config.pooling == "tokens":
        row_values *= config.max_seq_length
    batch_bytes = 4 * row_values * config.batch_size
    num_batches = min(max(1, _MAX_WAITING_BYTES // batch_bytes), input_pipeline.BATCHES_PER_POOL)
    chunks: collections.deque = collections.deque()

    def batches():
        remaining, size = iter(texts), num_batches * config.batch_size
        for examples in iter(lambda: list(itertools.islice(remaining, size)), []):
            features = feature_files.convert_examples_to_features(
                examples, config.max_seq_length, tokenizer
            )
            lengths = np.array([len(each.tokens) for each in features])
            order = input_pipeline.longest_first(lengths)
            chunks.append((features, order))  # Must precede the yield, whose results refer to it.
            for rows in input_pipeline.evaluation_batches(order, config.batch_size):
                bucket = input_pipeline.bucket_of(lengths[rows[0]], config.max_seq_length)
                yield _arrays([features[row] for row in rows], bucket)

    rows = estimator.stream_batches(batches(), estimator.model.task_checkpoint)
    with contextlib.closing(rows):
        for first in rows:
            features, order = chunks.popleft()
            values = {order[0]: first["values"]}
            for index in order[1:]:
                values[index] = next(rows)["values"]
            for index, each in enumerate(features):
                yield each, values.pop(index)


def _compute_at_once(estimator, texts, config, tokenizer):
    """Computes all texts at once on a TPU, whose graph holds all ids."""
    features = feature_files.convert_examples_to_features(texts, config.max_seq_length, tokenizer)
    arrays = _arrays(features, config.max_seq_length)
    for index, row in estimator.stream(arrays, estimator.model.task_checkpoint):
        yield features[index], row["values"]


def _arrays(features, length):
    columns = {
        "input_ids": "input_ids",
        "input_mask": "input_mask",
        "segment_ids": "input_type_ids",
    }
    return {
        name: np.array([getattr(each, attribute)[:length] for each in features], np.int32)
        for name, attribute in columns.items()
    }
