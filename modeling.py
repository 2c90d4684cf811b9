"""BERT with adapter modules: the configurations, the encoder, and every variable it is made of.

The encoder is Devlin et al. 2018 (https://arxiv.org/abs/1810.04805); the adapters are Houlsby et
al. 2019 (https://arxiv.org/abs/1902.00751), section 2.1. Variable names are those of Google's
checkpoints. Read it from the top: `BertModel`, then the parts it is built of.

Axes in shape comments:
    B  batch            F  "from" positions (queries)    N  attention heads
    S  positions        T  "to" positions (keys)         H  size of one head
    D  hidden size, N * H                                m  adapter size
"""

import copy
import dataclasses
import functools
import json
import math
import numbers
import re
import zlib
from collections import OrderedDict
from typing import Any, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from errors import UserError

ADAPTERS = "adapters"  # Graph collections, as in adapter-bert: what an adapter function made,
LAYER_NORM = "layer_norm"  # the LayerNorms of an encoder that has adapters,
HEAD = "head"  # and the variables of a task's own layers.


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
        """Reads bert_config.json; a file that is missing, not JSON or incomplete is a UserError."""
        try:
            with tf.io.gfile.GFile(json_file, "r") as reader:
                values = json.loads(reader.read())
        except tf.errors.OpError as error:
            raise UserError(f"{json_file}: cannot be read ({error.message}).") from error
        except ValueError as error:
            raise UserError(f"{json_file}: is not valid JSON ({error}).") from error
        if not isinstance(values, dict) or not isinstance(values.get("vocab_size"), int):
            raise UserError(f"{json_file}: is not a BERT config, it has no vocab_size.")
        return cls.from_dict(values)

    def to_dict(self):
        return copy.deepcopy(self.__dict__)

    def to_json_string(self):
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """What stands after each projection of each layer (Houlsby et al. 2019, section 2.1).

    Attributes:
      size: m, the width of the bottleneck. 64 is adapter-bert's default and loses 0.8 GLUE points
        against full fine-tuning; 8 to 256 is the range of the paper.
      activation: between the two projections, a name that `get_activation` knows.
      init_scale: stddev of the truncated normal both projections start from, so small that the
        adapter starts as the identity. 1e-3 is adapter-bert's code, 1e-2 the paper's text.
      fn: the adapter's name; see `get_adapter`.
    """

    size: int = 64
    activation: str = "gelu"
    init_scale: float = 1e-3
    fn: str = "feedforward_adapter"

    def __post_init__(self):
        if self.size < 1:
            raise UserError(f"--adapter_size must be at least 1, but is {self.size}.")
        if not 0 <= self.init_scale < math.inf:
            raise UserError(
                f"--adapter_init_scale must be a number from 0 up, but is {self.init_scale}."
            )
        try:
            get_activation(self.activation)
        except UserError as error:
            raise UserError(f"--adapter_activation: {error}") from None

    def build(self):
        """Returns the function that `BertModel` takes as `adapter_fn`, or None for "none"."""
        adapter = get_adapter(self.fn)
        return adapter and functools.partial(
            adapter,
            hidden_size=self.size,
            init_scale=self.init_scale,
            activation=self.activation,
        )


class DropoutKey(NamedTuple):
    """What a run's dropout masks depend on besides their place in the model.

    Attributes:
      seed: Python int, the run's --random_seed.
      step: scalar integer Tensor, the global step: a resumed run draws the same masks.
    """

    seed: int
    step: Any


class BertModel:
    """The encoder, with an adapter after both projections of every layer.

    Args:
      config: `BertConfig`.
      is_training: bool; dropout is on only where true.
      input_ids: int32 Tensor [B, S].
      input_mask: int32 Tensor [B, S], 1 for a token and 0 for padding; all ones by default.
      token_type_ids: int32 Tensor [B, S], segment ids; all zeros by default.
      use_one_hot_embeddings: bool; look embeddings up by a matrix product, as TPUs like it.
      scope: name of the variable scope, "bert" by default.
      adapter_fn: a name that `get_adapter` knows, a function from [B * S, D] to [B * S, D] that
        registers its variables in the collection `adapters`, or None for plain BERT.
      dropout_key: `DropoutKey` for reproducible masks; without it dropout is TensorFlow's own.

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
    ):
        config = copy.deepcopy(config)
        if not is_training:
            config.hidden_dropout_prob = 0.0
            config.attention_probs_dropout_prob = 0.0
        adapter_fn = get_adapter(adapter_fn)

        input_ids, input_mask, token_type_ids = _checked_inputs(
            config, input_ids, input_mask, token_type_ids
        )

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
                self.embedding_output = embedding_postprocessor(
                    embeddings, token_type_ids, config, dropout_key, collections
                )
            with tf.variable_scope("encoder"):
                self.all_encoder_layers = transformer_model(
                    self.embedding_output, input_mask, config, adapter_fn, dropout_key
                )
            self.sequence_output = self.all_encoder_layers[-1]
            with tf.variable_scope("pooler"):
                self.pooled_output = dense(
                    self.sequence_output[:, 0, :],
                    config.hidden_size,
                    "dense",
                    activation=tf.tanh,
                    initializer_range=config.initializer_range,
                )

    def get_pooled_output(self):
        """[B, D]: the first position's output through the pooler."""
        return self.pooled_output

    def get_sequence_output(self):
        """[B, S, D]: the last layer's output."""
        return self.sequence_output

    def get_all_encoder_layers(self):
        """A list of [B, S, D], one per layer."""
        return self.all_encoder_layers

    def get_embedding_output(self):
        """[B, S, D]: what the first layer reads."""
        return self.embedding_output

    def get_embedding_table(self):
        """[vocab_size, D]: the WordPiece embeddings."""
        return self.embedding_table


