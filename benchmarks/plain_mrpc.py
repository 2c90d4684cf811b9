"""Contestant: training on MRPC with plain TensorFlow, from data to checkpoint.

float32, every pair padded to the full length, tokenized character by character: like the original,
without its Estimator.
"""

import worker

worker.mark("python")

import argparse
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

import mrpc
import plain_bert
import plain_tokenizer
import workload


def features_of(rows, vocab, length):
    """Returns a dict of int32 arrays [rows, length] and [rows], named as in `workload.features`."""
    shape = [len(rows), length]
    names = ("input_ids", "input_mask", "segment_ids")
    arrays = {name: np.zeros(shape, np.int32) for name in names}
    for index, (first, second, _) in enumerate(rows):
        pair = [plain_tokenizer.tokenize(text, vocab) for text in (first, second)]
        while sum(map(len, pair)) > length - 3:
            max(reversed(pair), key=len).pop()
        tokens = ["[CLS]", *pair[0], "[SEP]", *pair[1], "[SEP]"]
        arrays["input_ids"][index, : len(tokens)] = [vocab[token] for token in tokens]
        arrays["input_mask"][index, : len(tokens)] = 1
        arrays["segment_ids"][index, len(pair[0]) + 2 : len(tokens)] = 1
    arrays["label_ids"] = np.array([label for _, _, label in rows], np.int32)
    return arrays


def rate_at(step, num_steps):
    """Returns the learning rate: warmup over a tenth of the steps, then decay to 0."""
    warmup = num_steps // 10
    share = step / warmup if step < warmup else 1 - step / num_steps
    return workload.LEARNING_RATE * share


def restore(session, prefix):
    """Loads the encoder's variables from BERT's checkpoint, and initializes all others."""
    held = {name for name, _ in tf.train.list_variables(prefix)}
    found = [v for v in tf.global_variables() if v.op.name in held]
    session.run(tf.global_variables_initializer())
    tf.train.Saver(found).restore(session, prefix)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glue_dir", required=True)
    parser.add_argument("--bert_dir", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_steps", type=int, help="stop before the epoch's end")
    values = parser.parse_args()
    tf.disable_eager_execution()
    worker.mark("imports", version="TensorFlow " + tf.__version__)

    vocab = plain_tokenizer.load_vocab(os.path.join(values.bert_dir, "vocab.txt"))
    arrays = features_of(mrpc.read(values.glue_dir, "train"), vocab, workload.LENGTH)
    order = np.random.RandomState(0).permutation(len(arrays["label_ids"]))
    worker.mark("data")

    with open(os.path.join(values.bert_dir, "bert_config.json"), encoding="utf-8") as reader:
        sizes = json.load(reader)
    inputs = {
        name: tf.placeholder(tf.int32, [workload.BATCH_SIZE, *rows.shape[1:]])
        for name, rows in arrays.items()
    }
    rate = tf.placeholder(tf.float32, [])
    loss, _ = plain_bert.classifier(sizes, inputs)
    fetches = loss, plain_bert.train_op(loss, rate)
    worker.mark("graph")

    with tf.Session() as session:
        restore(session, os.path.join(values.bert_dir, "bert_model.ckpt"))
        worker.mark("session")
        num_steps = len(order) // workload.BATCH_SIZE
        for step, batch in enumerate(
            order[: num_steps * workload.BATCH_SIZE].reshape(num_steps, -1)
        ):
            if step == values.max_steps:
                break
            feed = {inputs[name]: rows[batch] for name, rows in arrays.items()}
            value, _ = session.run(fetches, {**feed, rate: rate_at(step, num_steps)})
            worker.mark("step", loss=float(value))
        tf.train.Saver().save(session, os.path.join(values.output_dir, "model.ckpt"))
    worker.mark("end")


if __name__ == "__main__":
    main()
