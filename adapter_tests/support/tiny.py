"""Inputs of the tests' trainings: a BERT with two layers, its vocabulary, and tasks.

Everything is generated on the fly, in a folder of the test.
"""

import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.formats import tfhub
from adapter_bert.tasks.tagging import tagging_features

_WORDS = "the a dog cat bird man woman sees likes hears big small old young and not"
WORDS = _WORDS.split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", "##s"]


# The sizes of a `modeling.BertConfig`.
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
}


class CountedText(str):
    """A text whose class counts comparisons."""

    comparisons = 0

    def __eq__(self, other):
        CountedText.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def config(**sizes):
    """Returns a `modeling.BertConfig` with 2 layers of width 8 that fits `VOCABULARY`."""
    return modeling.BertConfig(**{**SIZES, **sizes})


def write_bert(folder, **sizes):
    """Writes bert_config.json, vocab.txt and bert_model.ckpt of a random BERT; returns folder."""
    os.makedirs(folder, exist_ok=True)
    for name, content in _bert_files(tuple(sorted(sizes.items()))).items():
        with open(os.path.join(folder, name), "wb") as writer:
            writer.write(content)
    return folder


@functools.lru_cache(maxsize=None)
def _bert_files(sizes):
    """Returns the files of `write_bert`, bytes by name; cached, as their graph takes a second."""
    bert_config = config(**dict(sizes))
    files = {
        "bert_config.json": bert_config.to_json_string().encode(),
        "vocab.txt": "\n".join([*VOCABULARY, ""]).encode(),
    }
    with tempfile.TemporaryDirectory() as folder:
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(4)
            modeling.BertModel(bert_config, False, tf.zeros([1, 2], tf.int32), adapter_fn=None)
            session.run(tf.global_variables_initializer())
            tf.train.Saver(save_relative_paths=True).save(
                session, os.path.join(folder, "bert_model.ckpt"), write_meta_graph=False
            )
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as reader:
                files[name] = reader.read()
    return files


def load(session, variables, values):
    """Assigns values to variables in one run, as TensorFlow plans the graph for each run."""
    feeds = {v.initializer.inputs[1]: value for v, value in zip(variables, values)}
    session.run([variable.initializer for variable in variables], feeds)


def sentence(random):
    return " ".join(random.choice(WORDS, random.randint(2, 8))) + " ."


def write_mrpc(folder, rows=24, seed=0):
    """Writes train.tsv, dev.tsv and test.tsv in MRPC's format; returns the folder.

    A pair is a paraphrase if both sentences are equal.
    """
    os.makedirs(folder, exist_ok=True)
    random = np.random.RandomState(seed)
    header = "#1 ID\t#2 ID\t#1 String\t#2 String\n"
    for split, first in (("train", "Quality"), ("dev", "Quality"), ("test", "index")):
        with open(os.path.join(folder, split + ".tsv"), "w") as writer:
            writer.write(first + "\t" + header)
            for row in range(rows):
                label = row % 2
                a = sentence(random)
                b = a if label else sentence(random)
                key = row if split == "test" else label
                writer.write(f"{key}\t{row}\t{row + 1000}\t{a}\t{b}\n")
    return folder


def write_squad(path, num_questions=24, seed=0, impossible=False):
    """Writes questions whose answer is the word after the one they ask for; returns the path."""
    random, paragraphs = np.random.RandomState(seed), []
    for index in range(num_questions):
        words = random.choice(WORDS, 12, replace=True).tolist()
        place = random.randint(11)
        start = len(" ".join(words[: place + 1])) + 1
        answer = {"text": words[place + 1], "answer_start": start}
        none = impossible and index % 3 == 0
        qa = {"id": f"q{index}", "question": words[place], "answers": [] if none else [answer]}
        if impossible:
            qa["is_impossible"] = none
        paragraphs.append({"context": " ".join(words), "qas": [qa]})
    with open(path, "w") as writer:
        json.dump({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}, writer)
    return path


def word_vectors(width=3, seed=0):
    """Returns a dict from each of `WORDS` to its embedding, float32 [width]."""
    values = np.random.RandomState(seed).randn(len(WORDS), width).astype(np.float32)
    return dict(zip(WORDS, values))


