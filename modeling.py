"""BERT with adapter modules: the encoder and all of its variables.

The encoder follows Devlin et al. 2018 (https://arxiv.org/abs/1810.04805), the adapters follow
Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751). Read from the top: `BertModel`,
`transformer_model`, `transformer_layer`, `feedforward_adapter`. Variables and functions are named
as in Google's checkpoints and code. `adapter_bert/ops` implements the operations of a layer,
`model/configs.py` the configurations.

Axes in shape comments:
    B  batch            F  "from" positions (queries)    N  attention heads
    S  positions        T  "to" positions (keys)         H  size of one head
    D  hidden size, N * H
"""

import functools
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from adapter_bert.model.configs import OWN_FUNCTIONS, AdapterConfig, BertConfig, check_config
from adapter_bert.model.model_variables import ADAPTERS, HEAD, LAYER_NORM  # noqa: F401 (as in adapter-bert's modeling)
from adapter_bert.ops import graph_functions, layers, xla
from adapter_bert.ops.adapters import Adapter, Place
from adapter_bert.ops.dropout import DropoutKey, dropout
from adapter_bert.ops.graph_functions import SharedLayer
from adapter_bert.ops.layers import (  # noqa: F401 (as in BERT's modeling)
    assert_rank,
    create_initializer,
    gelu,
    get_activation,
    get_shape_list,
    layer_norm,
    variable_name,
)
from adapter_bert.ops.parameters import VARIABLES, Parameters
from adapter_bert.ops.rematerialization import recomputed
from adapter_bert.shell.errors import UserError


