"""The ways in of models: checkpoints, configs, vocabularies, task adapters, and a run's folder."""

import functools
import hashlib
import json
import os
import struct
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import convert_checkpoint
import house
import modeling
import mutations
import tokenization
from adapter_bert.formats import adapterhub, checkpoints, huggingface, task_adapter
from adapter_bert.serving import request_texts
from adapter_bert.training import feature_cache, input_pipeline
from adapter_bert.training import output_dir as run_directory
from adapter_tests.support import tiny
from house import Reader

_TEXT = "The dog, sees a BIRD. 狗 \u2028 naïve"
_SETTINGS = {"model": {"a": 1, "b": [1, {"c": "x"}]}, "training": {"learning_rate": 0.1}}


def all_readers():
    """List of `Reader`s."""
    return [
        Reader("vocab.txt", _only("vocab.txt"), _read_vocabulary),
        Reader("SentencePiece model", _spm, _read_spm),
        Reader("bert_config.json", _only("bert_config.json"), _read_config, ("_config.json",)),
        *_checkpoint_readers(),
        *_run_readers(),
        *_folder_readers(),
        *_adapter_readers(),
        Reader("feature cache", house.written_by(_write_cache), _read_cache),
        Reader("TFRecord of features", house.written_by(_write_tfrecord), _read_tfrecord),
    ]


def _only(*names):
    def valid():
        found = house.files_in(house.bert())
        return {name: found[name] for name in names}

    return valid


def _read_vocabulary(folder):
    path = os.path.join(folder, "vocab.txt")
    for lower_case in (True, False):
        tokenizer = tokenization.FullTokenizer(path, lower_case)
        tokenizer.check_special_tokens()
        tokenizer.convert_tokens_to_ids(tokenizer.tokenize(_TEXT))
        tokenization.check_vocab_casing(tokenizer.vocab, False, path)
        tokenization.check_vocab_size(tokenizer.vocab, len(tiny.VOCABULARY), path)


