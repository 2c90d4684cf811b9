"""Writes support/adapterhub/: adapters and logits of the package `adapters`, for tests.

    .venv-peers/bin/python adapter_tests/support/make_adapterhub_goldens.py

`bert` is a tiny BERT in HuggingFace's format, with its weights in both kinds of file. Each other
folder holds an adapter with large random weights as `save_adapter` wrote it, and `logits.npy`, the
logits of the package's model for `batch.npz`. The adapters' files have all formats: safetensors and
the two of `torch.save`.
"""

import json
import os
import shutil

import adapters
import numpy as np
import torch
from adapters import AutoAdapterModel
from transformers import BertConfig, BertModel

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adapterhub")
BERT = "bert"  # A folder in FOLDER; saved files contain this name.
LABELS = {0: "no", 1: "maybe", 2: "yes"}
TAGS = {0: "O", 1: "B-PER", 2: "I-PER"}


def classification(model, name, **options):
    model.add_classification_head(name, num_labels=3, id2label=LABELS, **options)


def with_pooler(model, name):
    classification(model, name, layers=1, use_pooler=True)


def regression(model, name):
    model.add_classification_head(name, num_labels=1, layers=1, use_pooler=True)


def multilabel(model, name):
    model.add_classification_head(name, num_labels=3, id2label=LABELS, multilabel=True)


def tagging(model, name):
    model.add_tagging_head(name, num_labels=3, id2label=TAGS)


def questions(model, name):
    model.add_qa_head(name)


# Folder → (config, its changes, function that adds the head, how the tensors are saved).
CASES = {
    "houlsby": ("double_seq_bn", {}, classification, "zip"),
    "houlsby_pooler": ("double_seq_bn", {"non_linearity": "gelu_new"}, with_pooler, "safetensors"),
    "houlsby_learned": ("double_seq_bn", {"scaling": "learned"}, regression, "zip"),
    "pfeiffer": ("seq_bn", {}, with_pooler, "legacy"),
    "pfeiffer_tagging": ("seq_bn", {"leave_out": [0]}, tagging, "safetensors"),
    "pfeiffer_multilabel": ("seq_bn", {"non_linearity": "leakyrelu"}, multilabel, "zip"),
    "parallel": ("par_bn", {}, classification, "safetensors"),
    "parallel_questions": ("par_bn", {"mh_adapter": True}, questions, "zip"),
    "parallel_channel": (
        "par_bn",
        {"scaling": "channel", "non_linearity": "silu"},
        multilabel,
        "zip",
    ),
}


def main():
    """Writes all folders."""
    torch.manual_seed(0)
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    os.chdir(FOLDER)
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        hidden_act="gelu_new",
        initializer_range=0.4,
    )
    bert = BertModel(config)
    randomize(bert)
    bert.save_pretrained(BERT)
    torch.save(bert.state_dict(), os.path.join(BERT, "pytorch_model.bin"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnop"]
    with open(os.path.join(BERT, "vocab.txt"), "w") as writer:
        writer.write("\n".join(words) + "\n")
    batch = {
        "input_ids": np.array([[2, 5, 6, 7, 3, 0], [2, 9, 3, 10, 11, 3]]),
        "attention_mask": np.array([[1, 1, 1, 1, 1, 0], [1] * 6]),
        "token_type_ids": np.array([[0] * 6, [0, 0, 0, 1, 1, 1]]),
    }
    np.savez("batch.npz", **batch)
    for name, (layout, changes, add_head, form) in CASES.items():
        write(name, layout, changes, add_head, form, batch)
    write_static_head(batch)


def randomize(module):
    """Gives all parameters random values large enough to change the outputs."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            mean = 1.0 if "LayerNorm.weight" in name or name.endswith("scaling") else 0.0
            parameter.normal_(mean, 0.4)


def write(name, layout, changes, add_head, form, batch):
    """Writes one folder."""
    model = AutoAdapterModel.from_pretrained(BERT)
    config = adapters.AdapterConfig.load(layout, reduction_factor=2, **changes)
    model.add_adapter(name, config=config)
    add_head(model, name)
    model.set_active_adapters(name)
    for key, module in model.named_modules():
        if key.endswith(f".adapters.{name}") or key == f"heads.{name}":
            randomize(module)
    model.eval()
    logits = logits_of(model, batch)
    model.save_adapter(name, name, use_safetensors=form == "safetensors")
    np.save(os.path.join(name, "logits.npy"), logits)
    if form == "legacy":
        for file in ("pytorch_adapter.bin", "pytorch_model_head.bin"):
            path = os.path.join(name, file)
            torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)


def logits_of(model, batch):
    """Returns logits [B, L], or [B, S, L] for a head on tokens."""
    with torch.no_grad():
        output = model(**{key: torch.tensor(value) for key, value in batch.items()})
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1).numpy()
    return output.logits.numpy()


def write_static_head(batch):
    """Writes `static_head` from `pfeiffer`, as the package saves a model with a static head."""
    source, folder = "pfeiffer", "static_head"
    shutil.copytree(source, folder)
    with open(os.path.join(source, "adapter_config.json")) as reader:
        record = {**json.load(reader), "model_class": "BertForSequenceClassification"}
    dump(folder, "adapter_config.json", record)
    labels = {label: index for index, label in LABELS.items()}
    head = {**record, "config": None, "label2id": labels, "name": None, "num_labels": 3}
    dump(folder, "head_config.json", head)
    path = os.path.join(folder, "pytorch_model_head.bin")
    tensors = torch.load(path)
    tensors = {name.replace("heads.pfeiffer.1", "classifier"): tensors[name] for name in tensors}
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    model = AutoAdapterModel.from_pretrained(BERT)
    model.load_adapter(folder, set_active=True)
    model.eval()
    np.save(os.path.join(folder, "logits.npy"), logits_of(model, batch))
    expected = np.load(os.path.join(source, "logits.npy"))
    np.testing.assert_allclose(np.load(os.path.join(folder, "logits.npy")), expected, atol=1e-6)


def dump(folder, file, record):
    """Writes a JSON file."""
    with open(os.path.join(folder, file), "w") as writer:
        json.dump(record, writer, indent=2, sort_keys=True)


if __name__ == "__main__":
    main()
