"""Checked settings of a model and its tuning, without TensorFlow.

`modeling` offers `BertConfig` and `AdapterConfig`, and `tuning` offers `Tuning`.
"""

import copy
import dataclasses
import importlib
import json
import math
import numbers
import os
import re
import sys
from collections import OrderedDict
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from adapter_bert.files import json_objects
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings, flag

PRECISIONS = ("auto", "float32", "bfloat16")
ANSWER_PRECISIONS = ("float32", "int8", "float16")  # For banks and servers.
DISTRIBUTIONS = {
    "none": "one device, or a TPU",
    "mirrored": "all GPUs of this machine",
    "multi_worker": "all machines of TF_CONFIG's cluster",
}
MIN_SEQ_LENGTH = 4  # The special tokens of a pair, and one other token.
SIZE_LIMIT = 1 << 31  # TensorFlow's shapes are int32.
_MAX_LAYERS = 1000  # So that no file can fill the memory with the names of its tensors.
ACTIVATIONS = (  # The keys of `layers.ACTIVATIONS`.
    "elu",
    "gelu",  # BERT's tanh form.
    "gelu_erf",  # The exact form, which HuggingFace calls "gelu".
    "leaky_relu",
    "linear",
    "relu",
    "relu6",
    "sigmoid",
    "swish",
    "tanh",
)


def check_activation(activation: Any) -> None:
    """Raises UserError unless it is a name in `ACTIVATIONS` (any case), a function, "" or None."""
    if activation is None or callable(activation):
        return
    if not isinstance(activation, str):
        raise UserError(f"An activation must be a name or a function, but is {activation!r}.")
    if (activation.lower() or "linear") not in ACTIVATIONS:
        choices = ", ".join(ACTIVATIONS)
        raise UserError(f"There is no activation {activation!r}; expected one of {choices}.")


# ---- BERT


# Keys of other models' configs, with the only value that this encoder supports.
FIXED_FIELDS = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "layer_norm_eps": 1e-12,
}


