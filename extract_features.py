"""Writes the outputs of BERT's layers for each text in a file, with or without a task adapter.

    python extract_features.py --input_file=input.txt --output_file=output.jsonl

A line of the input is a text, or a pair as in "text ||| text". The output has BERT's format, a JSON
object per line: {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1,
"values": [...]}, ...]}, ...]}. --pooling=cls and --pooling=mean write one vector per text and
layer; an output name that ends in .npy or .npz selects arrays. Its importable functions are those
of BERT's extract_features.py.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare()

import contextlib
import dataclasses
import functools
import re
import tempfile
from typing import Any, Optional, Tuple

from adapter_bert import modeling
from adapter_bert.features import encoder_features, feature_files
from adapter_bert.features.feature_files import (  # noqa: F401  BERT's users import these here.
    InputExample,
    InputFeatures,
    convert_examples_to_features,
    read_examples,
)
from adapter_bert.files import gfile, paths
from adapter_bert.formats import checkpoints
from adapter_bert.model import configs
from adapter_bert.shell import cli, tf_estimator
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import flag
from adapter_bert.training import estimator as estimators
from adapter_bert.training import (
    input_pipeline,
    model_fn,
    progress,
    starting_point,
)
from adapter_bert.training import run as training_run
from adapter_bert.training.config import DeviceConfig, TokenizerConfig


def parse_layers(text: str) -> Tuple[int, ...]:
    """Returns the layers that --layers lists; raises UserError for another text."""
    if not re.fullmatch(r"\s*-?\d{1,4}\s*(,\s*-?\d{1,4}\s*)*", text):
        raise UserError(f"--layers={text}: expected layers, as in -1,-2,-3,-4.")
    return tuple(map(int, text.split(",")))


@dataclasses.dataclass(frozen=True)
class ExtractionConfig(TokenizerConfig, DeviceConfig):
    """The settings of this script."""

    # Required: `__post_init__` checks these two.
    input_file: str = flag(
        None,
        'Texts, one per line in UTF-8; a pair of texts as in "text ||| text".',
        "Task and data",
    )
    output_file: str = flag(
        None,
        "Output file: an array if the name ends in .npy, several arrays for .npz, otherwise JSON"
        " lines. An existing file is replaced once all is written.",
        "Output",
    )
    layers: Any = flag(
        "-1,-2,-3,-4",
        "Layers whose outputs are written: -1 is the last and 0 the first.",
        "Output",
        parse=parse_layers,
    )
    pooling: str = flag(
        "tokens",
        "Output per text. tokens: every token; cls: [CLS]; mean: the mean over all tokens,"
        " including [CLS] and [SEP].",
        "Output",
        choices=feature_files.POOLINGS,
    )
    adapter_folder: Optional[str] = flag(
        None,
        "Folder of a task adapter to apply. Default: plain BERT.",
        "Adapters",
        name="adapter",
    )
    max_seq_length: int = flag(
        128, "Longest text or pair in tokens; longer ones are truncated.", "Task and data"
    )
    batch_size: int = flag(32, "Texts per batch.", "Evaluation and prediction", lower=1)
    use_one_hot_embeddings: bool = flag(
        False, "Look up embeddings by a matrix product, which TPUs prefer.", "Devices"
    )
    precision: str = flag(
        "float32",
        "Precision of activations and matrix products; variables and outputs are float32.",
        "Devices",
        choices=("float32", "bfloat16"),
    )

    def __post_init__(self):
        for name in ("input_file", "output_file"):
            if not getattr(self, name):
                raise UserError(f"--{name} is required.")
        if self.output_file.endswith(".npy") and self.pooling == "tokens":
            raise UserError(
                f"--output_file={self.output_file}: a single array cannot hold texts of different"
                " lengths; expected --pooling=cls, --pooling=mean, or a name that ends in .npz."
            )
        if paths.is_same_path(self.input_file, self.output_file):
            raise UserError(f"--output_file={self.output_file} is the same as --input_file.")

    @property
    def eval_batch_size(self):
        """Texts per batch."""
        return self.batch_size


def input_fn_builder(features, seq_length):
    """Returns an input_fn over features; BERT's function of this name.

    Args:
      features: list of `InputFeatures`, or, as in this script, a function that returns an iterable
        of batches, lists of them.
      seq_length: S, the length of all batches; None truncates each batch to a bucket.

    Returns:
      input_fn(params) → Dataset of the dicts of `encoder_features.arrays_of`.
    """
    import tensorflow.compat.v1 as tf

    def input_fn(params):
        def batches():
            if callable(features):
                return features()
            starts = range(0, len(features), params["batch_size"])
            return (features[start : start + starts.step] for start in starts)

        def read():
            return (encoder_features.arrays_of(batch, seq_length) for batch in batches())

        names = ("input_ids", "input_mask", "input_type_ids")
        shapes = {"unique_ids": (None,), **dict.fromkeys(names, (None, seq_length))}
        dataset = tf.data.Dataset.from_generator(read, dict.fromkeys(shapes, tf.int32), shapes)
        return input_pipeline.disable_autotune(dataset.prefetch(2))

    return input_fn


def model_fn_builder(
    bert_config,
    init_checkpoint,
    layer_indexes,
    use_tpu,
    use_one_hot_embeddings,
    *,
    pooling="tokens",
    adapter_fn=None,
    **settings,
):
    """Returns a model_fn that predicts unique_id and layer_output_0, layer_output_1 and so on.

    BERT's function of this name. The model_fn raises ValueError in other modes than PREDICT.

    Args:
      pooling: see `encoder_features.pool`.
      adapter_fn: as in `modeling.BertModel`.
      **settings: other fields of `model_fn.ModelSettings`.
      The other arguments are BERT's.
    """
    import tensorflow.compat.v1 as tf

    def build(features, is_training, **options):
        model = modeling.BertModel(
            bert_config,
            is_training,
            features["input_ids"],
            features["input_mask"],
            features["input_type_ids"],
            use_one_hot_embeddings,
            **options,
        )
        layers = model.get_all_encoder_layers()
        predictions = {"unique_id": features["unique_ids"]}
        for index, layer_index in enumerate(layer_indexes):
            layer, mask = layers[layer_index], features["input_mask"]
            predictions[f"layer_output_{index}"] = encoder_features.pool(layer, mask, pooling)
        return model_fn.ModelOutput(tf.zeros([]), predictions)  # For prediction only.

    model_settings = model_fn.ModelSettings(
        bert_config=bert_config,
        init_checkpoint=init_checkpoint,
        adapter_fn=adapter_fn,
        use_tpu=use_tpu,
        use_one_hot_embeddings=use_one_hot_embeddings,
        **settings,
    )
    inner = model_fn.model_fn_builder(model_settings, build)

    def predict(features, labels, mode, params, config=None):
        if mode != tf_estimator.ModeKeys.PREDICT:
            raise ValueError(f"mode={mode}: expected ModeKeys.PREDICT.")
        return inner(features, labels, mode, params, config)

    return predict


def run(values):
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    start = starting_point.find(values)
    config = ExtractionConfig.from_flags(values, start.supplied)
    texts: Any = read_examples(config.input_file, lazily=True)
    with _working_folder(config) as folder:
        loaded = training_run.LoadedModel(config, start, folder)
        bert = loaded.bert.config
        encoder_features.check_layers(config.layers, bert.num_hidden_layers)
        configs.check_pairs(bert, texts.fields, f"--input_file={config.input_file}")
        if not start.adapter:
            checkpoints.check_plain(loaded.bert.init_checkpoint)
        builder = functools.partial(
            model_fn_builder, layer_indexes=config.layers, pooling=config.pooling
        )
        estimator = encoder_features.build_estimator(config, loaded, builder)
        outputs = encoder_features.extract(
            estimator, texts, config, loaded.tokenizer, input_fn_builder
        )
        writer = feature_files.FeatureWriter(
            config.output_file, len(texts), config, bert.hidden_size
        )
        with contextlib.closing(outputs), writer:
            num_written = 0
            for features, vectors in progress.show_progress(outputs, len(texts)):
                writer.write(features, vectors)
                num_written += 1
            if num_written != len(texts):
                raise UserError(
                    f"--input_file={config.input_file}: had {len(texts)} lines, and now has"
                    f" {num_written}; do not change it during the run."
                )
    size = gfile.readable_size(config.output_file)
    return [f"Features: {config.output_file} ({len(texts)} texts, {size})"]


@contextlib.contextmanager
def _working_folder(config):
    """Yields a folder without checkpoints, as an Estimator would prefer these to the weights."""
    if config.use_tpu:
        estimators.check_paths_for_tpu(config, output_file=config.output_file)
    if gfile.is_remote(config.output_file):
        yield config.output_file + ".work"  # A TPU's host cannot read a local folder.
        return
    with tempfile.TemporaryDirectory() as folder:
        yield folder


define_flags = ExtractionConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
