"""BERT with adapter modules: the encoder, and every variable it is made of.

The encoder is Devlin et al. 2018 (https://arxiv.org/abs/1810.04805). Variable names are those of
Google's checkpoints. Read it from the top: `BertModel`, then the parts it is built of. The adapters
lie in `ops/adapters.py`, the arithmetic beside them, the configurations in `common/configs.py`. The
names among these that users of BERT and adapter-bert know are found here, too.

Axes in shape comments:
    B  batch            F  "from" positions (queries)    N  attention heads
    S  positions        T  "to" positions (keys)         H  size of one head
    D  hidden size, N * H
"""

import functools
from collections import OrderedDict
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common.configs import AdapterConfig, BertConfig, check_config  # noqa: F401 (users import them from here)
from adapter_bert.common.errors import UserError
from adapter_bert.common.model_variables import (  # noqa: F401 (the collections of adapter-bert's modeling)
    ADAPTERS,
    HEAD,
    LAYER_NORM,
)
from adapter_bert.ops import layers
from adapter_bert.ops.adapters import (  # noqa: F401 (what adapter-bert's modeling offers)
    adapters_of_layers,
    feedforward_adapter,
    get_adapter,
)
from adapter_bert.ops.dropout import DropoutKey, dropout
from adapter_bert.ops.layers import (  # noqa: F401 (what BERT's modeling offers)
    assert_rank,
    create_initializer,
    dense,
    gelu,
    get_activation,
    get_shape_list,
    layer_norm,
    variable_name,
)
from adapter_bert.ops.rematerialization import recomputed


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
      adapter_layers: indices of the layers that `adapter_fn` adapts; None for all, or for those
        that its `AdapterConfig` names.
      dtype: tf.float32, or tf.bfloat16 for what lies between the variables and the outputs, which
        both stay float32.
      pooled_only: bool; the last layer is computed for the first position alone, which is all that
        a head on the pooled output reads. There is no sequence output then.
      recompute_activations: bool; the backward pass computes each layer anew, and less memory is
        needed. Needs a dropout key where there is dropout.
      adapter_gates: float Tensor [B, L] for the L layers: 1 where both adapters of the layer count
        for the sequence, 0 where they are taken out. None leaves all of them in.

    Raises:
      ValueError: shapes, layers and config do not go together; raised before any variable is made.
    """

    def __init__(
        self,
        config: BertConfig,
        is_training: bool,
        input_ids,
        input_mask=None,
        token_type_ids=None,
        use_one_hot_embeddings: bool = False,
        scope: Optional[str] = None,
        adapter_fn="feedforward_adapter",
        *,
        dropout_key: Optional[DropoutKey] = None,
        adapter_layers: Optional[Sequence[int]] = None,
        dtype=tf.float32,
        pooled_only: bool = False,
        recompute_activations: bool = False,
        adapter_gates=None,
    ):
        adapter_fn = get_adapter(adapter_fn)
        input_ids, input_mask, token_type_ids, gates = _check_inputs(
            config, input_ids, input_mask, token_type_ids, adapter_gates
        )
        forward = ForwardPass(
            config, is_training, input_mask, dropout_key, dtype, pooled_only, recompute_activations
        )
        statistics = [] if is_training else None
        adapters = adapters_of_layers(
            adapter_fn, adapter_layers, config.num_hidden_layers, statistics, gates
        )
        with tf.variable_scope(scope, default_name="bert"):
            embeddings, self.embedding_table = _embed(
                input_ids, token_type_ids, forward, adapter_fn, use_one_hot_embeddings
            )
            with tf.variable_scope("encoder"):
                outputs, first_output = transformer_model(embeddings, forward, adapters)
            self.pooled_output = _pool(first_output, forward)
        # Now, since what recomputes a layer for its gradient makes its statistics once more.
        layers.keep_statistics(statistics or ())
        self.embedding_output = tf.cast(embeddings, tf.float32)
        self.all_encoder_layers = [tf.cast(output, tf.float32) for output in outputs]
        self.sequence_output = None if pooled_only else self.all_encoder_layers[-1]

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


def get_assignment_map_from_checkpoint(
    tvars, init_checkpoint: str
) -> Tuple[Dict[str, str], Dict[str, int]]:
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


class ForwardPass(NamedTuple):
    """What all parts of an encoder share while it computes a batch; see `BertModel`.

    Attributes:
      config: `BertConfig`.
      is_training: bool; without it nothing drops out, and LayerNorms keep nothing for a gradient.
      input_mask: int32 Tensor [B, S].
      dropout_key: `DropoutKey` or None.
      dtype: of what lies between the variables and the outputs.
      pooled_only: bool.
      recompute_activations: bool.
    """

    config: BertConfig
    is_training: bool
    input_mask: tf.Tensor
    dropout_key: Optional[DropoutKey]
    dtype: tf.DType
    pooled_only: bool
    recompute_activations: bool

    def dense(self, input_tensor, units: int, name: str, activation: Optional[Callable] = None):
        """`layers.dense`, initialized as the config says."""
        stddev = self.config.initializer_range
        return dense(input_tensor, units, name, activation=activation, initializer_range=stddev)

    def dropout(self, input_tensor):
        """Dropout of embeddings and of a sub-layer's output."""
        rate = self.config.hidden_dropout_prob if self.is_training else 0.0
        return dropout(input_tensor, rate, key=self.dropout_key)