class BertModel:
    """Builds BERT's encoder, with adapters in its layers.

    Args:
      config: `BertConfig`.
      is_training: bool; enables dropout, and batch statistics in batch normalization.
      input_ids: int32 Tensor [B, S].
      input_mask: int32 Tensor [B, S], 1 for a token and 0 for padding; all ones by default.
      token_type_ids: int32 Tensor [B, S], segment ids; all zeros by default.
      use_one_hot_embeddings: bool; look up embeddings by a matrix product, for TPUs.
      scope: name of the variable scope, "bert" by default.
      adapter_fn: None for plain BERT; an `AdapterConfig`; a name that `get_adapter` accepts; or a
        function from [rows, D] to [rows, D] that registers its variables in the collection
        `adapters`; rows is B in the last layer if `pooled_only`, else B * S. Its Tensors have the
        dtype `dtype`. If it returns several, their sum is the output.
      dropout_key: `DropoutKey` for reproducible masks; None for TensorFlow's own dropout.
      adapter_layers: indices of the layers with adapters; None for those that the `AdapterConfig`
        names, by default all.
      dtype: dtype of the activations, tf.float32 or tf.bfloat16. Variables and outputs are always
        float32.
      pooled_only: bool; compute the last layer only at the first position, which is all that a
        head on the pooled output reads. The model then has no sequence output.
      recompute_activations: bool; save memory by recomputing each layer in the backward pass.
        Dropout then requires a dropout key.
      adapter_gates: float Tensor [B, L] for L layers: 1 applies both adapters of the layer to the
        example, 0 skips them. None applies all.
      parameters: the source of the weights, by default variables.

    Raises:
      UserError: sequences are longer than the config's positions, or the config is no BERT's.
      ValueError: the arguments are inconsistent. All are raised before any variable is created.
    """

    def __init__(
        self,
        config: BertConfig,
        is_training: bool,
        input_ids: tf.Tensor,
        input_mask: Optional[tf.Tensor] = None,
        token_type_ids: Optional[tf.Tensor] = None,
        use_one_hot_embeddings: bool = False,
        scope: Optional[str] = None,
        adapter_fn: Any = "feedforward_adapter",
        *,
        dropout_key: Optional[DropoutKey] = None,
        adapter_layers: Optional[Sequence[int]] = None,
        dtype: tf.DType = tf.float32,
        pooled_only: bool = False,
        recompute_activations: bool = False,
        adapter_gates: Optional[tf.Tensor] = None,
        parameters: Parameters = VARIABLES,
    ):
        input_ids, input_mask, token_type_ids, gates = _check_inputs(
            config, input_ids, input_mask, token_type_ids, adapter_gates
        )
        adapter = _as_adapter(adapter_fn, adapter_layers, config.num_hidden_layers)
        forward = ForwardPass(
            dtype,
            is_training,
            dropout_key,
            # Plain BERT leaves the collection empty. `create_optimizer` then trains all variables,
            # as BERT's does.
            layer_norm_collections=() if adapter.function is None else (LAYER_NORM,),
            statistics=[] if is_training else None,
            parameters=parameters,
            adapter_gates=gates,
            first_position_only=pooled_only,
            recompute_activations=recompute_activations,
        )
        hidden_dropout = config.hidden_dropout_prob if is_training else 0.0
        attention_dropout = config.attention_probs_dropout_prob if is_training else 0.0
        with tf.variable_scope(scope, default_name="bert"):
            with tf.variable_scope("embeddings"):
                embeddings, self.embedding_table = embedding_lookup(
                    input_ids,
                    config.vocab_size,
                    config.hidden_size,
                    config.initializer_range,
                    use_one_hot_embeddings=use_one_hot_embeddings,
                )
                embeddings = embedding_postprocessor(
                    embeddings,
                    use_token_type=True,
                    token_type_ids=token_type_ids,
                    token_type_vocab_size=config.type_vocab_size,
                    initializer_range=config.initializer_range,
                    max_position_embeddings=config.max_position_embeddings,
                    dropout_prob=hidden_dropout,
                    forward=forward,
                )
            with tf.variable_scope("encoder"):
                outputs = transformer_model(
                    embeddings,
                    create_attention_mask_from_input_mask(input_ids, input_mask, shared=True),
                    config.hidden_size,
                    config.num_hidden_layers,
                    config.num_attention_heads,
                    config.intermediate_size,
                    get_activation(config.hidden_act),
                    hidden_dropout,
                    attention_dropout,
                    config.initializer_range,
                    do_return_all_layers=True,
                    adapter_fn=adapter,
                    forward=forward,
                )
            with tf.variable_scope("pooler"):
                first = outputs.pop() if pooled_only else outputs[-1][:, 0, :]
                self.pooled_output = forward.dense(
                    tf.cast(first, tf.float32),
                    config.hidden_size,
                    tf.tanh,
                    initializer_range=config.initializer_range,
                )
        # Before gradients are built: recomputing a layer would append its statistics again.
        layers.keep_statistics(forward.statistics or ())
        self.embedding_output = tf.cast(embeddings, tf.float32)
        self.all_encoder_layers = [tf.cast(output, tf.float32) for output in outputs]
        self.sequence_output = None if pooled_only else self.all_encoder_layers[-1]

    def get_pooled_output(self) -> tf.Tensor:
        """Returns the pooler's output for the first position, [B, D]."""
        return self.pooled_output

    def get_sequence_output(self) -> tf.Tensor:
        """Returns the last layer's output, [B, S, D]; raises ValueError if `pooled_only`."""
        if self.sequence_output is None:
            raise ValueError("A model with pooled_only=True has no sequence output.")
        return self.sequence_output

    def get_all_encoder_layers(self) -> List[tf.Tensor]:
        """Returns the output of each layer, [B, S, D]; if `pooled_only`, without the last."""
        return self.all_encoder_layers

    def get_embedding_output(self) -> tf.Tensor:
        """Returns the input of the first layer, [B, S, D]."""
        return self.embedding_output

    def get_embedding_table(self) -> tf.Tensor:
        """Returns the table of WordPiece embeddings, [vocab_size, D]."""
        return self.embedding_table


