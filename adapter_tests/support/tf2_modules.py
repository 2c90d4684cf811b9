"""Modules in TensorFlow 2's formats, as published by the Model Garden and TF-Hub."""

import os

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from adapter_tests.support import tiny

IS_TF1 = tf.__version__.startswith("1.")
WITHOUT = "TensorFlow 1.15 cannot write what TensorFlow 2 does"

# Names of an encoder's variables: today's, and those of TF-Hub's first modules.
TODAY = {
    "words": "word_embeddings/embeddings",
    "positions": "position_embedding/embeddings",
    "types": "type_embeddings/embeddings",
    "norm": "embeddings/layer_norm",
    "layer": "transformer/layer_{}",
    "attended": "self_attention/attention_output",
}
FIRST = {
    "words": "bert_model/word_embeddings/embeddings",
    "positions": "bert_model/embedding_postprocessor/position_embeddings",
    "types": "bert_model/embedding_postprocessor/type_embeddings",
    "norm": "bert_model/embedding_postprocessor/layer_norm",
    "layer": "bert_model/encoder/layer_{}",
    "attended": "self_attention_output",
}


def tensors(config, names=TODAY, seed=0):
    """Returns random variables of an encoder as a dict from (name, Google's name) to arrays.

    Attention weights have separate head axes.
    """
    random, found = np.random.RandomState(seed), {}
    width, heads = config.hidden_size, config.num_attention_heads
    size, scope = width // heads, names["words"].rpartition("word_embeddings")[0]

    def add(name, google, *shape):
        mean = 1.0 if name.endswith("gamma") else 0.0
        found[name, "bert/" + google] = random.normal(mean, 0.4, shape).astype(np.float32)

    def dense(name, google, inputs, outputs):
        add(name + "/kernel", google + "/kernel", *inputs, *outputs)
        add(name + "/bias", google + "/bias", *outputs)

    def norm(name, google):
        for part in ("gamma", "beta"):
            add(f"{name}/{part}", f"{google}/LayerNorm/{part}", width)

    add(names["words"], "embeddings/word_embeddings", config.vocab_size, width)
    add(names["positions"], "embeddings/position_embeddings", config.max_position_embeddings, width)
    add(names["types"], "embeddings/token_type_embeddings", config.type_vocab_size, width)
    norm(names["norm"], "embeddings")
    for index in range(config.num_hidden_layers):
        layer, google = names["layer"].format(index), f"encoder/layer_{index}"
        for part in ("query", "key", "value"):
            own = f"{google}/attention/self/{part}"
            dense(f"{layer}/self_attention/{part}", own, [width], [heads, size])
        own = google + "/attention/output"
        dense(f"{layer}/{names['attended']}", own + "/dense", [heads, size], [width])
        norm(layer + "/self_attention_layer_norm", own)
        inner = [config.intermediate_size]
        dense(layer + "/intermediate", google + "/intermediate/dense", [width], inner)
        dense(layer + "/output", google + "/output/dense", inner, [width])
        norm(layer + "/output_layer_norm", google + "/output")
    dense(scope + "pooler_transform", "pooler/dense", [width], [width])
    return found


def by_google_name(config, values):
    """Returns the arrays of `tensors` by Google's names, in Google's shapes."""
    width, found = config.hidden_size, {}
    for (_, name), value in values.items():
        if "/attention/" in name and "LayerNorm" not in name:
            value = value.reshape([width] * (1 if name.endswith("bias") else 2))
        found[name] = value
    return found


class Encoder(tf2.Module):
    """An encoder with given variables; maps a dict of three Tensors [B, S] to a dict of outputs."""

    def __init__(self, values):
        super().__init__()
        self.all = [tf2.Variable(value, name=name) for (name, _), value in values.items()]
        self._by_name = dict(zip([google for _, google in values], self.all))

    @tf2.function(
        autograph=False,
        input_signature=[
            {
                name: tf2.TensorSpec([None, None], tf2.int32, name)
                for name in ("input_word_ids", "input_mask", "input_type_ids")
            }
        ],
    )
    def __call__(self, inputs):
        """Computes BERT (Devlin et al. 2018) by einsum, as the Model Garden does."""
        of = {name[len("bert/") :]: value for name, value in self._by_name.items()}
        ids = inputs["input_word_ids"]
        x = tf2.gather(of["embeddings/word_embeddings"], ids)
        x += tf2.gather(of["embeddings/token_type_embeddings"], inputs["input_type_ids"])
        x = _norm(x + of["embeddings/position_embeddings"][: tf2.shape(ids)[1]], of, "embeddings")
        hidden = 1 - tf2.cast(inputs["input_mask"], tf2.float32)
        for index in range(sum("query/kernel" in name for name in of)):
            x = _layer(x, hidden, of, f"encoder/layer_{index}")
        pooled = tf2.tanh(x[:, 0] @ of["pooler/dense/kernel"] + of["pooler/dense/bias"])
        return {"sequence_output": x, "pooled_output": pooled, "default": pooled}


