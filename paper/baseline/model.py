"""The no-BERT baseline's model_fn: a wide and a deep tower on a text embedding module.

Houlsby et al. 2019 (arXiv 1902.00751), section 3.3 and appendix A. The paper gives the parameters
of the search space, but not the model. Wong et al. 2018 (arXiv 1803.02780), whose search the
paper's is "similar to", have the batch size and proximal Adagrad with one optimizer per tower.
Other details are this project's. The wide tower is a linear layer on a text's embedding. The deep
tower has hidden layers, either on the same embedding or on a convolution over the text's n-grams
(Kim 2014, arXiv 1408.5882). The towers' outputs are added. The module's variables, if they train,
belong to the deep tower.

A module's graph runs with full access: it can read and write files.

B rows, T words, D the width of the embeddings, L outputs.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.formats import checkpoints, tfhub
from adapter_bert.ops import devices, layers
from adapter_bert.ops.dropout import DropoutKey, dropout
from adapter_bert.paper.baseline.search_space import TrialSettings
from adapter_bert.paper.baseline.texts import PADDING_ID
from adapter_bert.shell import tf_estimator
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import text_kind
from adapter_bert.training import progress

if TYPE_CHECKING:
    from adapter_bert.paper.baseline.training import DevSetHook

BATCH_SIZE = 100  # As in Wong et al. 2018.

_EMBEDDING_BATCH_SIZE = 1000  # Strings per batch.
_MOMENTUM = 0.9  # Of the moving statistics; short, as trainings have only some thousand steps.
_DEEP, _WIDE, _MODULE = "deep", "wide", "module"

Tensors = Dict[str, tf.Tensor]


class TextModule(NamedTuple):
    """A TF-Hub module that embeds texts.

    Attributes:
      folder: path of a module in TensorFlow 1's hub format, or of TensorFlow 2's SavedModel.
      width: D.
    """

    folder: str
    width: int


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """The settings that, besides the data, determine the trained weights.

    Attributes:
      unit: see `search_space.Module`.
      kind: of the task; see `glue.TaskInfo`.
      num_labels: unused for regression.
      random_seed: of initial values, dropout and the order of the data.
      precision: "float32" or "bfloat16", of the convolution's products.
    """

    settings: TrialSettings
    module: TextModule
    unit: str
    kind: str
    num_labels: int
    random_seed: int
    precision: str = "float32"

    @property
    def num_outputs(self) -> int:
        """L, the number of outputs."""
        return text_kind.get(self.kind).num_outputs(self.num_labels)

    @property
    def num_steps(self) -> int:
        """Number of training steps, each with `BATCH_SIZE` examples."""
        return self.settings.training_samples // BATCH_SIZE


def open_module(handle: str) -> TextModule:
    """Returns the module of an address or folder; builds its graph, but does not run it.

    Raises:
      UserError: there is no module, or it does not embed texts.
    """
    where, folder = f"TF-Hub module {handle}:", tfhub.find_module(handle)
    if not tfhub.matches(folder) and not tfhub.is_tf2(folder, where):
        raise UserError(
            f"{where} expected a module in TensorFlow 1's hub format or TensorFlow 2's SavedModel,"
            f" but {folder} holds neither."
        )
    try:
        with tf.Graph().as_default():
            output = _load_module(folder, trainable=False)(tf.placeholder(tf.string, [None]))
    except Exception as error:
        raise UserError(
            f"{where} TensorFlow {tf.__version__} cannot apply it to strings [B]"
            f" ({_first_line(error)}); expected a text embedding module."
        ) from error
    shape = output.shape.as_list() if tf.is_tensor(output) and output.shape.ndims else []
    if len(shape) != 2 or not shape[1] or output.dtype != tf.float32:
        raise UserError(
            f"{where} its output is {output}; expected a text embedding module, from strings [B] to"
            " float32 [B, D]."
        )
    return TextModule(folder, shape[1])


def _load_module(folder: str, trainable: bool) -> Callable[[tf.Tensor], tf.Tensor]:
    """Adds a module to the graph, with variables named "module/..." and their initializers.

    Args:
      folder: of the module.
      trainable: whether the module's variables train.

    Returns:
      A function from strings [B] to float32 [B, D].
    """
    if tfhub.matches(folder):
        return tfhub.library().Module(folder, trainable=trainable, name=_MODULE)
    existing_ids = set(map(id, tf.global_variables()))
    with tf.name_scope(_MODULE + "/"):
        module = tf.saved_model.load_v2(folder)
    if trainable:
        variables = [v for v in tf.global_variables() if id(v) not in existing_ids and v.trainable]
        trainable_variables = tf.get_collection_ref(tf.GraphKeys.TRAINABLE_VARIABLES)
        trainable_variables.extend(getattr(module, "trainable_variables", variables))
    return module


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].split(";")[0].rstrip(".")


def compute_embeddings(module: TextModule, strings: List[str]) -> np.ndarray:
    """Returns the module's embeddings of strings.

    Args:
      strings: N strings; the first one is empty and gets zeros.

    Returns:
      float32 [N, D].

    Raises:
      UserError: the module cannot be computed; a file of it may be damaged.
    """
    parts = [np.zeros([1, module.width], np.float32)]
    try:
        with tf.Graph().as_default():
            texts = tf.placeholder(tf.string, [None])
            output = _load_module(module.folder, trainable=False)(texts)
            with tf.Session(config=devices.session_config()) as session:
                session.run([tf.global_variables_initializer(), tf.tables_initializer()])
                for start in range(1, len(strings), _EMBEDDING_BATCH_SIZE):
                    batch = strings[start : start + _EMBEDDING_BATCH_SIZE]
                    parts.append(session.run(output, {texts: [text.encode() for text in batch]}))
    except (IndexError, tf.errors.OpError) as error:  # IndexError: a file that is too short.
        raise UserError(
            f"TF-Hub module {module.folder}: TensorFlow {tf.__version__} cannot embed texts"
            f" ({_first_line(error)})."
        ) from error
    return np.concatenate(parts)


class EmbeddedStrings(NamedTuple):
    """The strings that rows refer to and, unless the module trains, their embeddings.

    Attributes:
      texts: see `texts.StringVocabulary`.
      vectors: float32 [len(texts), D], or None.
    """

    texts: List[str]
    vectors: Optional[np.ndarray] = None


class Network:
    """The two towers on the variables of one graph, which the first call of `outputs` creates."""

    def __init__(self, config: NetworkConfig, strings: EmbeddedStrings):
        self._config = config
        self._settings = config.settings
        self._dropout_key: Optional[DropoutKey] = None
        self.statistics: Optional[List[Tuple[tf.Variable, tf.Tensor]]] = None
        if strings.vectors is None:
            self._module = _load_module(config.module.folder, trainable=True)
            texts = np.array([text.encode() for text in strings.texts], object)
            self._table = _local_variable("strings", texts, tf.string)
        else:
            self._table = _local_variable("vectors", strings.vectors, tf.float32)

    def outputs(self, features: Tensors, is_training: bool) -> tf.Tensor:
        """Returns the sum of the towers' outputs, float32 [B, L].

        Args:
          features: see `texts.encode_texts`.
          is_training: whether to drop out, and to normalize by the batch's statistics.
        """
        self.statistics = [] if is_training else None
        self._dropout_key = None
        if is_training:
            step = tf.train.get_or_create_global_step()
            self._dropout_key = DropoutKey(self._config.random_seed, step)
        pooled = _combine_pair([self._embed(features[name]) for name in _text_names(features)])
        inputs = self._ngram_features(features) if self._settings.use_convolution else pooled
        with tf.variable_scope(_DEEP, reuse=tf.AUTO_REUSE):
            deep = _linear(self._hidden_layers(inputs), self._config.num_outputs, "output")
        with tf.variable_scope(_WIDE, reuse=tf.AUTO_REUSE):
            return deep + _linear(pooled, self._config.num_outputs, "output")

    def _embed(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the embeddings [..., D] of string ids [...]; zeros for `PADDING_ID`."""
        if not self._settings.fine_tune_module:
            return tf.nn.embedding_lookup(self._table, ids)
        unique_ids, indices = tf.unique(tf.reshape(ids, [-1]))
        vectors = self._module(tf.gather(self._table, unique_ids))
        vectors *= tf.cast(tf.not_equal(unique_ids, PADDING_ID), tf.float32)[:, tf.newaxis]
        shape = tf.concat([tf.shape(ids), [self._config.module.width]], 0)
        embeddings = tf.reshape(tf.gather(vectors, indices), shape)
        embeddings.set_shape(ids.shape.as_list() + [self._config.module.width])
        return embeddings

    def _ngram_features(self, features: Tensors) -> tf.Tensor:
        """Returns each filter's maximum over a text's n-grams, for each n: [B, F]."""
        settings, suffixes = self._settings, [name[len("text") :] for name in _text_names(features)]
        with tf.variable_scope(_DEEP, reuse=tf.AUTO_REUSE):
            output = _combine_pair([self._convolve_text(features, suffix) for suffix in suffixes])
            if settings.conv_batch_norm:
                output = layers.batch_norm(output, self.statistics, "conv_norm")
            return self._dropout(output, settings.conv_dropout, "conv_dropout")

    def _convolve_text(self, features: Tensors, suffix: str) -> tf.Tensor:
        """Returns the pooled convolutions over the texts whose feature names have the suffix."""
        settings, pooled = self._settings, []
        activation = layers.get_activation(settings.conv_activation)
        is_text_unit = self._config.unit == "text"
        for n in range(1, settings.conv_max_ngram + 1):
            if is_text_unit or n == 1:  # Words are embedded once and shared by all n.
                ids = features[f"ngrams{suffix}_{n}"]
                site = f"embedding_dropout{suffix}_{n}"
                embedded = self._dropout(self._embed(ids), settings.conv_embedding_dropout, site)
                is_word = tf.not_equal(ids, PADDING_ID)[..., tf.newaxis]
            width = 1 if is_text_unit else n
            with tf.variable_scope(f"conv_{n}"):
                output = self._convolve(embedded, width)
            output = activation(output)
            strongest = tf.reduce_max(tf.where_v2(is_word, output, output.dtype.min), 1)
            pooled.append(tf.where_v2(tf.reduce_any(is_word, 1), strongest, 0.0))
        return tf.concat(pooled, -1)

    def _convolve(self, inputs: tf.Tensor, n: int) -> tf.Tensor:
        """Returns the convolution [B, T, F] over the n words from each; zero-padded at the end."""
        dtype = tf.as_dtype(self._config.precision)
        weights, bias = _get_weights([n, inputs.shape.as_list()[-1], self._settings.conv_filters])
        inputs, weights = tf.cast(inputs, dtype), tf.cast(weights, dtype)
        inputs = tf.pad(inputs, [[0, 0], [0, n - 1], [0, 0]])
        output = tf.nn.conv1d(inputs, weights, stride=1, padding="VALID")
        return tf.nn.bias_add(tf.cast(output, tf.float32), bias)

    def _hidden_layers(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the output of the hidden layers: linear, normalization, activation, dropout."""
        settings = self._settings
        for layer in range(settings.hidden_layers):
            with tf.variable_scope(f"hidden_{layer}", reuse=tf.AUTO_REUSE):
                inputs = _linear(inputs, settings.hidden_size, "linear")
                if settings.hidden_normalization == "batch":
                    inputs = layers.batch_norm(inputs, self.statistics)
                elif settings.hidden_normalization == "layer":
                    inputs = layers.layer_norm(inputs)
                inputs = layers.get_activation(settings.hidden_activation)(inputs)
                inputs = self._dropout(inputs, settings.hidden_dropout, "dropout")
        return inputs

    def _dropout(self, tensor: tf.Tensor, rate: float, site: str) -> tf.Tensor:
        """Applies dropout in training; the mask depends on the scope's name."""
        if not self._dropout_key:
            return tensor
        with tf.variable_scope(site):
            return dropout(tensor, rate, key=self._dropout_key)


def _local_variable(name: str, values: np.ndarray, dtype: tf.DType) -> tf.Variable:
    """Returns a variable with these values that is in no checkpoint; each session initializes it.

    The values are not in the graph either, whose size is limited to 2 GB.
    """
    initial = tf.py_func(lambda: values, [], dtype)
    initial.set_shape(values.shape)
    return tf.Variable(
        initial,
        trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES],
        name=name,
        dtype=dtype,
    )