@dataclasses.dataclass(eq=False)  # Equal only to itself, and hashable, as BERT's.
class BertConfig:
    """A BERT's sizes and dropout rates, as in bert_config.json.

    Args:
      vocab_size: number of WordPieces.
      hidden_size: D, the width of encoder and pooler.
      num_hidden_layers: number of Transformer layers.
      num_attention_heads: N; divides hidden_size.
      intermediate_size: width of the feed-forward layer.
      hidden_act: the activation of the feed-forward layer, a name in `ACTIVATIONS` or a function.
      hidden_dropout_prob: dropout of embeddings and of each sub-layer's output.
      attention_probs_dropout_prob: dropout of the attention probabilities.
      max_position_embeddings: maximum sequence length.
      type_vocab_size: number of segment ids.
      initializer_range: standard deviation of the truncated normal for initial weights.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Any = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02

    @classmethod
    def from_dict(cls, json_object: Dict[str, Any]) -> "BertConfig":
        """Returns the config in a dictionary; unknown keys become attributes.

        Raises:
          UserError: a key is the name of another attribute of this class, such as a method.
        """
        config = cls(vocab_size=json_object.get("vocab_size", 0))
        for key, value in json_object.items():
            if hasattr(cls, key) and key not in cls.__dataclass_fields__:
                raise UserError(f"a BERT config has no {json.dumps(key)}; remove it.")
            setattr(config, key, value)
        return config

    @classmethod
    def from_json_file(cls, json_file: str) -> "BertConfig":
        """Returns the config in a bert_config.json; raises UserError if it is not a BERT's."""
        values = json_objects.read_object(json_file)
        if not isinstance(values.get("vocab_size"), int):
            raise UserError(f"{json_file}: is not a BERT config: it has no vocab_size.")
        try:
            config = cls.from_dict(values)
            check_config(config)
        except UserError as error:
            raise UserError(f"{json_file}: {error}") from None
        return config

    def to_dict(self) -> Dict[str, Any]:
        """Returns all attributes by name, also the unknown keys of `from_dict`."""
        return copy.deepcopy(self.__dict__)

    def to_json_string(self) -> str:
        """Returns the text of a bert_config.json."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


class PretrainedBert(NamedTuple):
    """A pretrained BERT's config and files.

    Attributes:
      config: `BertConfig`.
      vocab_file: path of the WordPiece or SentencePiece vocabulary; None if no text is read.
      init_checkpoint: prefix of the checkpoint.
      do_lower_case: whether its text was lower-cased; None if unknown.
      config_file: path of the config; None if no flag names it.
    """

    config: BertConfig
    vocab_file: Optional[str]
    init_checkpoint: str
    do_lower_case: Optional[bool]
    config_file: Optional[str] = None


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)


def _is_number(value: Any, upper: float) -> bool:
    return isinstance(value, numbers.Real) and not value < 0 and value < upper


def check_config(config: BertConfig) -> None:
    """Raises UserError if a size, rate or activation is invalid."""
    check_architecture(vars(config))
    for name in _SIZES:
        size = getattr(config, name)
        if not isinstance(size, numbers.Integral) or not 1 <= int(size) < SIZE_LIMIT:
            raise UserError(
                f"{name} of the BERT config must be a whole number above 0, but is {size!r}."
            )
    if config.num_hidden_layers > _MAX_LAYERS:
        raise UserError(
            f"num_hidden_layers of the BERT config must be at most {_MAX_LAYERS:,}, but is"
            f" {config.num_hidden_layers:,}."
        )
    if config.hidden_size % config.num_attention_heads:
        raise UserError(
            f"hidden_size {config.hidden_size} of the BERT config is not a multiple of"
            f" num_attention_heads {config.num_attention_heads}."
        )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        rate = getattr(config, name)  # None means no dropout, like 0.
        if not (rate is None or _is_number(rate, 1)):
            raise UserError(
                f"{name} of the BERT config must be a number from 0 to below 1, but is {rate!r}."
            )
    stddev = config.initializer_range
    if not _is_number(stddev, 1e30):  # float32 overflows at 3e38.
        raise UserError(
            f"initializer_range of the BERT config must be 0 or more, but is {stddev!r}."
        )
    check_activation(config.hidden_act)


def check_pairs(config: BertConfig, fields: Sequence[str], where: str) -> None:
    """Raises UserError if an example has two texts and the BERT has a single segment id.

    Args:
      config: `BertConfig`.
      fields: the names of an example's texts.
      where: begins the error.
    """
    if len(fields) > 1 and config.type_vocab_size < 2:
        raise UserError(
            f"{where} has {' and '.join(fields)}, but the BERT has type_vocab_size"
            f" {config.type_vocab_size}; expected a BERT with 2 segment ids."
        )


def check_architecture(fields: Dict[str, Any]) -> None:
    """Raises UserError if a config describes another encoder than `BertModel`.

    Args:
      fields: the config's fields, by name. None counts as missing.
    """
    expected = {
        **FIXED_FIELDS,
        "embedding_size": fields.get("hidden_size"),  # ALBERT, ELECTRA, MobileBERT.
        "num_hidden_groups": fields.get("num_hidden_layers"),  # ALBERT: layers share weights.
        "inner_group_num": 1,
    }
    for name, value in expected.items():
        actual = fields.get(name)
        if name == "model_type" and actual not in (None, value):
            raise UserError(
                f"its model_type is {actual}, another architecture than BERT; expected {value}."
            )
        if actual is not None and actual != value:
            raise UserError(f"{name} must be {value!r} for BERT, but is {actual!r}.")


# ---- Adapters

FEEDFORWARD_ADAPTER = "feedforward_adapter"  # Section 2.1 of the paper.
# The positions of adapters: name → scopes of the projections that they follow.
SITES = {
    "both": ("attention/output", "output"),
    "attention": ("attention/output",),
    "feed_forward": ("output",),
}
# Variants of section 3.6 and of AdapterHub's layouts, with their values; None means any number.
# Adapter files may omit them. Depth is limited so that no file can demand a huge graph.
VARIANTS: Dict[str, Any] = {
    "normalization": ("none", "layer", "batch"),
    "depth": range(1, 101),
    "sites": tuple(SITES),
    "placement": ("sequential", "parallel", "normalized"),
    "interaction": ("add", "multiply"),
    "scaling": None,
}
_MAX_SCALING = 1e6  # Keeps activations within float32's range.


class AdapterVariable(NamedTuple):
    """A variable of an adapter.

    Attributes:
      axes: of its shape: "D" is the width of the sub-layer's output, "m" the adapter's size.
      trains: whether it gets a gradient; moving statistics do not.
      adapterhub: its name in AdapterHub's adapters; None if these have no such variable.
    """

    axes: Tuple[str, ...]
    trains: bool = True
    adapterhub: Optional[str] = None


def parse_layers(text: str) -> Tuple[int, ...]:
    """Returns the layers that --adapter_layers names, ascending.

    Args:
      text: indices from 0 and ranges, as in "6-11" or "0,2-4".

    Raises:
      UserError: the text has another format.
    """
    layers = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part)
        named = match and range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
        if not named:
            raise UserError(
                f"--adapter_layers={text}: {part!r} is neither a layer nor a range; expected layers"
                " from 0, as in 0,2-4."
            )
        layers.update(named)
    return tuple(sorted(layers))


@dataclasses.dataclass(frozen=True)
class AdapterConfig(Settings):
    """The adapter's architecture (Houlsby et al. 2019, sections 2.1 and 3.6).

    An adapter has 2mD + (k-1)(m^2 + m) + m + D parameters, k its depth, and 2m more if it
    normalizes.

    Attributes:
      size: m, the width of the bottleneck. 64 is adapter-bert's default; in the paper, it loses 0.8
        GLUE points against full fine-tuning. The paper tries 8, 64 and 256 on GLUE (section 3.2), 2
        to 64 on the further tasks (3.3), and 1 to 512 in Figure 4.
      activation: the activation between the two projections, a name in `ACTIVATIONS`.
      init_scale: standard deviation of the truncated normal for initial weights, small so that the
        adapter starts near the identity. 1e-3 is adapter-bert's code, 1e-2 the paper's text.
      fn: the adapter function's name; see `get_adapter`.
      layers: indices of the layers with adapters, from 0; None for all.
      normalization: "none", "layer" or "batch". In training, "batch" uses statistics over all
        positions of the batch, padding included (with gradient accumulation: of a part of it), and
        needs the batch on one device. Otherwise it uses moving averages.
      depth: k, the number of hidden layers.
      sites: a key of `SITES`.
      placement: "sequential": the adapter reads the sub-layer's output, before residual connection
        and LayerNorm. "parallel": it reads the sub-layer's input (He et al. 2021,
        https://arxiv.org/abs/2110.04366). "normalized": it reads the output after residual
        connection and LayerNorm, and its result is added before them (Pfeiffer et al. 2020,
        https://arxiv.org/abs/2005.00247).
      interaction: "add" or "multiply".
      scaling: s, a constant factor of the adapter's update (He et al. 2021).
    """

    size: int = flag(
        64,
        "Bottleneck size of the adapters.",
        "Adapters",
        name="adapter_size",
    )
    activation: str = flag(
        "gelu",
        f"Activation of the bottleneck: {', '.join(ACTIVATIONS)}.",
        "Adapters",
        name="adapter_activation",
    )
    init_scale: float = flag(
        1e-3,
        "Standard deviation of the adapters' initial weights. The paper's text has 1e-2.",
        "Adapters",
        name="adapter_init_scale",
    )
    fn: str = flag(
        FEEDFORWARD_ADAPTER,
        "Adapter function: feedforward_adapter, or one of your own, as my_module:my_adapter.",
        "Adapters",
        name="adapter_fn",
    )
    layers: Optional[Tuple[int, ...]] = flag(
        None,
        "Layers with adapters, from 0, as in 6-11 or 0,2-4. Default: all.",
        "Adapters",
        name="adapter_layers",
        parse=parse_layers,
    )
    normalization: str = flag(
        "none",
        "Normalization of the bottleneck, before its activation. Batch normalization stores its"
        " moving averages with the adapter.",
        "Adapters",
        name="adapter_normalization",
        choices=VARIANTS["normalization"],
    )
    depth: int = flag(
        1, "Number of hidden layers in each adapter.", "Adapters", name="adapter_depth"
    )
    sites: str = flag(
        "both",
        "Sub-layers with adapters.",
        "Adapters",
        name="adapter_sites",
        choices=VARIANTS["sites"],
    )
    placement: str = flag(
        "sequential",
        "Input of the adapters: the sub-layer's output (sequential), the sub-layer's input"
        " (parallel), or the output after residual connection and LayerNorm (normalized).",
        "Adapters",
        name="adapter_placement",
        choices=VARIANTS["placement"],
    )
    interaction: str = flag(
        "add",
        "Combination of the adapter's update f with its input x: x + f, or x * (1 + f).",
        "Adapters",
        name="adapter_interaction",
        choices=VARIANTS["interaction"],
    )
    scaling: float = flag(
        1.0,
        "Factor of the adapters' update. He et al. 2021 use 4 for parallel adapters.",
        "Adapters",
        name="adapter_scaling",
    )

    def __post_init__(self) -> None:
        if not self.is_none and self.function not in FUNCTIONS:
            expected = f"{FEEDFORWARD_ADAPTER}, none, or module:function of your own"
            if ":" in self.fn:
                expected = f"--adapter_fn={self.fn} beside it, so that its module is imported"
            raise UserError(f"--adapter_fn={self.fn}: unknown adapter; expected {expected}.")
        if self.size < 1:
            raise UserError(f"--adapter_size must be at least 1, but is {self.size}.")
        if self.size >= SIZE_LIMIT:
            raise UserError(f"--adapter_size={self.size} exceeds TensorFlow's limit of 2^31 - 1.")
        if not 0 <= self.init_scale < math.inf:
            raise UserError(f"--adapter_init_scale must be 0 or more, but is {self.init_scale}.")
        try:
            check_activation(self.activation)
        except UserError as error:
            raise UserError(f"--adapter_activation: {error}") from None
        for name, allowed in VARIANTS.items():
            value = getattr(self, name)
            if allowed is not None and value not in allowed:
                choices = (
                    f"{allowed[0]} to {allowed[-1]}" if name == "depth" else ", ".join(allowed)
                )
                raise UserError(f"--adapter_{name}={value}: expected one of {choices}.")
        if not 0 < self.scaling <= _MAX_SCALING:
            raise UserError(
                f"--adapter_scaling must be a number above 0, up to {_MAX_SCALING:g}, but is"
                f" {self.scaling}."
            )
        if self.normalization == "layer" and self.size == 1:
            raise UserError(
                "--adapter_normalization=layer with --adapter_size=1 always gives 0, since a single"
                " number minus its mean is 0; expected size 2 or more."
            )

    def check_layers(self, num_layers: int) -> None:
        """Raises UserError if an adapter's layer is not in the encoder."""
        layers = range(num_layers)
        if self.layers is not None and not (self.layers and set(self.layers) <= set(layers)):
            raise UserError(
                f"--adapter_layers={','.join(map(str, self.layers))}: the encoder has {num_layers}"
                f" layers; expected layers from 0 to {num_layers - 1}, as in 0,2-4."
            )

    def variables(self) -> Dict[str, AdapterVariable]:
        """Returns the variables of one adapter by name; see `FUNCTIONS`."""
        return {} if self.is_none else FUNCTIONS[self.function](self)

    def variant(self) -> Dict[str, Any]:
        """Returns the fields of `VARIANTS` that differ from their defaults, by name."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        values = {name: getattr(self, name) for name in VARIANTS}
        return {name: value for name, value in values.items() if value != defaults[name]}

    @property
    def function(self) -> str:
        """The key of `fn` in `FUNCTIONS`, whatever its case."""
        return self.fn if ":" in self.fn else self.fn.lower()

    @property
    def is_none(self) -> bool:
        """Returns whether `fn` names no adapter function."""
        return self.function in ("", "none")


def _feedforward_variables(adapter: AdapterConfig) -> Dict[str, AdapterVariable]:
    """Returns the variables of `modeling.feedforward_adapter`."""
    variables = {
        "weights1": AdapterVariable(("D", "m"), adapterhub="adapter_down.0.weight"),
        "biases1": AdapterVariable(("1", "m"), adapterhub="adapter_down.0.bias"),
    }
    if adapter.normalization != "none":
        scope = {"layer": "LayerNorm", "batch": "BatchNorm"}[adapter.normalization]
        variables[f"{scope}/beta"] = variables[f"{scope}/gamma"] = AdapterVariable(("m",))
    if adapter.normalization == "batch":
        for name in ("moving_mean", "moving_variance"):
            variables[f"BatchNorm/{name}"] = AdapterVariable(("m",), trains=False)
    for index in range(2, adapter.depth + 1):
        variables[f"weights_hidden{index}"] = AdapterVariable(("m", "m"))
        variables[f"biases_hidden{index}"] = AdapterVariable(("1", "m"))
    variables["weights2"] = AdapterVariable(("m", "D"), adapterhub="adapter_up.weight")
    variables["biases2"] = AdapterVariable(("1", "D"), adapterhub="adapter_up.bias")
    return variables


# The adapter functions of `modeling` → functions of an `AdapterConfig` that return the variables of
# one adapter, by their names in the scope "adapters", in the order in which it creates them.
# Training, adapter files, AdapterHub's format, SavedModels and ONNX files read this table.
FUNCTIONS: Dict[str, Callable[[AdapterConfig], Dict[str, AdapterVariable]]] = {
    FEEDFORWARD_ADAPTER: _feedforward_variables
}
OWN_FUNCTIONS: Dict[str, Callable] = {}  # Name → function, of `register`.


def register(function: Callable) -> str:
    """Makes an adapter function of one's own known, and returns its name: "module:function".

    Args:
      function: like `modeling.feedforward_adapter`, with the attribute `variables`: the axes of
        each variable by its name, as in {"weights1": ("D", "m")}; see `AdapterVariable`.

    Raises:
      UserError: it has no such attribute.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    axes = getattr(function, "variables", None)
    if not isinstance(axes, dict) or not axes:
        raise UserError(
            f"--adapter_fn={name}: expected the attribute `variables`, the axes of its variables by"
            ' name, as in {"weights1": ("D", "m")}.'
        )
    variables = {each: AdapterVariable(tuple(values)) for each, values in axes.items()}
    FUNCTIONS[name], OWN_FUNCTIONS[name] = lambda _: variables, function
    return name


def import_function(name: str) -> None:
    """Imports and registers "module:function", from the working directory, too.

    Only for a name that the user gave, never for one in a file, since the import runs the module.

    Raises:
      UserError: there is no such module or function, or it is none for `register`.
    """
    module_name, _, function_name = name.partition(":")
    if not function_name or name in FUNCTIONS:
        return
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"--adapter_fn={name}: it cannot be imported ({error}).") from error
    finally:
        sys.path.remove(os.getcwd())
    register(function)