def get_assignment_map_from_checkpoint(
    tvars: Iterable[Any], init_checkpoint: str
) -> Tuple[Dict[str, str], Dict[str, int]]:
    """Returns the map from a checkpoint's tensors to the variables of the same names.

    Args:
      tvars: variables of the graph.
      init_checkpoint: prefix of a TensorFlow checkpoint.

    Returns:
      (assignment_map, initialized_variable_names): an ordered dict from tensor name to variable
      name, for `tf.train.init_from_checkpoint`; and a dict whose keys are the names of these
      variables, with and without ":0".
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


def embedding_lookup(
    input_ids: tf.Tensor,
    vocab_size: int,
    embedding_size: int = 128,
    initializer_range: float = 0.02,
    word_embedding_name: str = "word_embeddings",
    use_one_hot_embeddings: bool = False,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the embeddings of ids, and the table of embeddings.

    Args:
      input_ids: int32 Tensor [B, S].
      vocab_size, embedding_size: shape of the table.
      initializer_range: stddev of the truncated normal that initializes the table.
      word_embedding_name: name of the table's variable.
      use_one_hot_embeddings: bool; look up by a matrix product.

    Returns:
      (float Tensor [B, S, embedding_size], the table [vocab_size, embedding_size]).
    """
    if input_ids.shape.ndims == 3:  # BERT's function accepts [B, S, 1], too.
        input_ids = tf.squeeze(input_ids, -1)
    initializer = create_initializer(initializer_range)
    table = VARIABLES.get(word_embedding_name, [vocab_size, embedding_size], initializer)
    shape = get_shape_list(input_ids, expected_rank=2, name="input_ids")
    if not use_one_hot_embeddings:
        return tf.gather(table, input_ids), table
    one_hot = tf.one_hot(tf.reshape(input_ids, [-1]), depth=vocab_size)
    return tf.reshape(tf.matmul(one_hot, table), shape + [embedding_size]), table


def embedding_postprocessor(
    input_tensor: tf.Tensor,
    use_token_type: bool = False,
    token_type_ids: Optional[tf.Tensor] = None,
    token_type_vocab_size: int = 16,
    token_type_embedding_name: str = "token_type_embeddings",
    use_position_embeddings: bool = True,
    position_embedding_name: str = "position_embeddings",
    initializer_range: float = 0.02,
    max_position_embeddings: int = 512,
    dropout_prob: float = 0.1,
    *,
    forward: "Optional[ForwardPass]" = None,
) -> tf.Tensor:
    """Adds segment and position embeddings, then applies LayerNorm and dropout.

    Args:
      input_tensor: float Tensor [B, S, D].
      use_token_type: bool; add segment embeddings.
      token_type_ids: int32 Tensor [B, S], segment ids; required if `use_token_type`.
      token_type_vocab_size, token_type_embedding_name: size and name of the segment table.
      use_position_embeddings: bool; add position embeddings.
      position_embedding_name, max_position_embeddings: name and size of the position table.
      initializer_range: stddev of the truncated normal that initializes the tables.
      dropout_prob: float.
      forward: `ForwardPass`.

    Returns:
      Tensor [B, S, D].

    Raises:
      ValueError: segment ids are missing, or a sequence is longer than the position table.
    """
    forward = forward or ForwardPass()
    shape = get_shape_list(input_tensor, expected_rank=3)
    seq_length, width = shape[1:]
    initializer = create_initializer(initializer_range)
    output = input_tensor
    if use_token_type:
        if token_type_ids is None:
            raise ValueError("use_token_type=True needs token_type_ids.")
        table = forward.parameters.get(
            token_type_embedding_name, [token_type_vocab_size, width], initializer
        )
        # The segment table is so small that a matrix product is faster than a gather.
        one_hot_types = tf.one_hot(tf.reshape(token_type_ids, [-1]), depth=token_type_vocab_size)
        output += tf.reshape(tf.matmul(one_hot_types, table), shape)
    if use_position_embeddings:
        if isinstance(seq_length, int) and seq_length > max_position_embeddings:
            raise ValueError(
                f"A sequence of {seq_length} tokens is longer than the table of"
                f" {max_position_embeddings} positions."
            )
        table = forward.parameters.get(
            position_embedding_name, [max_position_embeddings, width], initializer
        )
        output += table[tf.newaxis, :seq_length]
    return layer_norm_and_dropout(output, dropout_prob, forward=forward)


def layer_norm_and_dropout(
    input_tensor: tf.Tensor,
    dropout_prob: Optional[float],
    name: Optional[str] = None,
    *,
    forward: "Optional[ForwardPass]" = None,
) -> tf.Tensor:
    """Applies LayerNorm to the last axis of [..., D], then dropout."""
    forward = forward or ForwardPass()
    return forward.dropout(forward.layer_norm(input_tensor, name), dropout_prob)