def _text_names(features: Tensors) -> List[str]:
    return [name for name in ("text", "text_b") if name in features]


def _combine_pair(vectors: List[tf.Tensor]) -> tf.Tensor:
    """Returns one text's vectors [B, D] unchanged; for two u, v: u, v, |u − v|, u · v concatenated.

    As in Conneau et al. 2017 (arXiv 1705.02364); the paper's own tasks have single texts.
    """
    if len(vectors) == 1:
        return vectors[0]
    u, v = vectors
    return tf.concat([u, v, tf.abs(u - v), u * v], -1)


def _linear(inputs: tf.Tensor, size: int, name: str) -> tf.Tensor:
    """Returns a linear layer of [B, D], [B, size]."""
    with tf.variable_scope(name):
        weights, bias = _get_weights([inputs.shape.as_list()[-1], size])
        return tf.nn.bias_add(tf.matmul(inputs, weights), bias)


def _get_weights(shape: List[int]) -> Tuple[tf.Variable, tf.Variable]:
    """Creates weights with the given shape and a bias of its last size (Glorot and Bengio 2010)."""
    fan_in, fan_out = np.prod(shape[:-1]), shape[-1] * np.prod(shape[:-2])
    deviation = math.sqrt(2 / (fan_in + fan_out))
    return (
        tf.get_variable("weights", shape, initializer=layers.create_initializer(deviation)),
        tf.get_variable("bias", shape[-1:], initializer=tf.zeros_initializer()),
    )


