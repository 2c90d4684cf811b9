"""Computes the outputs of BERT's layers for texts, with or without a task adapter.

    estimator = build_estimator(config, loaded, model_fn_builder)
    with feature_files.FeatureWriter(path, len(texts), config, hidden_size) as writer:
        for features, values in extract(estimator, texts, config, tokenizer, input_fn_builder):
            writer.write(features, values)

The outputs come in the order of the texts, a few batches after the texts are read. The two builders
are those of extract_features.py.

Axes: N texts, T tokens, S positions, L requested layers, D hidden size.
"""

import collections
import contextlib
import functools
import itertools
from typing import (
    Any,
    Callable,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.features import feature_files
from adapter_bert.features.feature_files import InputExample, InputFeatures
from adapter_bert.shell.errors import UserError
from adapter_bert.training import input_pipeline, model_fn, rows
from adapter_bert.training.estimator import Estimator
from adapter_bert.training.run import LoadedModel

# The most bytes of outputs that wait for the outputs of earlier texts.
_MAX_WAITING_BYTES = 1 << 28


def check_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raises UserError unless the encoder has all of these layers."""
    for layer in layers:
        if not -num_layers <= layer < num_layers:
            raise UserError(
                f"--layers: the BERT has no layer {layer}; expected {-num_layers} to -1, counted"
                f" from the last, or 0 to {num_layers - 1}."
            )


def build_estimator(config: Any, loaded: LoadedModel, model_fn_builder: Callable) -> Estimator:
    """Returns an Estimator of plain BERT, or of BERT with the task adapter of `loaded`.

    Args:
      config: has use_one_hot_embeddings.
      loaded: must live as long as the Estimator.
      model_fn_builder: see `Estimator`.

    Raises:
      UserError: the task adapter belongs to another model.
    """
    one_hot = config.use_one_hot_embeddings
    if loaded.start.adapter:
        given = loaded.start.adapter.description
        return loaded.estimator_of(
            given.kind, given.labels, model_fn_builder, use_one_hot_embeddings=one_hot
        )
    model = model_fn.ModelSettings(
        bert_config=loaded.bert.config,
        init_checkpoint=loaded.bert.init_checkpoint,
        adapter_fn=None,
        use_tpu=loaded.use_tpu,
        precision=loaded.precision,
        use_one_hot_embeddings=one_hot,
    )
    return Estimator(model, loaded.devices, model_fn_builder)


def pool(layer: tf.Tensor, input_mask: tf.Tensor, pooling: str) -> tf.Tensor:
    """Returns a layer's outputs per token or text.

    Args:
      layer: float [B, S, D].
      input_mask: int [B, S].
      pooling: one of `feature_files.POOLINGS`.

    Returns:
      Tensor [B, S, D] for "tokens", otherwise [B, D].
    """
    if pooling == "cls":
        return layer[:, 0]
    if pooling == "mean":
        mask = tf.cast(input_mask, tf.float32)[:, :, None]
        count = tf.maximum(tf.reduce_sum(mask, 1), 1.0)  # Padding rows on a TPU have 0 tokens.
        return tf.reduce_sum(mask * layer, 1) / count
    return layer


def arrays_of(features: Sequence[InputFeatures], seq_length: Optional[int]) -> rows.Arrays:
    """Returns a batch of features as arrays.

    Args:
      features: list of `InputFeatures`.
      seq_length: S; None for the bucket of the longest text.

    Returns:
      dict of int32 arrays: "unique_ids" [B]; "input_ids", "input_mask", "input_type_ids" [B, S].
    """
    if seq_length is None:
        longest = max(len(each.tokens) for each in features)
        seq_length = input_pipeline.bucket_of(longest, len(features[0].input_ids))
    names = ("input_ids", "input_mask", "input_type_ids")
    columns = {name: [getattr(each, name)[:seq_length] for each in features] for name in names}
    columns["unique_ids"] = [each.unique_id for each in features]
    return {name: np.array(values, np.int32) for name, values in columns.items()}


def extract(
    estimator: Estimator,
    texts: Iterable[InputExample],
    config: Any,
    tokenizer: Any,
    input_fn_builder: Callable,
) -> Generator[Tuple[InputFeatures, np.ndarray], None, None]:
    """Yields (`InputFeatures`, float32 array [T, L, D], or pooled [L, D]) for each text, in order.

    Args:
      estimator: the result of `build_estimator`.
      texts: `InputExample`s.
      config: has layers, pooling, max_seq_length and batch_size.
      tokenizer: `tokenization.FullTokenizer`.
      input_fn_builder: that of extract_features.py; not for TPUs.

    Raises:
      UserError: an output is NaN or Inf.
    """
    if estimator.model.use_tpu:
        outputs = _compute_at_once(estimator, texts, config, tokenizer)
    else:
        outputs = _compute_in_chunks(estimator, texts, config, tokenizer, input_fn_builder)
    # Closes the graph even if an error's traceback keeps the generator alive.
    with contextlib.closing(outputs):
        for features, row in outputs:
            layers = [row[f"layer_output_{index}"] for index in range(len(config.layers))]
            values = np.stack(layers, -2)
            if config.pooling == "tokens":
                values = values[: len(features.tokens)]
            if not np.isfinite(values).all():
                raise UserError(
                    f"--init_checkpoint {estimator.model.init_checkpoint}: the outputs for line"
                    f" {features.unique_id + 1} of --input_file are NaN or Inf; the weights, or"
                    " those of --adapter, are broken."
                )
            yield features, values


def _compute_in_chunks(
    estimator: Estimator,
    texts: Iterable[InputExample],
    config: Any,
    tokenizer: Any,
    input_fn_builder: Callable,
) -> Generator[Tuple[InputFeatures, Dict[str, Any]], None, None]:
    """Computes a few batches of texts at a time, batching texts of similar length."""
    row_values = len(config.layers) * estimator.model.bert_config.hidden_size
    if config.pooling == "tokens":
        row_values *= config.max_seq_length
    batch_bytes = 4 * row_values * config.batch_size
    num_batches = min(max(1, _MAX_WAITING_BYTES // batch_bytes), input_pipeline.BATCHES_PER_POOL)
    chunks: collections.deque = collections.deque()

    def batches() -> Iterator[List[InputFeatures]]:
        remaining, size = iter(texts), num_batches * config.batch_size
        for examples in iter(lambda: list(itertools.islice(remaining, size)), []):
            features = feature_files.convert_examples_to_features(
                examples, config.max_seq_length, tokenizer
            )
            lengths = np.array([len(each.tokens) for each in features])
            order = input_pipeline.longest_first(lengths)
            chunks.append((features, order))  # Must precede the yield, whose results refer to it.
            for indices in input_pipeline.evaluation_batches(order, config.batch_size):
                yield [features[index] for index in indices]

    outputs = estimator.stream_batches(
        batches(),
        functools.partial(input_fn_builder, seq_length=None),
        estimator.model.task_checkpoint,
    )
    with contextlib.closing(outputs):
        for first in outputs:
            features, order = chunks.popleft()
            waiting = {order[0]: first}
            for index in order[1:]:
                waiting[index] = next(outputs)
            for index, each in enumerate(features):
                yield each, waiting.pop(index)


def _compute_at_once(
    estimator: Estimator, texts: Iterable[InputExample], config: Any, tokenizer: Any
) -> Generator[Tuple[InputFeatures, Dict[str, Any]], None, None]:
    """Computes all texts at once on a TPU, whose host reads all ids from a file."""
    features = feature_files.convert_examples_to_features(texts, config.max_seq_length, tokenizer)
    arrays = arrays_of(features, config.max_seq_length)
    for index, row in estimator.stream(arrays, estimator.model.task_checkpoint):
        yield features[index], row