def transformer_model(
    input_tensor: tf.Tensor,
    attention_mask: Optional[tf.Tensor] = None,
    hidden_size: int = 768,
    num_hidden_layers: int = 12,
    num_attention_heads: int = 12,
    intermediate_size: int = 3072,
    intermediate_act_fn: Optional[Callable] = gelu,
    hidden_dropout_prob: Optional[float] = 0.1,
    attention_probs_dropout_prob: Optional[float] = 0.1,
    initializer_range: float = 0.02,
    do_return_all_layers: bool = False,
    adapter_fn: Any = None,
    *,
    forward: "Optional[ForwardPass]" = None,
) -> Union[tf.Tensor, List[tf.Tensor]]:
    """Builds a stack of Transformer layers (Vaswani et al. 2017, arXiv 1706.03762).

    Args:
      input_tensor: float Tensor [B, S, D].
      attention_mask: int32 or float Tensor [B, S, S], or [B, 1, S] if all queries share it;
        0 masks a key. None: every position attends to all positions.
      hidden_size: D, which must be the width of `input_tensor`.
      num_hidden_layers: L.
      num_attention_heads: N, a divisor of D.
      intermediate_size: width of the feed-forward sub-layer's hidden layer.
      intermediate_act_fn: its activation, a function from Tensors to Tensors.
      hidden_dropout_prob: dropout probability of each sub-layer's output.
      attention_probs_dropout_prob: dropout probability of the attention probabilities.
      initializer_range: stddev of the truncated normal that initializes the matrices.
      do_return_all_layers: bool; return the outputs of all layers.
      adapter_fn: as in `BertModel`.
      forward: `ForwardPass`.

    Returns:
      float Tensor [B, S, D], the last layer's output; or the list of all layers' outputs. If
      `forward.first_position_only`, the last layer's is [B, D].

    Raises:
      ValueError: the sizes are inconsistent.
    """
    shape = get_shape_list(input_tensor, expected_rank=3)
    if hidden_size % num_attention_heads or hidden_size != shape[-1]:
        raise ValueError(
            f"hidden_size, {hidden_size}, must be a multiple of num_attention_heads,"
            f" {num_attention_heads}, and the width of input_tensor, {shape[-1]}."
        )
    forward = forward or ForwardPass()
    adapter = _as_adapter(adapter_fn, None, num_hidden_layers)
    build_layer = functools.partial(
        transformer_layer,
        attention_mask=attention_mask,
        num_attention_heads=num_attention_heads,
        intermediate_size=intermediate_size,
        intermediate_act_fn=intermediate_act_fn,
        hidden_dropout_prob=hidden_dropout_prob,
        attention_probs_dropout_prob=attention_probs_dropout_prob,
        initializer_range=initializer_range,
        batch_size=shape[0],
        seq_length=shape[1],
    )
    layer_of = _layer_builder(build_layer, adapter, forward, num_hidden_layers - 1)
    # A matrix in all layers: on TPUs, reshapes between [B, S, D] and [B * S, D] are not free.
    layer_output = reshape_to_matrix(input_tensor)
    all_layer_outputs = []
    for index in range(num_hidden_layers):
        with tf.variable_scope(f"layer_{index}"):
            layer_output = layer_of(index)(layer_output)
        all_layer_outputs.append(layer_output)
    final = all_layer_outputs.pop()
    outputs = [reshape_from_matrix(output, shape) for output in all_layer_outputs]
    outputs.append(final if forward.first_position_only else reshape_from_matrix(final, shape))
    return outputs if do_return_all_layers else outputs[-1]


