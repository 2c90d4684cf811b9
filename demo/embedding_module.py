"""Writes a text embedding module from a BERT's word embeddings, in TensorFlow 1's hub format.

    python demo/embedding_module.py --output_dir=demo/embeddings

The module splits a text at spaces and punctuation, looks its words up in BERT's vocabulary, and
returns the mean of their embeddings; words that are not in it as a whole become [UNK]. The module's
one variable, the table, can be fine-tuned. The BERT is found as in run_classifier.py.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare()

import dataclasses
import tempfile
from typing import Optional

import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.files import atomic
from adapter_bert.formats import checkpoints, tfhub
from adapter_bert.serving.export import in_graph_tokenizer
from adapter_bert.shell import cli
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import flag
from adapter_bert.training import pretrained
from adapter_bert.training.config import TokenizerConfig

_TABLE = "bert/embeddings/word_embeddings"
_UNKNOWN = "[UNK]"
_PUNCTUATION = r"([\p{P}\p{S}])"  # As in BERT, each character is a word of its own.


@dataclasses.dataclass(frozen=True)
class ModuleConfig(TokenizerConfig):
    """The settings of this script."""

    output_dir: Optional[str] = flag(None, "Folder of the module, which must be new.", "Output")


def run(values):
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    config = ModuleConfig.from_flags(values)
    folder = config.output_dir
    if not folder:
        raise UserError("--output_dir is required: the folder of the new module.")
    if tf.io.gfile.exists(folder):
        raise UserError(f"--output_dir={folder} already exists; expected a new folder.")
    if config.spm_model_file:
        raise UserError("--spm_model_file is not supported; expected a WordPiece vocabulary.")
    bert, tokenizer = pretrained.load(config)
    if _UNKNOWN not in tokenizer.vocab:
        raise UserError(f"{bert.vocab_file}: the vocabulary has no {_UNKNOWN}.")
    where = f"--init_checkpoint {bert.init_checkpoint}"
    table = checkpoints.read_tensor(
        checkpoints.open_checkpoint(bert.init_checkpoint), _TABLE, where
    )
    with atomic.atomic_folder(folder) as partial:
        export(partial, tokenization.tokens_by_id(tokenizer.vocab), table, config.do_lower_case)
    words, width = table.shape
    return [f"Module: {folder} ({words:,} words, {width} wide)"]


def export(folder, words, table, lowercase):
    """Writes the module.

    Args:
      folder: path.
      words: list of str, including [UNK].
      table: float32 [len(words), D], their embeddings.
      lowercase: bool; whether texts are lower-cased, as the words are.
    """
    hub = tfhub.library()
    with tempfile.TemporaryDirectory() as scratch, tf.Graph().as_default():
        vocabulary = os.path.join(scratch, "vocab.txt")
        with open(vocabulary, "w", encoding="utf-8") as writer:
            writer.write("\n".join(words) + "\n")
        unknown = words.index(_UNKNOWN)
        spec = hub.create_module_spec(lambda: _build(vocabulary, table.shape, unknown, lowercase))
        module = hub.Module(spec, trainable=True)
        (variable,) = module.variables
        value = tf.placeholder(tf.float32, table.shape)
        with tf.Session() as session:
            session.run([variable.initializer, tf.tables_initializer()])
            session.run(tf.assign(variable, value), {value: table})
            module.export(folder, session)


def _build(vocabulary, shape, unknown, lowercase):
    """Builds the module's graph: strings [B] → the means of their words' embeddings [B, D]."""
    texts = tf.placeholder(tf.string, [None])
    # TensorFlow 1.15 cannot read a resource variable from TensorFlow 2.
    table = tf.get_variable("word_embeddings", shape, use_resource=False)
    lookup = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            vocabulary,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        unknown,
    )
    plain = in_graph_tokenizer.lower(texts) if lowercase else texts
    words = tf.string_split(tf.strings.regex_replace(plain, _PUNCTUATION, r" \1 "))
    ids = tf.SparseTensor(words.indices, lookup.lookup(words.values), words.dense_shape)
    # A text without words gets one, and its mean is then replaced by zeros. TensorFlow 1.15 can
    # read these operations from TensorFlow 2, unlike those of embedding_lookup_sparse.
    ids, is_empty = tf.sparse.fill_empty_rows(ids, tf.constant(unknown, tf.int64))
    means = tf.math.segment_mean(tf.gather(table, ids.values), ids.indices[:, 0])
    tfhub.library().add_signature(
        inputs=texts, outputs=tf.where_v2(is_empty[:, tf.newaxis], 0.0, means)
    )


define_flags = ModuleConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
