"""The search space of the no-BERT baseline, and the settings that the paper's search selected.

Houlsby et al. 2019 (arXiv 1902.00751), section 3.3 and appendix A: `SPACE` is Table 5, `MODULES`
Table 6, `PRESETS` Table 7. Dropout rates are the fractions of dropped elements.
"""

import dataclasses
import numbers
from typing import Any, Callable, List, NamedTuple, Tuple

from adapter_bert.files import json_objects
from adapter_bert.shell.errors import UserError

_HUB = "https://tfhub.dev/google/"
EVALUATE_EVERY = 10_000  # Samples; a tenth of the shortest training.


OnScore = Callable[[int, float], None]  # Called with samples and a score.


class Diverged(UserError):
    """A training diverged before it had a score."""


class Module(NamedTuple):
    """A text embedding module, a row of Table 6.

    Attributes:
      handle: its address on TensorFlow Hub.
      unit: what a convolution over n-grams embeds: "word", each word, so that the convolution spans
        n embeddings; or "text", each n-gram as a whole.
    """

    handle: str
    unit: str = "word"


MODULES = {
    "English-small": Module(_HUB + "nnlm-en-dim50-with-normalization/1"),
    "English-big": Module(_HUB + "nnlm-en-dim128-with-normalization/1"),
    "English-wiki-small": Module(_HUB + "Wiki-words-250-with-normalization/1"),
    "English-wiki-big": Module(_HUB + "Wiki-words-500-with-normalization/1"),
    "Universal-sentence-encoder": Module(_HUB + "universal-sentence-encoder/2", "text"),
}


class Choice(NamedTuple):
    """A parameter with one of some values; if `is_open`, any other text is valid, too."""

    values: Tuple[Any, ...]
    is_open: bool = False

    def __contains__(self, value: object) -> bool:
        return (self.is_open and isinstance(value, str)) or self.find(value) is not None

    def find(self, value: object) -> Any:
        """Returns the equal one of the values, or None; True does not equal 1."""
        is_bool = isinstance(value, bool)
        matches = [v for v in self.values if v == value and isinstance(v, bool) == is_bool]
        return matches[0] if matches else None

    def __str__(self) -> str:
        if self.values == (True, False):
            return "one of true, false"
        texts = (value if isinstance(value, str) else f"{value:g}" for value in self.values)
        return "one of " + ", ".join(texts)


class Range(NamedTuple):
    """A parameter between two values, inclusive; whole numbers if both are."""

    low: float
    high: float

    def __contains__(self, value: Any) -> bool:
        kind = numbers.Integral if isinstance(self.low, int) else numbers.Real
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high

    def __str__(self) -> str:
        kind = "a whole number" if isinstance(self.low, int) else "a number"
        return f"{kind} from {self.low} to {self.high}"


_BOOL = Choice((True, False))
_ACTIVATION = Choice(("relu", "relu6", "leaky_relu", "swish", "sigmoid", "tanh"))
_RATE = Choice((0.001, 0.005, 0.01, 0.05, 0.1, 0.5))
_REGULARIZATION = Choice((0.0, 0.0001, 0.001, 0.01))

SPACE = {
    "module": Choice(tuple(MODULES), is_open=True),
    "fine_tune_module": _BOOL,
    "lowercase": _BOOL,
    "remove_non_alphanumeric": _BOOL,
    "use_convolution": _BOOL,
    "conv_activation": _ACTIVATION,
    "conv_batch_norm": _BOOL,
    "conv_max_ngram": Choice((2, 3)),
    "conv_dropout": Range(0.0, 0.4),
    "conv_filters": Range(50, 200),
    "conv_embedding_dropout": Range(0.0, 0.4),
    "hidden_layers": Choice((0, 1, 2, 3, 5)),
    "hidden_size": Choice((64, 128, 256)),
    "hidden_activation": _ACTIVATION,
    "hidden_normalization": Choice(("none", "batch", "layer")),
    "hidden_dropout": Choice((0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)),
    "deep_learning_rate": _RATE,
    "deep_regularization": _REGULARIZATION,
    "wide_learning_rate": _RATE,
    "wide_regularization": _REGULARIZATION,
    "training_samples": Choice((100_000, 200_000, 500_000, 1_000_000, 2_000_000)),
}