def transformer_layer(
    layer_input: tf.Tensor,
    attention_mask: Optional[tf.Tensor],
    num_attention_heads: int,
    intermediate_size: int,
    intermediate_act_fn: Optional[Callable],
    hidden_dropout_prob: Optional[float],
    attention_probs_dropout_prob: Optional[float],
    initializer_range: float,
    adapter: Adapter,
    batch_size: Any,
    seq_length: Any,
    *,
    forward: "ForwardPass",
) -> tf.Tensor:
    """Builds one Transformer layer with its adapters (Houlsby et al. 2019, figure 2, left).

    Args:
      layer_input: float Tensor [B * S, D].
      adapter: the layer's `Adapter`.
      batch_size, seq_length: B and S.
      forward: `ForwardPass`; if `first_position_only`, of each sequence's first position.
      The other arguments are those of `transformer_model`.

    Returns:
      float Tensor [B * S, D], or [B, D] if `first_position_only`.
    """
    hidden_size = get_shape_list(layer_input, expected_rank=2)[-1]
    dense = functools.partial(forward.dense, initializer_range=initializer_range)
    dropout, layer_norm = forward.dropout, functools.partial(forward.layer_norm, name="LayerNorm")
    all_positions = layer_input
    if forward.first_position_only:
        layer_input = tf.reshape(layer_input, [batch_size, seq_length, hidden_size])[:, 0, :]
        attention_mask = None if attention_mask is None else attention_mask[:, :1]

    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            attention_output = attention_layer(
                layer_input,
                all_positions,
                attention_mask,
                num_attention_heads,
                hidden_size // num_attention_heads,
                attention_probs_dropout_prob=attention_probs_dropout_prob,
                initializer_range=initializer_range,
                do_return_2d_tensor=True,
                batch_size=batch_size,
                from_seq_length=1 if forward.first_position_only else seq_length,
                to_seq_length=seq_length,
                forward=forward,
            )
        with tf.variable_scope("output"):
            adapter_fn = adapter.after("attention/output", layer_input, forward)
            attention_output = dense(attention_output, hidden_size)
            attention_output = dropout(attention_output, hidden_dropout_prob)
            attention_output = adapter_fn(attention_output)
            attention_output = layer_norm(attention_output + layer_input)
    with tf.variable_scope("intermediate"):
        intermediate_output = dense(attention_output, intermediate_size, intermediate_act_fn)
    with tf.variable_scope("output"):
        adapter_fn = adapter.after("output", attention_output, forward)
        layer_output = dense(intermediate_output, hidden_size)
        layer_output = dropout(layer_output, hidden_dropout_prob)
        layer_output = adapter_fn(layer_output)
        return layer_norm(layer_output + attention_output)


def attention_layer(
    from_tensor: tf.Tensor,
    to_tensor: tf.Tensor,
    attention_mask: Optional[tf.Tensor] = None,
    num_attention_heads: int = 1,
    size_per_head: int = 512,
    query_act: Optional[Callable] = None,
    key_act: Optional[Callable] = None,
    value_act: Optional[Callable] = None,
    attention_probs_dropout_prob: Optional[float] = 0.0,
    initializer_range: float = 0.02,
    do_return_2d_tensor: bool = False,
    batch_size: Any = None,
    from_seq_length: Any = None,
    to_seq_length: Any = None,
    *,
    forward: "Optional[ForwardPass]" = None,
) -> tf.Tensor:
    """Applies multi-head attention (Vaswani et al. 2017, section 3.2).

    Args:
      from_tensor: float Tensor [B, F, width] or [B * F, width], projected to queries.
      to_tensor: float Tensor [B, T, width] or [B * T, width], projected to keys and values.
      attention_mask: int32 or float Tensor [B, F, T], or [B, 1, T] if all queries share it;
        0 masks a key. None: every query attends to all keys.
      num_attention_heads: N.
      size_per_head: H.
      query_act, key_act, value_act: activations of the projections, or None.
      attention_probs_dropout_prob: dropout probability of the attention probabilities.
      initializer_range: stddev of the truncated normal that initializes the matrices.
      do_return_2d_tensor: bool; return a matrix.
      batch_size, from_seq_length, to_seq_length: B, F and T; required if the tensors are matrices.
      forward: `ForwardPass`.

    Returns:
      float Tensor [B, F, N * H], or [B * F, N * H] if `do_return_2d_tensor`: the concatenated
      outputs of the heads.

    Raises:
      ValueError: the ranks differ, or a size is missing.
    """
    forward = forward or ForwardPass()
    shape = get_shape_list(from_tensor, expected_rank=[2, 3], name="from_tensor")
    to_shape = get_shape_list(to_tensor, expected_rank=len(shape), name="to_tensor")
    if len(shape) == 3:
        (batch_size, from_seq_length), to_seq_length = shape[:2], to_shape[1]
    elif None in (batch_size, from_seq_length, to_seq_length):
        raise ValueError("Matrices need batch_size, from_seq_length and to_seq_length.")
    width = num_attention_heads * size_per_head

    def project_heads(tensor: tf.Tensor, name: str, activation: Optional[Callable]) -> tf.Tensor:
        """Projects [B, positions, D] or [B * positions, D] to [B, N, positions, H]."""
        rows = reshape_to_matrix(tensor)
        projected = forward.dense(rows, width, activation, name, initializer_range)
        return layers.split_heads(projected, batch_size, num_attention_heads)

    context = layers.dot_product_attention(
        project_heads(from_tensor, "query", query_act),
        project_heads(to_tensor, "key", key_act),
        project_heads(to_tensor, "value", value_act),
        attention_mask,
        attention_probs_dropout_prob,
        dropout_key=forward.dropout_key,
    )
    context = layers.merge_heads(context)
    if do_return_2d_tensor:
        return context
    return tf.reshape(context, [batch_size, from_seq_length, width])


