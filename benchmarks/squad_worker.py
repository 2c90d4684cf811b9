"""Contestants: SQuAD's JSON → features on disk, on one core, in this project's or BERT's way."""

import argparse
import atexit
import os
import shutil
import sys
import tempfile

import plain_tokenizer
import worker

LIMITS = (384, 128, 64)  # BERT's defaults: tokens of a row, stride, tokens of a question.


def ours(squad_file, vocab_file, folder):
    """Tokenizes a paragraph once, and writes its tokens once for all questions."""
    import tokenization
    from adapter_bert.tasks.squad import squad_data, squad_features
    from adapter_bert.training import feature_cache

    tokenizer = tokenization.FullTokenizer(vocab_file)
    limits = squad_features.Limits(*LIMITS)

    def make(add):
        examples = squad_data.read_squad_examples(squad_file, True, lazily=True)
        questions = squad_features.tokenize_questions(examples, tokenizer, limits, True)
        squad_features.add_rows(questions, tokenizer, add)

    arrays = feature_cache.load_or_build(folder, "features", make)
    return int(arrays["num_questions"].sum()), len(arrays["a_start"])


class _PlainTokenizer:
    def __init__(self, vocab_file):
        self._vocab = plain_tokenizer.load_vocab(vocab_file)

    def tokenize(self, text):
        return plain_tokenizer.tokenize(text, self._vocab)

    def convert_tokens_to_ids(self, tokens):
        return [self._vocab[token] for token in tokens]


def plain(squad_file, vocab_file, folder):
    """Tokenizes a paragraph for each question, character by character, and writes padded rows."""
    import tensorflow.compat.v1 as tf

    from adapter_bert.tasks.squad import squad_data, squad_features

    tokenizer, counts = _PlainTokenizer(vocab_file), [0, 0]
    examples = squad_data.read_squad_examples(squad_file, True)
    with tf.python_io.TFRecordWriter(os.path.join(folder, "features")) as writer:

        def write(feature):
            record = tf.train.Example()
            for name in ("input_ids", "input_mask", "segment_ids"):
                record.features.feature[name].int64_list.value.extend(getattr(feature, name))
            for name in ("unique_id", "start_position", "end_position"):
                record.features.feature[name].int64_list.value.append(getattr(feature, name))
            writer.write(record.SerializeToString())
            counts[1] += 1

        for example in examples:  # One at a time, without sharing.
            squad_features.convert_examples_to_features([example], tokenizer, *LIMITS, True, write)
            counts[0] += 1
    return tuple(counts)


_WAYS = {function.__name__: function for function in (ours, plain)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=sorted(_WAYS), required=True)
    parser.add_argument("--squad_file", required=True)
    parser.add_argument("--vocab_file", required=True)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    import run_squad  # noqa: F401  So that memory includes the script's imports.

    before = worker.resident_mb("self")
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    results = []

    def run():
        results[:] = _WAYS[arguments.way](arguments.squad_file, arguments.vocab_file, folder)

    def prepare():
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)

    prepare()
    run()
    facts = {
        "version": "Python " + sys.version.split()[0],
        "questions": results[0],
        "rows": results[1],
        "bytes": sum(
            os.path.getsize(os.path.join(place, name))
            for place, _, names in os.walk(folder)
            for name in names
        ),
        "memory": worker.peak_memory() - int(1e6 * before),
    }
    worker.serve(run, facts=facts, prepare=prepare)


if __name__ == "__main__":
    main()
