"""BERT with adapter modules: the configurations, the encoder, and every variable it is made of.

The encoder is Devlin et al. 2018 (https://arxiv.org/abs/1810.04805). Variable names are those of
Google's checkpoints. Read it from the top: `BertModel`, then the parts it is built of; the adapters
lie in `adapter_modules`, the arithmetic in `layers`, and of both the names that users of BERT and
adapter-bert know are found here, too.

Axes in shape comments:
    B  batch            F  "from" positions (queries)    N  attention heads
    S  positions        T  "to" positions (keys)         H  size of one head
    D  hidden size, N * H
"""

import copy
import functools
import json
import numbers
from collections import OrderedDict

import tensorflow.compat.v1 as tf

import layers
from adapter_modules import (  # noqa: F401 (what adapter-bert's modeling offers, and AdapterConfig)
    ADAPTERS,
    AdapterConfig,
    adapters_of_layers,
    feedforward_adapter,
    gated,
    get_adapter,
)
from errors import UserError
from layers import (  # noqa: F401 (what BERT's modeling offers, and DropoutKey)
    LAYER_NORM,
    DropoutKey,
    assert_rank,
    create_initializer,
    dense,
    dropout,
    gelu,
    get_activation,
    get_shape_list,
    layer_norm,
    variable_name,
)
from recomputation import recomputed

HEAD = "head"  # Graph collection, as in adapter-bert: the variables of a task's own layers.