# ---- Tuning

METHODS = OrderedDict(
    [
        ("adapters", "adapters, LayerNorms and head (Houlsby et al. 2019, section 2)"),
        ("full", "everything (BERT's own fine-tuning)"),
        ("top_layers", "the top --num_top_layers layers, pooler and head (variable, section 3.3)"),
        ("layer_norm", "LayerNorms and head (section 3.4)"),
        ("head", "the head only"),
    ]
)

# The methods that train BERT's own layers, and always the pooler.
BERT_METHODS = ("full", "top_layers")

# The LayerNorms that train with adapters. "all", as in adapter-bert, includes the embeddings'.
LAYER_NORMS = ("all", "adapted", "none")


@dataclasses.dataclass(frozen=True)
class Tuning(Settings):
    """A tuning method and its options.

    Attributes:
      method: a key of `METHODS`.
      num_top_layers: for "top_layers": the number of layers.
      train_pooler: also train the pooler, which adapter-bert leaves frozen.
      layer_norms: one of `LAYER_NORMS`, for "adapters". The backward pass ends at the lowest
        trained variable: with adapters in the upper layers only, "all" extends it to the
        embeddings, and "adapted" ends it at the lowest layer with an adapter.
    """

    method: str = flag(
        "adapters",
        "What to train. " + "; ".join("{}: {}".format(*item) for item in METHODS.items()) + ".",
        "Trained parameters",
        name="tuning",
        choices=METHODS,
        records={"method": ""},
    )
    num_top_layers: Optional[int] = flag(
        None, "Number of layers that --tuning=top_layers trains.", "Trained parameters"
    )
    train_pooler: bool = flag(
        False,
        "Train BERT's pooler too, with --tuning=adapters, layer_norm or head.",
        "Trained parameters",
    )
    layer_norms: str = "all"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(
                "--tuning={}: there is no such method; expected one of {}.".format(
                    self.method, ", ".join(METHODS)
                )
            )
        if self.method == "top_layers" and self.num_top_layers is None:
            raise UserError("--tuning=top_layers requires --num_top_layers, such as 2.")
        if self.method != "top_layers" and self.num_top_layers is not None:
            raise UserError(
                f"--num_top_layers={self.num_top_layers} requires --tuning=top_layers; got"
                f" --tuning={self.method}."
            )
        if self.num_top_layers is not None and self.num_top_layers < 1:
            raise UserError(f"--num_top_layers must be at least 1, but is {self.num_top_layers}.")
        if self.layer_norms not in LAYER_NORMS:
            raise UserError(
                "--layer_norms={}: expected one of {}.".format(
                    self.layer_norms, ", ".join(LAYER_NORMS)
                )
            )
        if self.layer_norms != "all" and self.method != "adapters":
            raise UserError(
                f"--layer_norms={self.layer_norms} requires --tuning=adapters; got"
                f" --tuning={self.method}."
            )

    def check_num_top_layers(self, num_layers: int) -> None:
        """Raises UserError if the encoder has fewer layers than `num_top_layers`."""
        if (self.num_top_layers or 0) > num_layers:
            raise UserError(
                f"--num_top_layers={self.num_top_layers}: the encoder has {num_layers} layers."
            )