def feedforward_adapter(
    input_tensor: tf.Tensor,
    hidden_size: int = 64,
    init_scale: float = 1e-3,
    *,
    place: Optional[Place] = None,
) -> Union[tf.Tensor, layers.Sum]:
    """Applies a bottleneck with an internal skip connection (Houlsby et al. 2019, section 2.1).

        x + f(x), where f(x) = act(x W1 + b1) W2 + b2

    It has 2mD + m + D parameters and is initialized near the identity.

    Args:
      input_tensor: float Tensor [..., D], x; its dtype is that of the matrix products.
      hidden_size: m, the width of the bottleneck.
      init_scale: stddev of the truncated normal that initializes W1 and W2.
      place: `Place`, with the variant and the tensor y to which f(x) is added; None for
        adapter-bert's adapter and x.

    Returns:
      float Tensor [..., D]; at a `Place` a `layers.Sum`, y + f(x).
    """
    at = place or Place(AdapterConfig(), input_tensor)
    act = get_activation(at.config.activation) or tf.identity
    weight = functools.partial(at.weight, get_shape_list(input_tensor)[-1], hidden_size)
    net = reshape_to_matrix(input_tensor)
    with tf.variable_scope("adapters"):
        net = layers.affine(net, weight("weights1", init_scale), weight("biases1"))
        net = act(at.normalize(net))
        for index in range(2, at.config.depth + 1):
            # m**-0.5 preserves the scale of activations and gradients; init_scale shrinks both.
            weights = weight(f"weights_hidden{index}", hidden_size**-0.5)
            net = act(layers.affine(net, weights, weight(f"biases_hidden{index}")))
        net = layers.affine(net, weight("weights2", init_scale), weight("biases2"))
    adapted = at.combine(tf.reshape(net, get_shape_list(input_tensor)))
    return adapted if place else tf.convert_to_tensor(adapted)


def get_adapter(function_string: Union[str, Callable, None]) -> Optional[Callable]:
    """Returns the adapter function of a name, or None.

    Args:
      function_string: "feedforward_adapter"; a name that `configs.register` returned; None, "" or
        "none" for no adapter; or a function, which is returned unchanged.

    Raises:
      UserError: the name is unknown.
    """
    if not isinstance(function_string, str):
        return function_string
    config = AdapterConfig(fn=function_string)
    if config.is_none:
        return None
    return OWN_FUNCTIONS.get(config.function) or globals()[config.function]