class BertConfig:
    """The sizes and rates of a BERT, as bert_config.json holds them.

    Args:
      vocab_size: number of WordPieces.
      hidden_size: D, the width of the encoder and the pooler.
      num_hidden_layers: number of Transformer layers.
      num_attention_heads: N; divides hidden_size.
      intermediate_size: width of the feed-forward layer.
      hidden_act: the activation of the feed-forward layer, a name that `get_activation` knows or
        a function.
      hidden_dropout_prob: dropout of embeddings and of each sub-layer's output.
      attention_probs_dropout_prob: dropout of the attention probabilities.
      max_position_embeddings: the longest sequence.
      type_vocab_size: number of segment ids.
      initializer_range: stddev of the truncated normal that weights start from.
    """

    def __init__(
        self,
        vocab_size,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        max_position_embeddings=512,
        type_vocab_size=16,
        initializer_range=0.02,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range

    @classmethod
    def from_dict(cls, json_object):
        """Reads a dictionary; keys that this class does not know are kept as attributes."""
        config = cls(vocab_size=json_object.get("vocab_size"))
        for key, value in json_object.items():
            setattr(config, key, value)
        return config

    @classmethod
    def from_json_file(cls, json_file):
        """Reads bert_config.json; UserError if it is missing, no JSON or no BERT's."""
        try:
            with tf.io.gfile.GFile(json_file, "r") as reader:
                values = json.loads(reader.read())
        except tf.errors.OpError as error:
            raise UserError(f"{json_file}: cannot be read ({error.message}).") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{json_file}: is not valid JSON ({error}).") from error
        if not isinstance(values, dict) or not isinstance(values.get("vocab_size"), int):
            raise UserError(f"{json_file}: is not a BERT config, it has no vocab_size.")
        config = cls.from_dict(values)
        try:
            check_config(config)
        except UserError as error:
            raise UserError(f"{json_file}: {error}") from None
        return config

    def to_dict(self):
        return copy.deepcopy(self.__dict__)

    def to_json_string(self):
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


class BertModel:
    """The encoder, with adapters after the projections of its layers.

    Args:
      config: `BertConfig`.
      is_training: bool; dropout is on, and batch normalization is of the batch, only where true.
      input_ids: int32 Tensor [B, S].
      input_mask: int32 Tensor [B, S], 1 for a token and 0 for padding; all ones by default.
      token_type_ids: int32 Tensor [B, S], segment ids; all zeros by default.
      use_one_hot_embeddings: bool; look embeddings up by a matrix product, as TPUs like it.
      scope: name of the variable scope, "bert" by default.
      adapter_fn: a name that `get_adapter` knows, what `AdapterConfig.build` returns, a function
        from [B * S, D] to [B * S, D] that registers its variables in the collection `adapters`, or
        None for plain BERT. Its Tensors have the dtype below; it may return several, whose sum is
        meant.
      dropout_key: `DropoutKey` for reproducible masks; without it dropout is TensorFlow's own.
      adapter_layers: indices of the layers that `adapter_fn` adapts, None for all.
      dtype: tf.float32, or tf.bfloat16 for what lies between the variables and the outputs, which
        both stay float32.
      pooled_only: bool; the last layer is computed for the first position alone, which is all that
        a head on the pooled output reads. There is no sequence output then.
      recompute_activations: bool; the backward pass computes each layer anew, and less memory is
        needed. Needs a dropout key where there is dropout.
      adapter_gates: float Tensor [B, L] for the L layers: 1 where both adapters of the layer count
        for the sequence, 0 where they are taken out. None leaves all of them in.

    Raises:
      ValueError: shapes and config do not go together; raised before any variable is made.
    """

    def __init__(
        self,
        config,
        is_training,
        input_ids,
        input_mask=None,
        token_type_ids=None,
        use_one_hot_embeddings=False,
        scope=None,
        adapter_fn="feedforward_adapter",
        *,
        dropout_key=None,
        adapter_layers=None,
        dtype=tf.float32,
        pooled_only=False,
        recompute_activations=False,
        adapter_gates=None,
    ):
        config = copy.deepcopy(config)
        if not is_training:
            config.hidden_dropout_prob = 0.0
            config.attention_probs_dropout_prob = 0.0
        adapter_fn = get_adapter(adapter_fn)
        statistics = [] if is_training else None

        input_ids, input_mask, token_type_ids = _checked_inputs(
            config, input_ids, input_mask, token_type_ids
        )
        adapters = adapters_of_layers(
            adapter_fn, adapter_layers, config.num_hidden_layers, statistics
        )
        if adapter_gates is not None:
            adapters = gated(adapters, _checked_gates(config, input_ids, adapter_gates))

        with tf.variable_scope(scope, default_name="bert"):
            with tf.variable_scope("embeddings"):
                embeddings, self.embedding_table = embedding_lookup(
                    input_ids,
                    config.vocab_size,
                    config.hidden_size,
                    config.initializer_range,
                    use_one_hot_embeddings=use_one_hot_embeddings,
                )
                collections = _layer_norm_collections(adapter_fn)
                embeddings = embedding_postprocessor(
                    embeddings, token_type_ids, config, dropout_key, collections, dtype
                )
            with tf.variable_scope("encoder"):
                *layers_below, last = transformer_model(
                    embeddings,
                    input_mask,
                    config,
                    adapters,
                    dropout_key,
                    pooled_only=pooled_only,
                    recompute_activations=recompute_activations,
                )
            self.pooled_output = _pool(last if pooled_only else last[:, 0, :], config)
        # Now, since what recomputes a layer for its gradient makes its statistics once more.
        layers.keep_statistics(statistics or ())
        self.embedding_output = tf.cast(embeddings, tf.float32)
        self.all_encoder_layers = [tf.cast(layer, tf.float32) for layer in layers_below]
        self.sequence_output = None
        if not pooled_only:
            self.sequence_output = tf.cast(last, tf.float32)
            self.all_encoder_layers.append(self.sequence_output)

    def get_pooled_output(self):
        """[B, D]: the first position's output through the pooler."""
        return self.pooled_output

    def get_sequence_output(self):
        """[B, S, D]: the last layer's output; ValueError if the model is `pooled_only`."""
        if self.sequence_output is None:
            raise ValueError("A model with pooled_only=True has no sequence output.")
        return self.sequence_output

    def get_all_encoder_layers(self):
        """A list of [B, S, D], one per layer, of a `pooled_only` model without the last."""
        return self.all_encoder_layers

    def get_embedding_output(self):
        """[B, S, D]: what the first layer reads."""
        return self.embedding_output

    def get_embedding_table(self):
        """[vocab_size, D]: the WordPiece embeddings."""
        return self.embedding_table


def get_assignment_map_from_checkpoint(tvars, init_checkpoint):
    """Pairs the variables of a graph with the tensors of a checkpoint that have their names.

    Args:
      tvars: variables of the graph.
      init_checkpoint: prefix of a TensorFlow checkpoint.

    Returns:
      (assignment_map, initialized_variable_names): an ordered dict from a checkpoint's tensor to
      the variable of that name, for `tf.train.init_from_checkpoint`, and a dict whose keys are
      those variables' names, with and without ":0".
    """
    names = OrderedDict((variable_name(variable), variable) for variable in tvars)
    assignment_map = OrderedDict()
    initialized_variable_names = {}
    for name, _ in tf.train.list_variables(init_checkpoint):
        if name in names:
            assignment_map[name] = names[name].name.split(":")[0]
            initialized_variable_names[name] = 1
            initialized_variable_names[name + ":0"] = 1
    return assignment_map, initialized_variable_names


def _pool(first, config):
    """The first position's output [B, D] through BERT's pooler, in float32."""
    with tf.variable_scope("pooler"):
        return dense(
            tf.cast(first, tf.float32),
            config.hidden_size,
            "dense",
            activation=tf.tanh,
            initializer_range=config.initializer_range,
        )


def _layer_norm_collections(adapter_fn):
    # Plain BERT leaves the collection empty: that is how `optimization.create_optimizer` knows a
    # model without adapters, of which it trains everything, as BERT's own does.
    return () if adapter_fn is None else (LAYER_NORM,)


def embedding_lookup(
    input_ids,
    vocab_size,
    embedding_size=128,
    initializer_range=0.02,
    word_embedding_name="word_embeddings",
    use_one_hot_embeddings=False,
):
    """Looks ids up in a table of embeddings.

    Args:
      input_ids: int32 Tensor [B, S].

    Returns:
      (float Tensor [B, S, embedding_size], the table [vocab_size, embedding_size]).
    """
    table = tf.get_variable(
        word_embedding_name,
        [vocab_size, embedding_size],
        initializer=create_initializer(initializer_range),
    )
    shape = get_shape_list(input_ids, expected_rank=2, name="input_ids")
    if not use_one_hot_embeddings:
        return tf.gather(table, input_ids), table
    one_hot = tf.one_hot(tf.reshape(input_ids, [-1]), depth=vocab_size)
    return tf.reshape(tf.matmul(one_hot, table), shape + [embedding_size]), table


def embedding_postprocessor(
    input_tensor,
    token_type_ids,
    config,
    dropout_key=None,
    layer_norm_collections=(),
    dtype=tf.float32,
):
    """Adds segment and position embeddings, normalizes, drops out.

    Args:
      input_tensor: float Tensor [B, S, D].
      token_type_ids: int32 Tensor [B, S].
      config: `BertConfig`.

    Returns:
      Tensor [B, S, D] of that dtype.
    """
    shape = get_shape_list(input_tensor, expected_rank=3)
    seq_length, width = shape[1:]
    initializer = create_initializer(config.initializer_range)
    types = tf.get_variable(
        "token_type_embeddings", [config.type_vocab_size, width], initializer=initializer
    )
    positions = tf.get_variable(
        "position_embeddings", [config.max_position_embeddings, width], initializer=initializer
    )
    # The table of types is so small that a matrix product beats a gather everywhere.
    one_hot_types = tf.one_hot(tf.reshape(token_type_ids, [-1]), depth=config.type_vocab_size)
    output = input_tensor + tf.reshape(tf.matmul(one_hot_types, types), shape)
    output += positions[tf.newaxis, :seq_length]
    output = layer_norm(
        output, dtype=dtype, collections=layer_norm_collections, trains=_trains(config)
    )
    return dropout(output, config.hidden_dropout_prob, key=dropout_key)


def transformer_model(
    input_tensor,
    input_mask,
    config,
    adapters,
    dropout_key=None,
    *,
    pooled_only=False,
    recompute_activations=False,
):
    """The stack of Transformer layers (Vaswani et al. 2017, arXiv 1706.03762).

    Args:
      input_tensor: float Tensor [B, S, D].
      input_mask: int32 Tensor [B, S].
      config: `BertConfig`.
      adapters: what `adapters_of_layers` returns.

    Returns:
      A list of float Tensors [B, S, D], the output of each layer; where `pooled_only` the last is
      [B, D], that of the first position.
    """
    shape = get_shape_list(input_tensor, expected_rank=3)
    # A matrix all the way: reshapes between [B, S, D] and [B * S, D] are not free on TPUs.
    hidden = tf.reshape(input_tensor, [-1, shape[-1]])
    outputs = []
    for index, adapters_of_layer in enumerate(adapters):
        layer = functools.partial(
            transformer_layer,
            input_mask=input_mask,
            config=config,
            adapters=adapters_of_layer,
            dropout_key=dropout_key,
            first_only=pooled_only and index == len(adapters) - 1,
        )
        with tf.variable_scope(f"layer_{index}"):
            hidden = recomputed(layer, hidden) if recompute_activations else layer(hidden)
        outputs.append(hidden)
    whole = outputs[:-1] if pooled_only else outputs
    return [tf.reshape(hidden, shape) for hidden in whole] + outputs[len(whole) :]


def transformer_layer(hidden, input_mask, config, adapters, dropout_key=None, *, first_only=False):
    """One layer: self-attention, then the feed-forward layer, each closed by `_add_and_norm`.

    Args:
      hidden: float Tensor [B * S, D].
      input_mask: int32 Tensor [B, S].
      adapters: dict from the scopes of projections to functions, see `adapters_of_layers`.
      first_only: bool; compute the first position of each sequence alone.

    Returns:
      float Tensor [B * S, D], or [B, D] where `first_only`.
    """
    queries = hidden
    if first_only:
        batch_and_length = get_shape_list(input_mask, expected_rank=2)
        queries = tf.reshape(hidden, [*batch_and_length, config.hidden_size])[:, 0, :]
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = attention(queries, hidden, input_mask, config, dropout_key)
        with tf.variable_scope("output"):
            adapter_fn = adapters.get("attention/output")
            attended = _add_and_norm(context, queries, config, adapter_fn, dropout_key)
    with tf.variable_scope("intermediate"):
        intermediate = dense(
            attended,
            config.intermediate_size,
            "dense",
            activation=get_activation(config.hidden_act),
            initializer_range=config.initializer_range,
        )
    with tf.variable_scope("output"):
        adapter_fn = adapters.get("output")
        return _add_and_norm(intermediate, attended, config, adapter_fn, dropout_key)


def _add_and_norm(input_tensor, residual, config, adapter_fn, dropout_key):
    """Projection, dropout, adapter, residual, LayerNorm (Houlsby et al. 2019, figure 2, left).

    input_tensor is [rows, in]; residual and the result are [rows, D].
    """
    output = dense(
        input_tensor, config.hidden_size, "dense", initializer_range=config.initializer_range
    )
    output = dropout(output, config.hidden_dropout_prob, key=dropout_key)
    terms = output if adapter_fn is None else adapter_fn(output, residual)
    terms = list(terms) if isinstance(terms, (list, tuple)) else [terms]
    collections = _layer_norm_collections(adapter_fn)
    return layer_norm(residual, plus=terms, collections=collections, trains=_trains(config))


def _trains(config):
    # `BertModel` takes dropout out of its config where nothing is trained. A training without any
    # is slower for it, and no worse.
    return bool(config.hidden_dropout_prob)  # None, as 0, is no dropout.


def attention(queries, hidden, input_mask, config, dropout_key=None):
    """Self-attention of several heads (Vaswani et al. 2017, section 3.2).

    Args:
      queries: float Tensor [B * F, D], the rows of `hidden` that attend, F of each sequence.
      hidden: float Tensor [B * S, D].
      input_mask: int32 Tensor [B, S]; positions with 0 are attended to by none.

    Returns:
      float Tensor [B * F, D], the heads' contexts side by side.
    """
    batch_size, _ = get_shape_list(input_mask, expected_rank=2, name="input_mask")

    def heads_of(rows, name):
        projected = dense(
            rows, config.hidden_size, name, initializer_range=config.initializer_range
        )
        return layers.split_heads(projected, batch_size, config.num_attention_heads)

    context = layers.attend(
        heads_of(queries, "query"),
        heads_of(hidden, "key"),
        heads_of(hidden, "value"),
        input_mask,
        config.attention_probs_dropout_prob,
        dropout_key=dropout_key,
    )
    return layers.merge_heads(context)


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)