def model_fn_builder(
    network_config: NetworkConfig,
    strings: EmbeddedStrings,
    evaluation: Optional["DevSetHook"] = None,
    show_progress: bool = False,
) -> Callable[..., Any]:
    """Returns the model_fn for Estimator.

    Args:
      evaluation: evaluates during training, in the training's graph.
      show_progress: whether to show progress and write it for TensorBoard.
    """

    def model_fn(
        features: Tensors, labels: Any, mode: str, params: Dict[str, Any], config: Any
    ) -> Any:
        del labels, params  # Labels are among the features; there are no parameters.
        network = Network(network_config, strings)

        def predict(features: Tensors, is_training: bool = False) -> Tensors:
            outputs = network.outputs(features, is_training)
            return text_kind.get(network_config.kind).predict(outputs, features["label_ids"])

        if mode == tf_estimator.ModeKeys.PREDICT:
            return tf_estimator.EstimatorSpec(mode, predict(features))
        loss = tf.reduce_mean(predict(features, is_training=True)["loss"])
        train_op = _train_op(network_config.settings, loss, network.statistics or [])
        hooks = []
        if evaluation:
            evaluation.build(predict)
            hooks.append(evaluation)
        if show_progress:
            scalars = {
                "loss": loss,
                "learning_rate": tf.constant(network_config.settings.deep_learning_rate),
            }
            hooks.append(
                progress.ProgressHook(
                    network_config.num_steps, BATCH_SIZE, scalars, config.model_dir
                )
            )
        scaffold = tf.train.Scaffold(saver=checkpoints.Saver(max_to_keep=1))
        tf.add_to_collection(tf.GraphKeys.SAVERS, scaffold.saver)
        return tf_estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, training_hooks=hooks, scaffold=scaffold
        )

    return model_fn