def _as_adapter(
    adapter_fn: Any, adapter_layers: Optional[Sequence[int]], num_layers: int
) -> Adapter:
    """Returns the `Adapter` of an encoder of that many layers, and checks its layers.

    Args:
      adapter_fn: as in `BertModel`, or an `Adapter`, which is returned unchanged.
      adapter_layers: as in `BertModel`.
      num_layers: L.

    Raises:
      ValueError: a layer index is out of range.
    """
    if isinstance(adapter_fn, Adapter):
        return adapter_fn
    if adapter_fn is feedforward_adapter:
        adapter_fn = AdapterConfig()
    elif isinstance(adapter_fn, str):
        adapter_fn = AdapterConfig(fn=adapter_fn)
    if isinstance(adapter_fn, AdapterConfig):
        adapter = Adapter(get_adapter(adapter_fn.fn), adapter_fn, adapter_fn.layers)
    else:
        adapter = Adapter(adapter_fn)
    if adapter.function is None:
        return Adapter(layers=())
    adapted_layers = adapter.layers if adapter_layers is None else adapter_layers
    adapted_layers = range(num_layers) if adapted_layers is None else adapted_layers
    unknown_layers = sorted(set(adapted_layers) - set(range(num_layers)))
    if unknown_layers:
        raise ValueError(
            f"adapter_layers must be from 0 to {num_layers - 1}, but names"
            f" {', '.join(map(str, unknown_layers))}."
        )
    return adapter._replace(layers=tuple(adapted_layers))


def _layer_builder(build: Any, adapter: Adapter, forward: "ForwardPass", last: int) -> Callable:
    """Returns a function from the index of a layer to the function that builds it from its input.

    A layer is recomputed in the backward pass or traced once for all layers, where possible.

    Args:
      build: `transformer_layer` without layer_input, adapter and forward.
      adapter: the encoder's `Adapter`.
      forward: the encoder's `ForwardPass`.
      last: index of the last layer.
    """
    can_share = _can_share_layers(adapter, forward, **build.keywords)
    shared_layers: Dict[bool, SharedLayer] = {}

    def layer_of(index: int) -> Callable:
        is_short = forward.first_position_only and index == last
        own_forward = forward._replace(first_position_only=is_short)
        own_adapter = adapter.in_layer(index, forward.adapter_gates)
        layer: Callable = functools.partial(build, adapter=own_adapter, forward=own_forward)
        if forward.recompute_activations:
            layer = functools.partial(recomputed, layer)
        elif can_share and not is_short:
            is_adapted = own_adapter.function is not None
            layer = shared_layers.setdefault(is_adapted, SharedLayer(layer, own_forward))
        # XLA would take longer to compile a short layer than it saves on so few rows.
        return xla.portable()(layer) if is_short else layer

    return layer_of


def _can_share_layers(
    adapter: Adapter,
    forward: "ForwardPass",
    *,
    intermediate_act_fn: Optional[Callable],
    hidden_dropout_prob: Optional[float],
    attention_probs_dropout_prob: Optional[float],
    **_: Any,
) -> bool:
    """Returns whether layers can share a graph function: only their parameters may differ."""
    config = adapter.config
    # Of the adapters, only `feedforward_adapter` without batch statistics is known to read nothing
    # but its input and its parameters; another function may capture Tensors of one layer.
    is_pure = not adapter.layers or (
        adapter.function is feedforward_adapter
        and config is not None
        and config.normalization != "batch"
        and config.placement != "normalized"
    )
    has_dropout = hidden_dropout_prob or attention_probs_dropout_prob
    return (
        is_pure
        and forward.adapter_gates is None
        and forward.is_training
        and (forward.dropout_key is not None or not has_dropout)
        and intermediate_act_fn in layers.ACTIVATIONS.values()
        and graph_functions.can_share()
    )