def write_text_module(folder, width=3, seed=0):
    """Exports a module that embeds a text as the mean of its `word_vectors`; returns its folder.

    Other words have the embedding 0.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_text_module(width, seed).name, folder)
    return folder


@functools.lru_cache(maxsize=None)
def _text_module(width, seed):
    """Returns the `tempfile.TemporaryDirectory` of a text embedding module."""
    folder = tempfile.TemporaryDirectory()
    vectors, hub = word_vectors(width, seed), tfhub.library()

    def build():
        texts = tf.placeholder(tf.string, [None])
        table = tf.get_variable("table", [len(WORDS) + 1, width])
        words = tf.string_split(texts)
        initializer = tf.lookup.KeyValueTensorInitializer(
            tf.constant(WORDS), tf.range(len(WORDS), dtype=tf.int64)
        )
        ids = tf.lookup.StaticHashTable(initializer, len(WORDS)).lookup(words.values)
        sums = tf.math.unsorted_segment_sum(
            tf.gather(table, ids), words.indices[:, 0], tf.shape(texts)[0]
        )
        counts = tf.math.bincount(
            tf.cast(words.indices[:, 0], tf.int32), minlength=tf.shape(texts)[0]
        )
        hub.add_signature(
            inputs=texts, outputs=sums / tf.cast(tf.maximum(counts, 1), tf.float32)[:, None]
        )

    with tf.Graph().as_default(), tf.Session() as session:
        module = hub.Module(hub.create_module_spec(build), trainable=True)
        (table,) = module.variables
        session.run([table.initializer, tf.tables_initializer()])
        values = np.stack([*vectors.values(), np.zeros(width, np.float32)])
        value = tf.placeholder(tf.float32, values.shape)
        session.run(tf.assign(table, value), {value: values})
        module.export(folder.name, session)
    return folder


# These ports are below the system's ephemeral ports, so that no other program takes one between
# `free_port` and its use. The first one is random, because tests of several processes and checkouts
# may run at the same time.
_PORTS = itertools.count(random.SystemRandom().randrange(20000, 32000))


def free_port():
    """Returns a free port of this machine, a new one each time."""
    while True:
        port = next(_PORTS)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def enable_signals(test):
    """Lets Ctrl-C, SIGTERM and SIGHUP reach a test, even if pytest's process ignores them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        test.addCleanup(signal.signal, number, signal.getsignal(number))
        signal.signal(number, signal.default_int_handler)


def train_sentencepiece(sentences, **options):
    """Returns the bytes of a SentencePiece model; `options` are its trainer's.

    Runs in its own process: SentencePiece's trainer crashes where TensorFlow 1.15 has run.
    """
    train = "import json, sentencepiece, sys; sentencepiece.SentencePieceTrainer.train("
    train += "**json.loads(sys.argv[1]))"
    with tempfile.TemporaryDirectory() as folder:
        corpus, prefix = os.path.join(folder, "corpus.txt"), os.path.join(folder, "pieces")
        with open(corpus, "w", encoding="utf-8") as writer:
            writer.write("\n".join(sentences) + "\n")
        options = dict(options, input=corpus, model_prefix=prefix, hard_vocab_limit=False)
        options["minloglevel"] = 2
        subprocess.check_call([sys.executable, "-c", train, json.dumps(options)])
        with open(prefix + ".model", "rb") as reader:
            return reader.read()


def arrays(rows=12, seq_length=10, num_labels=2, seed=0):
    """Returns random features, in the format of `rows.PaddedRows`."""
    random = np.random.RandomState(seed)
    lengths = random.randint(3, seq_length + 1, rows)
    mask = (np.arange(seq_length) < lengths[:, None]).astype(np.int32)
    return {
        "input_ids": random.randint(5, len(VOCABULARY), mask.shape).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": random.randint(0, 2, mask.shape).astype(np.int32) * mask,
        "label_ids": random.randint(0, num_labels, rows).astype(np.int32),
        "is_real_example": np.ones(rows, np.int32),
    }


def tagged(arrays):
    """Returns `arrays` with one of two tags for each token; see `tagging_features`."""
    tags = tagging_features.FIRST_TAG + arrays["input_ids"] % 2
    return {**arrays, "label_ids": tags * arrays["input_mask"]}