@dataclasses.dataclass(frozen=True)
class TrialSettings:
    """A point of `SPACE`, in its order.

    Attributes:
      module: a key of `MODULES`, or the handle or folder of another module.
      fine_tune_module: whether the module's variables train.
      lowercase, remove_non_alphanumeric: preprocessing of texts.
      use_convolution: whether the deep tower reads n-grams instead of the pooled embedding; if
        false, the conv_ fields are unused.
      conv_max_ngram: the longest n-grams, in words; all shorter ones are used, too.
      conv_filters: number of filters for each length of n-gram.
      conv_embedding_dropout, conv_dropout: rates for the input and output of the convolution.
      hidden_layers, hidden_size: of the deep tower.
      deep_regularization, wide_regularization: weights of the towers' L2 penalties.
      training_samples: number of training examples, counted with repetition.
    """

    module: str
    fine_tune_module: bool
    lowercase: bool
    remove_non_alphanumeric: bool
    use_convolution: bool
    conv_activation: str
    conv_batch_norm: bool
    conv_max_ngram: int
    conv_dropout: float
    conv_filters: int
    conv_embedding_dropout: float
    hidden_layers: int
    hidden_size: int
    hidden_activation: str
    hidden_normalization: str
    hidden_dropout: float
    deep_learning_rate: float
    deep_regularization: float
    wide_learning_rate: float
    wide_regularization: float
    training_samples: int

    def __post_init__(self) -> None:
        for name, domain in SPACE.items():
            value = getattr(self, name)
            if value not in domain:
                raise UserError(f"{name}={value}: expected {domain}.")


_ENGLISH, _ENCODER = "English-big", "Universal-sentence-encoder"