class ForwardPass(NamedTuple):
    """Holds the settings of one forward pass, for all parts of the encoder.

    Attributes:
      dtype: dtype of the activations; None for that of the input.
      is_training: bool; LayerNorms save Tensors for their gradients.
      dropout_key: `DropoutKey` for reproducible masks; None for TensorFlow's own dropout.
      layer_norm_collections: graph collections for the LayerNorms' variables.
      statistics: as in `layers.batch_norm`.
      parameters: the source of the weights.
      adapter_gates, recompute_activations: as in `BertModel`.
      first_position_only: bool; compute the last layer only at the first position.
    """

    dtype: Optional[tf.DType] = None
    is_training: bool = True
    dropout_key: Optional[DropoutKey] = None
    layer_norm_collections: Sequence[str] = (LAYER_NORM,)
    statistics: Optional[list] = None
    parameters: Parameters = VARIABLES
    adapter_gates: Any = None
    recompute_activations: bool = False
    first_position_only: bool = False

    def dense(
        self,
        rows: tf.Tensor,
        units: int,
        activation: Optional[Callable] = None,
        name: str = "dense",
        initializer_range: float = 0.02,
    ) -> tf.Tensor:
        """Returns act(x W + b) for rows x [rows, in], [rows, units] of their dtype.

        The float32 variables are `<name>/kernel` [in, units], from a truncated normal with stddev
        `initializer_range`, and `<name>/bias`, from 0.
        """
        width = get_shape_list(rows, expected_rank=2, name=name)[-1]
        initializer = create_initializer(initializer_range)
        with tf.variable_scope(name):
            kernel = self.parameters.get("kernel", [width, units], initializer)
            bias = self.parameters.get("bias", [units], tf.zeros_initializer())
            output = layers.affine(rows, kernel, bias)
            return activation(output) if activation else output

    def dropout(self, tensor: tf.Tensor, dropout_prob: Optional[float]) -> tf.Tensor:
        """Applies `dropout` with this pass's key."""
        return dropout(tensor, dropout_prob, key=self.dropout_key)

    def layer_norm(
        self, tensor: Union[tf.Tensor, layers.Sum], name: Optional[str] = None
    ) -> tf.Tensor:
        """Applies `layers.layer_norm` to a Tensor or a `layers.Sum`.

        Calls with the same name in one scope share beta and gamma.
        """
        reuse = tf.AUTO_REUSE if name else None
        scope = tf.get_variable_scope()
        with tf.variable_scope(scope, reuse=reuse, auxiliary_name_scope=False):
            return layer_norm(
                tensor,
                name,
                dtype=self.dtype,
                collections=self.layer_norm_collections,
                training=self.is_training,
                parameters=self.parameters,
            )


def create_attention_mask_from_input_mask(
    from_tensor: tf.Tensor, to_mask: tf.Tensor, *, shared: bool = False
) -> tf.Tensor:
    """Returns the attention mask that hides padding from all positions.

    Args:
      from_tensor: Tensor [B, F, ...].
      to_mask: int32 Tensor [B, T], 1 for a token and 0 for padding.
      shared: bool; return one row for all F positions.

    Returns:
      float Tensor [B, F, T], or [B, 1, T] if `shared`.
    """
    batch_size, from_seq_length = get_shape_list(from_tensor, expected_rank=[2, 3])[:2]
    to_mask = tf.cast(to_mask, tf.float32)[:, tf.newaxis, :]
    return to_mask if shared else tf.ones([batch_size, from_seq_length, 1]) * to_mask


def reshape_to_matrix(input_tensor: tf.Tensor) -> tf.Tensor:
    """Returns a Tensor [..., D] as a matrix [rows, D]; raises ValueError for a vector."""
    if input_tensor.shape.ndims < 2:
        raise ValueError(f"Expected a Tensor of rank 2 or more, not of shape {input_tensor.shape}.")
    if input_tensor.shape.ndims == 2:
        return input_tensor
    return tf.reshape(input_tensor, [-1, get_shape_list(input_tensor)[-1]])


def reshape_from_matrix(output_tensor: tf.Tensor, orig_shape_list: Sequence[Any]) -> tf.Tensor:
    """Reshapes a matrix [rows, D] to the leading axes of `orig_shape_list`, with D last."""
    if len(orig_shape_list) == 2:
        return output_tensor
    width = get_shape_list(output_tensor)[-1]
    return tf.reshape(output_tensor, [*orig_shape_list[:-1], width])


def _check_inputs(
    config: BertConfig,
    input_ids: tf.Tensor,
    input_mask: Optional[tf.Tensor],
    token_type_ids: Optional[tf.Tensor],
    adapter_gates: Optional[tf.Tensor],
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor, Optional[tf.Tensor]]:
    """Fills in defaults and checks the inputs, before any variable is created.

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