@functools.lru_cache(maxsize=None)
def _spm():
    sentences = ["the dog sees a bird", "the cat hears a man", "a woman likes the small cat"]
    options = {"vocab_size": 40, "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    options["control_symbols"] = "[CLS],[SEP]"
    return {"spm.model": tiny.train_sentencepiece(sentences, **options)}


def _read_spm(folder):
    path = os.path.join(folder, "spm.model")
    tokenizer = tokenization.FullTokenizer(None, True, spm_model_file=path)
    tokenizer.convert_tokens_to_ids(tokenizer.tokenize(_TEXT))
    tokenization.check_vocab_size(tokenizer.vocab, len(tokenizer.vocab), path)


def _read_config(folder):
    config = modeling.BertConfig.from_json_file(os.path.join(folder, "bert_config.json"))
    if max(config.vocab_size, config.hidden_size, config.intermediate_size) > 1000:
        return  # As large as it says: the next step is the checkpoint, which is not.
    if config.num_hidden_layers > 3:
        return
    with tf.Graph().as_default():
        ids = tf.zeros([2, 2], tf.int32)
        encoder = modeling.BertModel(config, True, ids)
        encoder.get_pooled_output()


def _checkpoint_readers():
    files = [f"bert_model.ckpt.{end}" for end in ("index", "data-00000-of-00001")]
    return [
        Reader(
            "TensorFlow checkpoint by bytes", _only(*files), _read_checkpoint, ("bert_model.ckpt",)
        ),
        Reader(
            "TensorFlow checkpoint of other tensors",
            _only(*files),
            _read_checkpoint,
            ("bert_model.ckpt",),
            _other_tensors,
        ),
        Reader(
            "adapter-bert's checkpoint",
            house.written_by(_write_full_checkpoint),
            _read_full_checkpoint,
            ("full.ckpt", "--labels"),
        ),
    ]


def _read_checkpoint(folder):
    prefix = os.path.join(folder, "bert_model.ckpt")
    checkpoints.check_encoder(prefix, tiny.config())
    checkpoints.check_tensors(prefix)
    checkpoints.step_of(prefix)
    checkpoints.trained_tensors(prefix)


def _other_tensors(random, files):
    """A sound checkpoint of wrong tensors: missing, renamed, of other shapes and types."""
    reader = tf.train.NewCheckpointReader(os.path.join(house.bert(), "bert_model.ckpt"))
    names = sorted(reader.get_variable_to_shape_map())
    tensors = {name: reader.get_tensor(name) for name in names}
    for name in random.sample(names, random.choice((1, 1, 2, 5))):
        value = tensors.pop(name)
        name = random.choice(
            (name, name, name, name + "x", "bert", "global_step", "/", "bert/encoder/layer_99/x")
        )
        tensors[name] = random.choice(
            (
                value.astype(np.float64),
                value.astype(np.int64),
                value > 0,
                value.astype(np.complex64),
                np.full(value.shape, b"text", object),
                value[..., None],
                value[:1],
                value[:0],
                value.reshape(-1),
                value * np.nan,
                np.float32(3),
            )
        )
    with _temporary() as folder:
        checkpoints.write(os.path.join(folder, "bert_model.ckpt"), tensors)
        return house.files_in(folder)


def _temporary():
    return tempfile.TemporaryDirectory()


def _write_full_checkpoint(folder):
    prefix = os.path.join(house.bert(), "bert_model.ckpt")
    adapter_checkpoints.to_full_checkpoint(
        house.adapter(), prefix, os.path.join(folder, "full.ckpt")
    )


def _convert(*arguments):
    """One of convert_checkpoint.py's commands."""
    convert_checkpoint.main(list(arguments))


def _read_full_checkpoint(folder):
    made = os.path.join(folder, "made")
    prefix = os.path.join(folder, "full.ckpt")
    _convert("describe", prefix)
    _convert("from_adapter_bert", prefix, house.bert(), made, "--task=MRPC", "--labels=0,1")


def _run_readers():
    """What a run finds in its output_dir."""
    return [
        Reader(
            "settings.json of a run",
            house.written_by(_write_run),
            _claim,
            ("settings.json", "--output_dir"),
            functools.partial(_mutated_one, "settings.json"),
        ),
        Reader(
            "the file checkpoint",
            house.written_by(_write_run),
            _claim,
            ("checkpoint", "--output_dir"),
            functools.partial(_mutated_one, "checkpoint"),
        ),
        Reader(
            "training checkpoint",
            house.written_by(_write_run),
            _claim,
            ("partial.ckpt-10", "--output_dir"),
            lambda random, files: _mutated_one(
                random.choice(("partial.ckpt-10.index", "partial.ckpt-10.data-00000-of-00001")),
                random,
                files,
            ),
        ),
    ]


def _mutated_one(name, random, files):
    return {**files, **mutations.mutated(random, {name: files[name]})}


def _write_run(folder):
    adapter_checkpoints.to_checkpoint(house.adapter(), os.path.join(folder, "partial.ckpt-10"))
    with open(os.path.join(folder, "checkpoint"), "w") as writer:
        writer.write('model_checkpoint_path: "partial.ckpt-10"\n')
        writer.write('all_model_checkpoint_paths: "partial.ckpt-10"\n')
    with open(os.path.join(folder, "settings.json"), "w") as writer:
        json.dump(_SETTINGS, writer)


def _claim(folder):
    run_directory.claim(folder, _SETTINGS, is_training=True)
    checkpoints.last_step(folder)
    checkpoint = tf.train.latest_checkpoint(folder)
    if checkpoint:
        checkpoints.trained_tensors(checkpoint)


def _folder_readers():
    """What convert_checkpoint.py reads of other programs'."""
    return [
        Reader(
            "HuggingFace BERT",
            house.written_by(lambda folder: _convert("to_huggingface", house.bert(), folder)),
            _read_huggingface,
            huggingface.FILES,
        ),
        Reader(
            "AdapterHub adapter",
            house.written_by(_write_adapterhub),
            _read_adapterhub,
            (*adapterhub.FILES, "SOURCE_DIR", "PATH"),
        ),
    ]


def _read_huggingface(folder):
    _convert("from_huggingface", folder, os.path.join(folder, "made"))


def _write_adapterhub(folder):
    adapterhub.write(folder, house.adapter())


def _read_adapterhub(folder):
    _convert("describe", folder)
    _convert("from_adapterhub", folder, house.bert(), os.path.join(folder, "made"))


def _adapter_readers():
    """Task adapters, of which damage shows, and such as someone made wrong and sealed."""
    names = (*task_adapter.FILES, "--adapter", "ADAPTER_DIR", "PATH", "Task ")
    found = []
    for kind, options in (
        ("classification", {}),
        (
            "span",
            {"kind": "span", "labels": (), "training": {"doc_stride": 3, "max_query_length": 4}},
        ),
    ):
        valid = house.written_by(functools.partial(_save_adapter, options))
        found += [
            Reader(f"task adapter ({kind}) damaged", valid, _read_adapter, names),
            Reader(f"task adapter ({kind}) sealed", valid, _read_adapter, names, _resealed),
        ]
    return found


def _save_adapter(options, folder):
    task_adapter.save(folder, house.adapter(task="task", **options))


def _resealed(random, files):
    """A task adapter with another description, or other tensors, and the right checksums."""
    config, content = (files[name] for name in task_adapter.FILES)
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length].decode())
    record = json.loads(config.decode())
    record.pop("sha256")
    if random.random() < 0.7:
        record = mutations.mutated_value(random, record)
    else:
        header = mutations.mutated_value(random, header)
    if isinstance(header, dict):
        told = json.dumps(record, sort_keys=True)
        header = {**header, "__metadata__": {"adapter_config": told}}
    packed = mutations.json_bytes(header)
    content = struct.pack("<Q", len(packed)) + packed + content[8 + length :]
    if isinstance(record, dict):
        record = {**record, "sha256": hashlib.sha256(content).hexdigest()}
    return dict(zip(task_adapter.FILES, (mutations.json_bytes(record), content)))


def _read_adapter(folder):
    adapter = task_adapter.load(folder)
    request_texts.TaskTexts(adapter.description, _encoding(), "The task")
    json.dumps(task_adapter.compatibility_fields(adapter.description))


@functools.lru_cache(maxsize=None)
def _encoding():
    tokenizers = request_texts.Tokenizers(os.path.join(house.bert(), "vocab.txt"))
    return request_texts.TextEncoding(tiny.config(), tokenizers, 1000)


_CACHED = {"tokens": np.arange(50, dtype=np.int32), "label_ids": np.ones((7, 2), np.float32)}


def _make(add):
    add(_CACHED)


def _write_cache(folder):
    feature_cache.cached(folder, "key", _make)


def _read_cache(folder):
    """Damage is never read: the arrays are those that were made, or made anew."""
    found = feature_cache.cached(folder, "key", _make)
    assert set(found) == set(_CACHED), sorted(found)
    for name, value in _CACHED.items():
        np.testing.assert_array_equal(found[name], value)


def _write_tfrecord(folder):
    input_pipeline.write_tfrecord(tiny.arrays(), os.path.join(folder, "features.tf_record"))


def _read_tfrecord(folder):
    input_pipeline.read_tfrecord(os.path.join(folder, "features.tf_record"), 10)
