"""A tiny BERT in HuggingFace's format, with a hand-written table of names."""

import json
import os

import numpy as np
import safetensors.numpy

CONFIG = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.3,
    "hidden_size": 4,
    "initializer_range": 0.05,
    "intermediate_size": 6,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8,
    "model_type": "bert",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 9,
}


# (HuggingFace's name, its shape, Google's name); Google's kernels are transposed.
EMBEDDINGS = [
    ("embeddings.word_embeddings.weight", (9, 4), "bert/embeddings/word_embeddings"),
    ("embeddings.token_type_embeddings.weight", (2, 4), "bert/embeddings/token_type_embeddings"),
    ("embeddings.position_embeddings.weight", (8, 4), "bert/embeddings/position_embeddings"),
    ("embeddings.LayerNorm.weight", (4,), "bert/embeddings/LayerNorm/gamma"),
    ("embeddings.LayerNorm.bias", (4,), "bert/embeddings/LayerNorm/beta"),
]


LAYER = [
    ("attention.self.query.weight", (4, 4), "attention/self/query/kernel"),
    ("attention.self.query.bias", (4,), "attention/self/query/bias"),
    ("attention.self.key.weight", (4, 4), "attention/self/key/kernel"),
    ("attention.self.key.bias", (4,), "attention/self/key/bias"),
    ("attention.self.value.weight", (4, 4), "attention/self/value/kernel"),
    ("attention.self.value.bias", (4,), "attention/self/value/bias"),
    ("attention.output.dense.weight", (4, 4), "attention/output/dense/kernel"),
    ("attention.output.dense.bias", (4,), "attention/output/dense/bias"),
    ("attention.output.LayerNorm.weight", (4,), "attention/output/LayerNorm/gamma"),
    ("attention.output.LayerNorm.bias", (4,), "attention/output/LayerNorm/beta"),
    ("intermediate.dense.weight", (6, 4), "intermediate/dense/kernel"),
    ("intermediate.dense.bias", (6,), "intermediate/dense/bias"),
    ("output.dense.weight", (4, 6), "output/dense/kernel"),
    ("output.dense.bias", (4,), "output/dense/bias"),
    ("output.LayerNorm.weight", (4,), "output/LayerNorm/gamma"),
    ("output.LayerNorm.bias", (4,), "output/LayerNorm/beta"),
]


POOLER = [
    ("pooler.dense.weight", (4, 4), "bert/pooler/dense/kernel"),
    ("pooler.dense.bias", (4,), "bert/pooler/dense/bias"),
]


ENCODER = (
    EMBEDDINGS
    + [
        (f"encoder.layer.{i}.{theirs}", shape, f"bert/encoder/layer_{i}/{google}")
        for i in range(2)
        for theirs, shape, google in LAYER
    ]
    + POOLER
)


def random_tensors(table, seed=0):
    rng = np.random.RandomState(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape, _ in table}


def as_google(table, tensors):
    """Returns the expected result of a conversion, {Google's name: array}."""
    return {
        google: tensors[name].T if google.endswith("kernel") else tensors[name]
        for name, _, google in table
    }


def write_source(folder, tensors, **config):
    """Writes a HuggingFace BERT with these tensors; `config` overrides fields of `CONFIG`."""
    with open(os.path.join(folder, "config.json"), "w") as stream:
        json.dump(dict(CONFIG, **config), stream)
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as stream:
        stream.write("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##ä\nb\nc\n")
    tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    safetensors.numpy.save_file(tensors, os.path.join(folder, "model.safetensors"))