# Table 7, with this project's names of the tasks.
PRESETS = {
    "newsgroups": TrialSettings(
        *(_ENCODER, False, True, True),
        *(False, "relu6", False, 2, 0.37, 94, 0.38),
        *(1, 128, "leaky_relu", "batch", 0.5),
        *(0.5, 0.0, 0.05, 0.0001, 1_000_000),
    ),
    "airline": TrialSettings(
        *(_ENGLISH, False, False, False),
        *(True, "leaky_relu", False, 3, 0.36, 200, 0.07),
        *(0, 128, "tanh", "layer", 0.4),
        *(0.1, 0.001, 0.05, 0.001, 200_000),
    ),
    "corporate_messaging": TrialSettings(
        *(_ENGLISH, False, False, True),
        *(True, "tanh", True, 3, 0.40, 56, 0.40),
        *(1, 64, "tanh", "batch", 0.5),
        *(0.5, 0.001, 0.01, 0.0, 200_000),
    ),
    "disasters": TrialSettings(
        *(_ENCODER, True, True, False),
        *(True, "swish", True, 3, 0.27, 52, 0.22),
        *(0, 64, "relu", "none", 0.2),
        *(0.005, 0.0001, 0.005, 0.01, 500_000),
    ),
    "economic_news_relevance": TrialSettings(
        *(_ENCODER, True, True, False),
        *(False, "leaky_relu", False, 2, 0.27, 63, 0.04),
        *(3, 128, "swish", "layer", 0.2),
        *(0.01, 0.01, 0.001, 0.0, 100_000),
    ),
    "emotion": TrialSettings(
        *(_ENCODER, False, True, False),
        *(False, "relu6", False, 3, 0.35, 132, 0.34),
        *(1, 64, "tanh", "none", 0.05),
        *(0.05, 0.0, 0.05, 0.0, 200_000),
    ),
    "global_warming": TrialSettings(
        *(_ENCODER, False, True, True),
        *(False, "swish", False, 3, 0.39, 200, 0.36),
        *(1, 128, "leaky_relu", "batch", 0.4),
        *(0.05, 0.0, 0.001, 0.001, 1_000_000),
    ),
    "political_audience": TrialSettings(
        *("English-small", True, False, True),
        *(True, "relu", False, 3, 0.11, 98, 0.07),
        *(0, 64, "relu", "none", 0.5),
        *(0.05, 0.001, 0.001, 0.0, 100_000),
    ),
    "political_bias": TrialSettings(
        *(_ENGLISH, False, True, True),
        *(False, "swish", False, 3, 0.12, 81, 0.30),
        *(0, 64, "relu6", "none", 0.0),
        *(0.01, 0.0, 0.005, 0.01, 200_000),
    ),
    "political_message": TrialSettings(
        *(_ENCODER, False, False, True),
        *(False, "swish", True, 2, 0.36, 57, 0.35),
        *(0, 64, "tanh", "none", 0.5),
        *(0.01, 0.001, 0.005, 0.0, 200_000),
    ),
    "primary_emotions": TrialSettings(
        *(_ENGLISH, False, True, True),
        *(True, "swish", False, 3, 0.40, 191, 0.03),
        *(0, 256, "relu6", "none", 0.5),
        *(0.1, 0.001, 0.05, 0.0, 200_000),
    ),
    "progressive_opinion": TrialSettings(
        *(_ENGLISH, True, False, True),
        *(True, "relu6", False, 3, 0.40, 199, 0.28),
        *(0, 128, "relu", "batch", 0.3),
        *(0.1, 0.01, 0.005, 0.001, 200_000),
    ),
    "progressive_stance": TrialSettings(
        *(_ENCODER, True, False, True),
        *(False, "relu", True, 3, 0.01, 195, 0.00),
        *(2, 256, "tanh", "layer", 0.4),
        *(0.005, 0.0, 0.005, 0.0001, 500_000),
    ),
    "us_economic_performance": TrialSettings(
        *(_ENGLISH, True, False, True),
        *(True, "tanh", True, 2, 0.31, 53, 0.24),
        *(1, 256, "leaky_relu", "batch", 0.3),
        *(0.05, 0.0001, 0.001, 0.0001, 100_000),
    ),
    "customer_complaints": TrialSettings(
        *(_ENGLISH, True, False, False),
        *(False, "tanh", False, 2, 0.03, 69, 0.10),
        *(1, 256, "leaky_relu", "layer", 0.1),
        *(0.05, 0.0001, 0.05, 0.001, 1_000_000),
    ),
    "news_aggregator": TrialSettings(
        *(_ENCODER, False, True, True),
        *(False, "sigmoid", True, 2, 0.00, 156, 0.29),
        *(3, 256, "relu", "batch", 0.05),
        *(0.05, 0.0, 0.5, 0.0001, 1_000_000),
    ),
    "sms_spam": TrialSettings(
        *("English-wiki-small", True, True, True),
        *(True, "leaky_relu", False, 3, 0.20, 54, 0.00),
        *(1, 128, "leaky_relu", "batch", 0.0),
        *(0.1, 0.0, 0.05, 0.01, 1_000_000),
    ),
}


def parse_setting(text: str) -> Tuple[str, List[Any]]:
    """Returns the (name, list of values in `SPACE`) of a text name=value[,value...].

    Raises:
      UserError: there is no such parameter or value.
    """
    name, equals, values = text.partition("=")
    if not equals or name not in SPACE:
        raise UserError(
            f"--setting={text}: expected name=value, as in hidden_layers=2, with a name out of"
            f" {', '.join(SPACE)}."
        )
    return name, [_parse_value(name, value) for value in values.split(",")]


def _parse_value(name: str, text: str) -> Any:
    domain = SPACE[name]
    try:
        value = json_objects.parse_json(text.lower())
    except ValueError:
        value = text
    if isinstance(domain, Choice):
        match = domain.find(value)
        value = text if match is None else match
    if value in domain:
        return value
    raise UserError(f"--setting={name}={text}: expected {domain}.")


def find_module(name: str) -> Module:
    """Returns the module for a name in Table 6, in any case, or for another handle or folder.

    Other modules embed words, unless "universal-sentence-encoder" is in their name.
    """
    for known_name, module in MODULES.items():
        if known_name.lower() == name.lower():
            return module
    return Module(name, "text" if "universal-sentence-encoder" in name.lower() else "word")


def short_name(name: str) -> str:
    """Returns a module's name in Table 6, or the last part of its address without the version."""
    parts = [part for part in name.rstrip("/").split("/") if not part.isdigit()]
    return parts[-1] if parts else name