def get_adapter(function_string):
    """The adapter function of a name.

    Args:
      function_string: "feedforward_adapter"; None, "" or "none" for no adapter; or a function,
        which is returned as it is.

    Raises:
      UserError: an unknown name.
    """
    if not isinstance(function_string, str):
        return function_string
    name = function_string.lower()
    if name in ("", "none"):
        return None
    if name not in _ADAPTER_FUNCTIONS:
        raise UserError(
            "--adapter_fn={}: there is no such adapter; known are {} and none.".format(
                function_string, ", ".join(_ADAPTER_FUNCTIONS)
            )
        )
    return _ADAPTER_FUNCTIONS[name]


def feedforward_adapter(input_tensor, hidden_size=64, init_scale=1e-3, *, activation="gelu"):
    """A bottleneck with an inner skip connection (Houlsby et al. 2019, section 2.1, figure 2).

    x + act(x W1 + b1) W2 + b2, which has 2mD + m + D parameters and starts near the identity.

    Args:
      input_tensor: float Tensor [..., D].
      hidden_size: m, the width of the bottleneck.
      init_scale: stddev of the truncated normal of W1 and W2.
      activation: a name that `get_activation` knows.

    Returns:
      float Tensor [..., D].
    """
    width = input_tensor.shape.as_list()[-1]
    act = get_activation(activation) or tf.identity
    with tf.variable_scope("adapters"):
        weights1, biases1 = _adapter_projection(1, width, hidden_size, init_scale)
        weights2, biases2 = _adapter_projection(2, hidden_size, width, init_scale)
        bottleneck = act(tf.tensordot(input_tensor, weights1, 1) + biases1)
        return input_tensor + tf.tensordot(bottleneck, weights2, 1) + biases2


_ADAPTER_FUNCTIONS = {"feedforward_adapter": feedforward_adapter}


def _adapter_projection(index, rows, columns, init_scale):
    """Makes weights [rows, columns] and biases [1, columns], registered as an adapter's."""

    def variable(name, shape, initializer):
        collections = [ADAPTERS, tf.GraphKeys.GLOBAL_VARIABLES]
        return tf.get_variable(name, shape, initializer=initializer, collections=collections)

    weights = variable(f"weights{index}", [rows, columns], create_initializer(init_scale))
    return weights, variable(f"biases{index}", [1, columns], tf.zeros_initializer())


def gelu(x):
    """Gaussian error linear unit, tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415).

    The form that BERT was trained with; at most 5e-4 from the exact one.
    """
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3))))


_ACTIVATIONS = {"gelu": gelu, "relu": tf.nn.relu, "tanh": tf.tanh, "linear": None, "": None}


def get_activation(activation_string):
    """The activation of a name: gelu, relu, tanh; None for "linear"; a function is returned as is.

    Raises:
      UserError: an unknown name.
    """
    if not isinstance(activation_string, str):
        return activation_string
    name = activation_string.lower()
    if name not in _ACTIVATIONS:
        raise UserError(
            "There is no activation {!r}; known are {}.".format(
                activation_string, ", ".join(sorted(filter(None, _ACTIVATIONS)))
            )
        )
    return _ACTIVATIONS[name]


def create_initializer(initializer_range=0.02):
    """A truncated normal of that stddev."""
    return tf.truncated_normal_initializer(stddev=initializer_range)


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
    names = OrderedDict((re.sub(r":\d+$", "", variable.name), variable) for variable in tvars)
    assignment_map = OrderedDict()
    initialized_variable_names = {}
    for name, _ in tf.train.list_variables(init_checkpoint):
        if name in names:
            assignment_map[name] = names[name].name.split(":")[0]
            initialized_variable_names[name] = 1
            initialized_variable_names[name + ":0"] = 1
    return assignment_map, initialized_variable_names