def _layer(x, hidden, of, layer):
    query, key, value = (
        tf2.einsum("bsd,dnh->bsnh", x, of[f"{layer}/attention/self/{part}/kernel"])
        + of[f"{layer}/attention/self/{part}/bias"]
        for part in ("query", "key", "value")
    )
    scores = tf2.einsum("bfnh,btnh->bnft", query, key) / query.shape[-1] ** 0.5
    attended = tf2.nn.softmax(scores - 10000.0 * hidden[:, None, None, :])
    attended = tf2.einsum("bnft,btnh->bfnh", attended, value)
    own = layer + "/attention/output"
    attended = tf2.einsum("bfnh,nhd->bfd", attended, of[own + "/dense/kernel"])
    x = _norm(x + attended + of[own + "/dense/bias"], of, own)
    inner = tf2.einsum("bsd,di->bsi", x, of[layer + "/intermediate/dense/kernel"])
    inner += of[layer + "/intermediate/dense/bias"]
    inner *= 0.5 * (1 + tf2.tanh((2 / np.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
    output = tf2.einsum("bsi,id->bsd", inner, of[layer + "/output/dense/kernel"])
    return _norm(x + output + of[layer + "/output/dense/bias"], of, layer + "/output")


def _norm(x, of, scope):
    mean, variance = tf2.nn.moments(x, [-1], keepdims=True)
    of_unit = (x - mean) / tf2.sqrt(variance + 1e-12)
    return of_unit * of[scope + "/LayerNorm/gamma"] + of[scope + "/LayerNorm/beta"]


def write_vocabulary(folder):
    """Writes `tiny.VOCABULARY`, and returns its path."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "vocab.txt")
    with open(path, "w") as writer:
        writer.write("\n".join([*tiny.VOCABULARY, ""]))
    return path


def save_encoder(folder, values, do_lower_case=True):
    """Writes an encoder's SavedModel with the vocabulary as an asset; returns its folder."""
    module = Encoder(values)
    module.vocab_file = tf2.saved_model.Asset(write_vocabulary(folder + "-vocabulary"))
    if do_lower_case is not None:
        module.do_lower_case = tf2.Variable(do_lower_case, trainable=False)
    tf2.saved_model.save(module, folder)
    return folder


def save_checkpoint(folder, values, **objects):
    """Writes an object-based checkpoint of an encoder and the vocabulary; returns its prefix."""
    write_vocabulary(folder)
    checkpoint = tf2.train.Checkpoint(encoder=Encoder(values), **objects)
    return checkpoint.save(os.path.join(folder, "bert_model.ckpt"))


class TextModule(tf2.Module):
    """Maps a text to the mean of its `tiny.word_vectors`; other words have the embedding 0."""

    def __init__(self, width=3):
        super().__init__()
        words = tiny.word_vectors(width)
        table = np.stack([*words.values(), np.zeros(width, np.float32)])
        self.table = tf2.Variable(table, name="table")
        initializer = tf2.lookup.KeyValueTensorInitializer(
            tf2.constant(list(words)), tf2.range(len(words), dtype=tf2.int64)
        )
        self.lookup = tf2.lookup.StaticHashTable(initializer, len(words))

    @tf2.function(autograph=False, input_signature=[tf2.TensorSpec([None], tf2.string)])
    def __call__(self, texts):
        """Maps strings [B] to float32 [B, D]."""
        words = tf2.strings.split(texts)
        ids = self.lookup.lookup(words.flat_values)
        rows = tf2.gather(self.table, ids)
        sums = tf2.math.unsorted_segment_sum(rows, words.value_rowids(), tf2.size(texts))
        counts = tf2.cast(tf2.maximum(words.row_lengths(), 1), tf2.float32)
        return sums / counts[:, None]


def save_text_module(folder):
    """Writes a SavedModel that embeds texts; returns its folder."""
    tf2.saved_model.save(TextModule(), folder)
    return folder
