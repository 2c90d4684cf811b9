"""Writes one BERT in two formats, this project's and HuggingFace's.

    python benchmarks/prepare.py DESTINATION --bert_dir=... | --model=bert-base --vocab_file=...

DESTINATION/ours has bert_config.json, vocab.txt and bert_model.ckpt, with untrained adapters and
head for predicting. DESTINATION/huggingface has the encoder as config.json, model.safetensors and
vocab.txt.
"""

from adapter_bert.shell import environment  # noqa: F401  First: it sets TensorFlow's environment.

# isort: split
import argparse
import json
import os
import shutil

import tensorflow.compat.v1 as tf

import modeling
import own_model
import workload
from adapter_bert.formats import huggingface
from adapter_bert.model import model_variables


def write(destination, sizes, vocab_file, init_checkpoint=None):
    """Writes both folders.

    Args:
      destination: new folder.
      sizes: dict, the arguments of `modeling.BertConfig`.
      vocab_file: path.
      init_checkpoint: prefix of the encoder's checkpoint; None for random weights.
    """
    ours, theirs = (os.path.join(destination, name) for name in ("ours", "huggingface"))
    for folder in (ours, theirs):
        os.makedirs(folder)
        shutil.copy(vocab_file, os.path.join(folder, "vocab.txt"))
    config = modeling.BertConfig(**sizes)
    with open(os.path.join(ours, "bert_config.json"), "w") as writer:
        writer.write(config.to_json_string())
    values = _write_checkpoint(os.path.join(ours, "bert_model.ckpt"), sizes, init_checkpoint)
    huggingface.write_model(
        theirs, config, {name: values[name] for name in model_variables.encoder_shapes(config)}
    )
    # The exact GELU, which is the fast one in PyTorch.
    with open(os.path.join(theirs, "config.json"), "w") as writer:
        json.dump(dict(sizes, model_type="bert", layer_norm_eps=1e-12), writer)


def _write_checkpoint(prefix, sizes, init_checkpoint):
    """Writes encoder, adapters and head; returns dict from names to arrays."""
    settings = own_model.settings(sizes, "float32", init_checkpoint=init_checkpoint)
    with own_model.build_for_predicting(settings) as session:
        tf.train.Saver().save(session, prefix, write_meta_graph=False)
        return session.run({v.op.name: v for v in tf.global_variables()})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("destination")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--bert_dir", help="weights of this BERT")
    source.add_argument("--model", choices=sorted(workload.MODELS), help="random weights")
    parser.add_argument("--vocab_file", help="with --model")
    values = parser.parse_args()
    if values.model:
        write(values.destination, workload.MODELS[values.model], values.vocab_file)
        return
    config_file, vocab_file, checkpoint = (
        os.path.join(values.bert_dir, name)
        for name in ("bert_config.json", "vocab.txt", "bert_model.ckpt")
    )
    config = modeling.BertConfig.from_json_file(config_file).to_dict()
    sizes = {name: config[name] for name in workload.MODELS["bert-base"]}
    write(values.destination, sizes, vocab_file, checkpoint)


if __name__ == "__main__":
    tf.disable_eager_execution()
    main()
