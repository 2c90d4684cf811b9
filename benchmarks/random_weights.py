"""BERTs and task adapters with random weights, which are as fast as trained ones."""

from adapter_bert.shell import environment  # noqa: F401  First: it sets TensorFlow's environment.

# isort: split
import os

import numpy as np

import tokenization
import workload
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.model import configs, model_variables


def write_bert(folder, sizes):
    """Writes a random BERT; returns (its `configs.BertConfig`, prefix of the checkpoint)."""
    random, config = np.random.RandomState(0), configs.BertConfig(**sizes)
    prefix = os.path.join(folder, "bert_model.ckpt")
    tensors = {
        name: random.normal(name.endswith("gamma"), 0.02, shape).astype(np.float32)
        for name, shape in model_variables.encoder_shapes(config).items()
    }
    checkpoints.write(prefix, tensors)
    return config, prefix


def random_adapter(backbone, name, size=workload.ADAPTER_SIZE, seed=0, vocabulary=""):
    """Returns an untrained `task_adapter.TaskAdapter` of a task with two labels.

    Args:
      backbone: `task_adapter.Backbone`.
      name: of the task.
      size, seed: of the adapter, of its random weights.
      vocabulary: its digest; a bank does not read it.
    """
    description = task_adapter.Description(
        task=name,
        kind="classification",
        labels=tuple(str(i) for i in range(workload.NUM_LABELS)),
        max_seq_length=workload.LENGTH,
        do_lower_case=True,
        vocabulary=vocabulary,
        backbone=backbone,
        tuning=configs.Tuning(),
        adapter=configs.AdapterConfig(size),
        global_step=0,
        training={},
        scores={},
        versions=task_adapter.versions(),
    )
    random = np.random.RandomState(seed)
    tensors = {
        tensor: random.normal(tensor.endswith("gamma"), 0.02, shape).astype(np.float32)
        for tensor, shape in task_adapter.shapes(description).items()
    }
    return task_adapter.TaskAdapter(description, tensors)


def adapter_for(bert_dir, name, size=workload.ADAPTER_SIZE, seed=0):
    """Returns a `random_adapter` for the BERT and the vocabulary in a folder."""
    config = configs.BertConfig.from_json_file(os.path.join(bert_dir, "bert_config.json"))
    prefix = os.path.join(bert_dir, "bert_model.ckpt")
    vocabulary = task_adapter.digest(tokenization.load_vocab(os.path.join(bert_dir, "vocab.txt")))
    backbone = adapter_checkpoints.backbone_of(prefix, config)
    return random_adapter(backbone, name, size, seed, vocabulary)