def check_config(config):
    """Raises UserError if no model has these sizes, rates and this activation."""
    for name in _SIZES:
        size = getattr(config, name)
        if not isinstance(size, numbers.Integral) or not 1 <= size < layers.TOO_LARGE:
            raise UserError(
                f"{name} of the BERT config must be a whole number above 0, but is {size!r}."
            )
    if config.hidden_size % config.num_attention_heads:
        raise UserError(
            f"hidden_size {config.hidden_size} of the BERT config is not a multiple of"
            f" num_attention_heads {config.num_attention_heads}."
        )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"):
        rate = getattr(config, name)  # None, as 0, is no dropout.
        if not isinstance(rate, (numbers.Real, type(None))) or not 0 <= (rate or 0) < 1:
            raise UserError(
                f"{name} of the BERT config must be a number from 0 to below 1, but is {rate!r}."
            )
    get_activation(config.hidden_act)


def _checked_inputs(config, input_ids, input_mask, token_type_ids):
    """Fills the defaults in, and raises before any variable is made if they do not fit.

    Returns:
      (input_ids, input_mask, token_type_ids), three Tensors [B, S].
    """
    check_config(config)
    input_ids = tf.convert_to_tensor(input_ids)
    shape = get_shape_list(input_ids, expected_rank=2, name="input_ids")
    seq_length = input_ids.shape.as_list()[1]
    if seq_length is not None and seq_length > config.max_position_embeddings:
        raise UserError(
            f"A sequence of {seq_length} tokens does not fit the model, whose position table ends"
            f" at {config.max_position_embeddings} (max_position_embeddings)."
        )
    input_mask = tf.ones(shape, tf.int32) if input_mask is None else input_mask
    token_type_ids = tf.zeros(shape, tf.int32) if token_type_ids is None else token_type_ids
    others = [tf.convert_to_tensor(tensor) for tensor in (input_mask, token_type_ids)]
    for name, tensor in zip(("input_mask", "token_type_ids"), others):
        if not tensor.shape.is_compatible_with(input_ids.shape):
            raise ValueError(
                f"Tensor {name} in scope {tf.get_variable_scope().name!r} must have the shape of"
                f" input_ids, {input_ids.shape}, but has {tensor.shape}."
            )
    return (input_ids, *others)


def _checked_gates(config, input_ids, gates):
    """Gates as a float Tensor [B, L], or None; ValueError if they have another shape."""
    gates = tf.cast(gates, tf.float32)
    expected = [input_ids.shape.as_list()[0], config.num_hidden_layers]
    if not gates.shape.is_compatible_with(expected):
        raise ValueError(f"adapter_gates must have the shape {expected}, but have {gates.shape}.")
    return gates