def dropout(input_tensor, dropout_prob, *, key: Optional[DropoutKey] = None):
    """Sets a share `dropout_prob` of the elements to zero and scales up the rest.

    With a `key` the mask is a function of (seed, step, site) alone, the site being the variable
    scope of the call: neither the order of construction nor a restart changes it. Two calls in
    one variable scope draw the same mask.

    Args:
      input_tensor: float Tensor of any shape.
      dropout_prob: float; 0 or None returns the input.
      key: `DropoutKey`, or None for TensorFlow's own dropout.
    """
    if not dropout_prob:
        return input_tensor
    if key is None:
        return tf.nn.dropout(input_tensor, rate=dropout_prob)
    site = f"{key.seed}/{tf.get_variable_scope().name}"
    site_seed = zlib.crc32(site.encode()) & 0x7FFFFFFF
    uniform = tf.random.stateless_uniform(
        tf.shape(input_tensor), seed=tf.stack([site_seed, tf.cast(key.step, tf.int32)])
    )
    mask = tf.cast(uniform >= dropout_prob, input_tensor.dtype)
    dropped = input_tensor * mask * (1.0 / (1.0 - dropout_prob))
    dropped.set_shape(input_tensor.shape)
    return dropped


def _layer_norm_collections(adapter_fn):
    # Plain BERT leaves the collection empty: that is how `optimization.create_optimizer` knows a
    # model without adapters, of which it trains everything, as BERT's own does.
    return () if adapter_fn is None else (LAYER_NORM,)


