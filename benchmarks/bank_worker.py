"""Contestants: forward passes of a `bank.AdapterBank` whose batches mix tasks."""

from adapter_bert.common import environment  # First: it sets TensorFlow's environment.

# isort: split
import os
import tempfile

import numpy as np
import onnxruntime
import tensorflow.compat.v1 as tf

import modeling
import tuning
import worker
import workload
from adapter_bert.common import configs, model_variables
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.serving import bank


def write_bert(folder, sizes):
    """Writes a random BERT; returns (its `modeling.BertConfig`, prefix of the checkpoint)."""
    random, config = np.random.RandomState(0), modeling.BertConfig(**sizes)
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
        tuning=tuning.Tuning(),
        adapter=modeling.AdapterConfig(size),
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


def random_rows(tasks, sizes, count=workload.BATCH_SIZE):
    """Returns a batch of `bank.Row`s without padding, alternating between tasks."""
    batch = workload.features(sizes["vocab_size"], count)
    return [
        bank.Row(tasks[index % len(tasks)], ids, segments)
        for index, (ids, segments) in enumerate(
            zip(batch["input_ids"].tolist(), batch["segment_ids"].tolist())
        )
    ]


def main():
    parser = workload.parser(__doc__, work=False, precision=False, first_adapted_layer=False)
    parser.add_argument("--precision", choices=configs.ANSWER_PRECISIONS, default="float32")
    parser.add_argument("--tasks", type=int, required=True, help="in the bank and in each batch")
    parser.add_argument("--rows", type=int, default=workload.BATCH_SIZE, help="of a batch")
    parser.add_argument("--size", type=int, default=workload.ADAPTER_SIZE, help="of the adapters")
    arguments = parser.parse_args()
    sizes = workload.MODELS[arguments.model]
    with tempfile.TemporaryDirectory() as folder:
        adapter_bank = bank.AdapterBank(*write_bert(folder, sizes), precision=arguments.precision)
        names = [f"task {index}" for index in range(arguments.tasks)]
        adapter = random_adapter(adapter_bank.backbone, names[0], arguments.size)
        for name in names:
            adapter_bank.add(name, adapter)
        rows = random_rows(names, sizes, arguments.rows)
        adapter_bank.predict(rows)
    version = "ONNX Runtime " + onnxruntime.__version__
    worker.serve(lambda: adapter_bank.predict(rows), facts={"version": version})


if __name__ == "__main__":
    environment.silence_tensorflow()
    tf.disable_eager_execution()
    main()