def _layer_norm_collections(adapter_fn):
    # Plain BERT leaves the collection empty: that is how `optimization.create_optimizer` knows a
    # model without adapters, of which it trains everything, as BERT's own does.
    return () if adapter_fn is None else (LAYER_NORM,)


def _embed(
    input_ids, token_type_ids, forward: ForwardPass, adapter_fn, use_one_hot_embeddings: bool
):
    """(Tensor [B, S, D] for the first layer, the table of WordPiece embeddings)."""
    config, collections = forward.config, _layer_norm_collections(adapter_fn)
    with tf.variable_scope("embeddings"):
        embeddings, table = embedding_lookup(
            input_ids,
            config.vocab_size,
            config.hidden_size,
            config.initializer_range,
            use_one_hot_embeddings=use_one_hot_embeddings,
        )
        return embedding_postprocessor(embeddings, token_type_ids, forward, collections), table


def embedding_lookup(
    input_ids,
    vocab_size: int,
    embedding_size: int = 128,
    initializer_range: float = 0.02,
    word_embedding_name: str = "word_embeddings",
    use_one_hot_embeddings: bool = False,
):
    """Looks ids up in a table of embeddings.

    Args:
      input_ids: int32 Tensor [B, S].
      vocab_size, embedding_size: of the table.
      initializer_range: stddev of the truncated normal that it starts from.
      word_embedding_name: its variable's.
      use_one_hot_embeddings: bool; look up by a matrix product.

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
    input_tensor, token_type_ids, forward: ForwardPass, layer_norm_collections: Sequence[str] = ()
):
    """Adds segment and position embeddings, normalizes, drops out.

    Args:
      input_tensor: float Tensor [B, S, D].
      token_type_ids: int32 Tensor [B, S].
      forward: `ForwardPass`.
      layer_norm_collections: graph collections that the LayerNorm's variables join.

    Returns:
      Tensor [B, S, D] of the pass's dtype.
    """
    config = forward.config
    shape = get_shape_list(input_tensor, expected_rank=3)
    seq_length, width = shape[1:]
    initializer = create_initializer(config.initializer_range)
    token_type_table = tf.get_variable(
        "token_type_embeddings", [config.type_vocab_size, width], initializer=initializer
    )
    position_table = tf.get_variable(
        "position_embeddings", [config.max_position_embeddings, width], initializer=initializer
    )
    # The table of types is so small that a matrix product beats a gather everywhere.
    one_hot_types = tf.one_hot(tf.reshape(token_type_ids, [-1]), depth=config.type_vocab_size)
    output = input_tensor + tf.reshape(tf.matmul(one_hot_types, token_type_table), shape)
    output += position_table[tf.newaxis, :seq_length]
    output = layer_norm(
        output,
        dtype=forward.dtype,
        collections=layer_norm_collections,
        training=forward.is_training,
    )
    return forward.dropout(output)


def transformer_model(input_tensor, forward: ForwardPass, adapters: List[Dict[str, Callable]]):
    """The stack of Transformer layers (Vaswani et al. 2017, arXiv 1706.03762).

    Args:
      input_tensor: float Tensor [B, S, D].
      forward: `ForwardPass`.
      adapters: what `adapters_of_layers` returns.

    Returns:
      (a list of float Tensors [B, S, D], the output of each layer, without the last of a pass that
      is `pooled_only`; [B, D], the last layer's output at the first position).
    """
    shape = get_shape_list(input_tensor, expected_rank=3)
    # A matrix all the way: reshapes between [B, S, D] and [B * S, D] are not free on TPUs.
    hidden = tf.reshape(input_tensor, [-1, shape[-1]])
    outputs = []
    for index, adapters_of_layer in enumerate(adapters):
        layer = functools.partial(
            transformer_layer,
            forward=forward,
            adapters=adapters_of_layer,
            first_only=forward.pooled_only and index == len(adapters) - 1,
        )
        with tf.variable_scope(f"layer_{index}"):
            hidden = recomputed(layer, hidden) if forward.recompute_activations else layer(hidden)
        outputs.append(hidden)
    if forward.pooled_only:
        return [tf.reshape(output, shape) for output in outputs[:-1]], outputs[-1]
    outputs = [tf.reshape(output, shape) for output in outputs]
    return outputs, outputs[-1][:, 0, :]


def transformer_layer(
    hidden, forward: ForwardPass, adapters: Dict[str, Callable], *, first_only: bool = False
):
    """One layer: self-attention, then the feed-forward layer, each closed by `_add_and_norm`.

    Args:
      hidden: float Tensor [B * S, D].
      forward: `ForwardPass`.
      adapters: dict from the scopes of projections to functions, see `adapters_of_layers`.
      first_only: bool; compute the first position of each sequence alone.

    Returns:
      float Tensor [B * S, D], or [B, D] where `first_only`.
    """
    config, queries = forward.config, hidden
    if first_only:
        batch_and_length = get_shape_list(forward.input_mask, expected_rank=2)
        queries = tf.reshape(hidden, [*batch_and_length, config.hidden_size])[:, 0, :]
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = attention(queries, hidden, forward)
        with tf.variable_scope("output"):
            attention_output = _add_and_norm(
                context, queries, forward, adapters.get("attention/output")
            )
    with tf.variable_scope("intermediate"):
        activation = get_activation(config.hidden_act)
        intermediate = forward.dense(
            attention_output, config.intermediate_size, "dense", activation
        )
    with tf.variable_scope("output"):
        return _add_and_norm(intermediate, attention_output, forward, adapters.get("output"))


def _add_and_norm(input_tensor, residual, forward: ForwardPass, adapter_fn):
    """Projection, dropout, adapter, residual, LayerNorm (Houlsby et al. 2019, figure 2, left).

    input_tensor is [rows, in]; residual and the result are [rows, D].
    """
    output = forward.dropout(forward.dense(input_tensor, forward.config.hidden_size, "dense"))
    terms = [output] if adapter_fn is None else adapter_fn(output, residual)
    collections = _layer_norm_collections(adapter_fn)
    return layer_norm(residual, plus=terms, collections=collections, training=forward.is_training)


def attention(queries, hidden, forward: ForwardPass):
    """Self-attention of several heads (Vaswani et al. 2017, section 3.2).

    Args:
      queries: float Tensor [B * F, D], the rows of `hidden` that attend, F of each sequence.
      hidden: float Tensor [B * S, D].
      forward: `ForwardPass`; positions where its mask has 0 are attended to by none.

    Returns:
      float Tensor [B * F, D], the heads' contexts side by side.
    """
    config = forward.config
    batch_size, _ = get_shape_list(forward.input_mask, expected_rank=2, name="input_mask")

    def project_heads(rows, name):
        projected = forward.dense(rows, config.hidden_size, name)
        return layers.split_heads(projected, batch_size, config.num_attention_heads)

    context = layers.dot_product_attention(
        project_heads(queries, "query"),
        project_heads(hidden, "key"),
        project_heads(hidden, "value"),
        forward.input_mask,
        config.attention_probs_dropout_prob if forward.is_training else 0.0,
        dropout_key=forward.dropout_key,
    )
    return layers.merge_heads(context)


def _pool(first_output, forward: ForwardPass):
    """The first position's output [B, D] through BERT's pooler, in float32."""
    with tf.variable_scope("pooler"):
        rows = tf.cast(first_output, tf.float32)
        return forward.dense(rows, forward.config.hidden_size, "dense", tf.tanh)


def _check_inputs(config: BertConfig, input_ids, input_mask, token_type_ids, adapter_gates):
    """Fills the defaults in, and raises before any variable is made if they do not fit.

    Returns:
      (input_ids, input_mask, token_type_ids, adapter_gates): three Tensors [B, S], and a float
      Tensor [B, L] or None.
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
    tensors = [tf.convert_to_tensor(tensor) for tensor in (input_mask, token_type_ids)]
    for name, tensor in zip(("input_mask", "token_type_ids"), tensors):
        if not tensor.shape.is_compatible_with(input_ids.shape):
            raise ValueError(
                f"Tensor {name} in scope {tf.get_variable_scope().name!r} must have the shape of"
                f" input_ids, {input_ids.shape}, but has {tensor.shape}."
            )
    if adapter_gates is not None:
        adapter_gates = tf.cast(adapter_gates, tf.float32)
        gates_shape = [input_ids.shape.as_list()[0], config.num_hidden_layers]
        if not adapter_gates.shape.is_compatible_with(gates_shape):
            raise ValueError(
                f"adapter_gates must have the shape {gates_shape}, but have {adapter_gates.shape}."
            )
    return (input_ids, *tensors, adapter_gates)