def layer_norm(input_tensor, name=None, *, collections=(LAYER_NORM,)):
    """Normalizes the last axis (Ba et al. 2016, arXiv 1607.06450), epsilon 1e-12.

    Args:
      input_tensor: float Tensor [..., D].
      name: variable scope, "LayerNorm" by default.
      collections: graph collections that beta and gamma join.
    """
    width = get_shape_list(input_tensor)[-1]
    with tf.variable_scope(name or "LayerNorm"):
        collections = list(collections) + [tf.GraphKeys.GLOBAL_VARIABLES]
        beta = tf.get_variable(
            "beta", [width], initializer=tf.zeros_initializer(), collections=collections
        )
        gamma = tf.get_variable(
            "gamma", [width], initializer=tf.ones_initializer(), collections=collections
        )
        mean, variance = tf.nn.moments(input_tensor, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(input_tensor, mean, variance, beta, gamma, 1e-12)


def dense(input_tensor, units, name, *, activation=None, initializer_range=0.02):
    """act(x W + b) with variables `<name>/kernel` and `<name>/bias`.

    Args:
      input_tensor: float Tensor [rows, in].
      units: the width of the output.

    Returns:
      float Tensor [rows, units].
    """
    rows = get_shape_list(input_tensor, expected_rank=2, name=name)
    with tf.variable_scope(name):
        kernel = tf.get_variable(
            "kernel", [rows[-1], units], initializer=create_initializer(initializer_range)
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        output = tf.nn.bias_add(tf.matmul(input_tensor, kernel), bias)
        return activation(output) if activation else output


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
    input_tensor, token_type_ids, config, dropout_key=None, layer_norm_collections=()
):
    """Adds segment and position embeddings, normalizes, drops out.

    Args:
      input_tensor: float Tensor [B, S, D].
      token_type_ids: int32 Tensor [B, S].
      config: `BertConfig`.

    Returns:
      float Tensor [B, S, D].
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
    output = layer_norm(output, collections=layer_norm_collections)
    return dropout(output, config.hidden_dropout_prob, key=dropout_key)


def transformer_model(input_tensor, input_mask, config, adapter_fn, dropout_key=None):
    """The stack of Transformer layers (Vaswani et al. 2017, arXiv 1706.03762).

    Args:
      input_tensor: float Tensor [B, S, D].
      input_mask: int32 Tensor [B, S].
      config: `BertConfig`.
      adapter_fn: function applied to the output of each projection, or None.

    Returns:
      A list of float Tensors [B, S, D], the output of each layer.
    """
    shape = get_shape_list(input_tensor, expected_rank=3)
    # A matrix all the way: reshapes between [B, S, D] and [B * S, D] are not free on TPUs.
    hidden = tf.reshape(input_tensor, [-1, shape[-1]])
    layers = []
    for index in range(config.num_hidden_layers):
        with tf.variable_scope(f"layer_{index}"):
            hidden = transformer_layer(hidden, input_mask, config, adapter_fn, dropout_key)
        layers.append(tf.reshape(hidden, shape))
    return layers


def transformer_layer(hidden, input_mask, config, adapter_fn, dropout_key=None):
    """One layer: self-attention, then the feed-forward layer, each closed by `_add_and_norm`.

    Args:
      hidden: float Tensor [B * S, D].
      input_mask: int32 Tensor [B, S].

    Returns:
      float Tensor [B * S, D].
    """
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = self_attention(hidden, input_mask, config, dropout_key=dropout_key)
        with tf.variable_scope("output"):
            attended = _add_and_norm(context, hidden, config, adapter_fn, dropout_key)
    with tf.variable_scope("intermediate"):
        intermediate = dense(
            attended,
            config.intermediate_size,
            "dense",
            activation=get_activation(config.hidden_act),
            initializer_range=config.initializer_range,
        )
    with tf.variable_scope("output"):
        return _add_and_norm(intermediate, attended, config, adapter_fn, dropout_key)


def _add_and_norm(input_tensor, residual, config, adapter_fn, dropout_key):
    """Projection, dropout, adapter, residual, LayerNorm (Houlsby et al. 2019, figure 2, left).

    input_tensor is [B * S, in]; residual and the result are [B * S, D].
    """
    output = dense(
        input_tensor, config.hidden_size, "dense", initializer_range=config.initializer_range
    )
    output = dropout(output, config.hidden_dropout_prob, key=dropout_key)
    if adapter_fn is not None:
        output = adapter_fn(output)
    return layer_norm(output + residual, collections=_layer_norm_collections(adapter_fn))


def self_attention(hidden, input_mask, config, *, dropout_key=None):
    """Scaled dot-product attention of several heads (Vaswani et al. 2017, section 3.2).

    Args:
      hidden: float Tensor [B * S, D].
      input_mask: int32 Tensor [B, S]; positions with 0 are attended to by none.

    Returns:
      float Tensor [B * S, D], the heads' contexts side by side.
    """
    batch_size, seq_length = get_shape_list(input_mask, expected_rank=2, name="input_mask")
    num_heads = config.num_attention_heads
    head_size = config.hidden_size // num_heads

    def heads_of(name):
        projected = dense(
            hidden, config.hidden_size, name, initializer_range=config.initializer_range
        )
        split = tf.reshape(projected, [batch_size, seq_length, num_heads, head_size])
        return tf.transpose(split, [0, 2, 1, 3])  # [B, N, S, H]

    query, key, value = (heads_of(name) for name in ("query", "key", "value"))
    scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(head_size)  # [B, N, F, T]
    # -10000 before the softmax is as good as removal, and stays finite in half precision.
    blocked = 1.0 - tf.cast(input_mask, scores.dtype)
    scores += -10000.0 * blocked[:, tf.newaxis, tf.newaxis, :]
    probs = dropout(tf.nn.softmax(scores), config.attention_probs_dropout_prob, key=dropout_key)
    context = tf.transpose(tf.matmul(probs, value), [0, 2, 1, 3])  # [B, F, N, H]
    return tf.reshape(context, [-1, config.hidden_size])


def get_shape_list(tensor, expected_rank=None, name=None):
    """A tensor's shape as a list: ints where known, scalar Tensors where not.

    Raises:
      ValueError: the rank is not `expected_rank` (an int or a collection of ints).
    """
    if expected_rank is not None:
        assert_rank(tensor, expected_rank, name)
    static = tensor.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(tensor)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def assert_rank(tensor, expected_rank, name=None):
    """Raises ValueError, naming tensor and scope, if the rank is not (one of) `expected_rank`."""
    expected = [expected_rank] if isinstance(expected_rank, int) else list(expected_rank)
    if tensor.shape.ndims not in expected:
        raise ValueError(
            "Tensor {} in scope {!r} must have rank {}, but its shape is {}.".format(
                name or tensor.name,
                tf.get_variable_scope().name,
                " or ".join(str(rank) for rank in expected),
                tensor.shape,
            )
        )


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
    """Raises UserError if no model has these sizes and this activation."""
    for name in _SIZES:
        size = getattr(config, name)
        if not isinstance(size, numbers.Integral) or size < 1:
            raise UserError(
                f"{name} of the BERT config must be a whole number above 0, but is {size!r}."
            )
    if config.hidden_size % config.num_attention_heads:
        raise UserError(
            f"hidden_size {config.hidden_size} of the BERT config is not a multiple of"
            f" num_attention_heads {config.num_attention_heads}."
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