def _train_op(
    settings: TrialSettings, loss: tf.Tensor, statistics: List[Tuple[tf.Variable, tf.Tensor]]
) -> tf.Operation:
    """Takes a step of each tower's optimizer, updates the statistics, and counts the step."""
    variables = tf.trainable_variables()
    wide = [v for v in variables if v.op.name.startswith(_WIDE + "/")]
    deep = [v for v in variables if not v.op.name.startswith(_WIDE + "/")]
    # Computes all gradients before any update: TensorFlow 1 would read updated variables later.
    gradient_list = tf.tuple(tf.gradients(loss, variables))
    gradients = {variable.op.name: gradient for variable, gradient in zip(variables, gradient_list)}
    steps = []
    for tower, rate, regularization in (
        (deep, settings.deep_learning_rate, settings.deep_regularization),
        (wide, settings.wide_learning_rate, settings.wide_regularization),
    ):
        optimizer = tf.train.ProximalAdagradOptimizer(
            rate, l2_regularization_strength=regularization
        )
        pairs = [(gradients[v.op.name], v) for v in tower]
        steps.append(optimizer.apply_gradients([pair for pair in pairs if pair[0] is not None]))
    steps += [
        average.assign_sub((1 - _MOMENTUM) * (average - value)) for average, value in statistics
    ]
    with tf.control_dependencies(steps):
        return tf.assign_add(tf.train.get_or_create_global_step(), 1)
