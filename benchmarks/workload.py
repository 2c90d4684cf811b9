"""The common workload: the models' sizes, a batch, and the matrix products of a step.

Runs in every contestant's environment, so it needs only NumPy. Axes as in modeling.py.
"""

import argparse
import zlib
from typing import NamedTuple, Tuple

import numpy as np

ADAPTER_SIZE = 64
NUM_LABELS = 2
LEARNING_RATE = 3e-4
BATCH_SIZE = 32
LENGTH = 128

_COMMON = {
    "vocab_size": 30522,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
# Arguments for both `modeling.BertConfig` and transformers.BertConfig.
MODELS = {
    "bert-base": dict(_COMMON, hidden_size=768, num_hidden_layers=12, intermediate_size=3072),
    "minilm-l6": dict(_COMMON, hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
}
# Only for compilers and sums of bytes.
LARGE = dict(
    _COMMON, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)


def parser(description, precision=True):
    """Returns the parser of contestants of a step or pass, with --precision or without."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--model", choices=sorted(MODELS), required=True)
    result.add_argument("--work", choices=["step", "forward"], default="step")
    if precision:
        result.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    return result


def features(vocab_size, batch_size=BATCH_SIZE, length=LENGTH):
    """Returns a batch of random ids without padding, a dict of int32 arrays with our names."""
    random = np.random.RandomState(0)
    shape = [batch_size, length]
    arrays = {
        "input_ids": random.randint(0, vocab_size, shape),
        "input_mask": np.ones(shape),
        "segment_ids": np.broadcast_to(np.arange(length) >= length // 2, shape),
        "label_ids": random.randint(0, NUM_LABELS, batch_size),
        "is_real_example": np.ones(batch_size),
    }
    return {name: values.astype(np.int32) for name, values in arrays.items()}


class GpuWork(NamedTuple):
    """A step or forward pass in fixed shapes, for gpu.py to measure."""

    kind: str  # "step" or "forward".
    task: str  # "text" or "squad".
    method: str  # "adapters" or "full".
    precision: str
    batch_size: int
    length: int

    @property
    def name(self):
        kind = [self.kind, self.task, self.method, self.precision]
        return "-".join([*kind, f"{self.batch_size}x{self.length}"])


GPU_WORKS = [
    *(
        GpuWork("step", task, "adapters", precision, BATCH_SIZE, length)
        for task, length in (("text", LENGTH), ("squad", 384))
        for precision in ("bfloat16", "float32")
    ),
    GpuWork("step", "text", "full", "bfloat16", BATCH_SIZE, LENGTH),
    *(
        GpuWork("forward", "text", "adapters", "bfloat16", *shape)
        for shape in ((1, 32), (8, 64), (BATCH_SIZE, LENGTH))
    ),
]
GPU_STEPS = 20  # Steps of a timed call, so that waiting for the GPU does not count.


def work_of(name):
    """Returns the `GpuWork` of a name."""
    kind, task, method, precision, shape = name.split("-")
    return GpuWork(kind, task, method, precision, *map(int, shape.split("x")))


def gpu_features(work, vocab_size):
    """Returns the `features` of a `GpuWork`, with its task's labels."""
    arrays = features(vocab_size, work.batch_size, work.length)
    if work.task == "squad":
        random = np.random.RandomState(1)
        del arrays["label_ids"]
        for name in ("start_positions", "end_positions"):
            arrays[name] = random.randint(0, work.length, work.batch_size).astype(np.int32)
    return arrays


def initial(name, shape, dtype):
    """Returns a variable's initial value, the same in every environment, by its name."""
    if dtype.startswith("int") or name.endswith(("adam_m", "adam_v")):
        return np.zeros(shape, dtype)
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return random.normal(name.endswith("gamma"), 0.02, shape).astype(dtype)


class Product(NamedTuple):
    """A matrix product: (name, shape) of both operands, and which of them is transposed.

    Operands with equal names are the same matrix; no two products of a step share both operands.
    """

    left: Tuple[str, Tuple[int, ...]]
    right: Tuple[str, Tuple[int, ...]]
    transpose_left: bool = False
    transpose_right: bool = False

    @property
    def flops(self):
        *batch, rows, columns = self.left[1]
        inner = rows if self.transpose_left else columns
        outer = columns if self.transpose_left else rows
        width = self.right[1][-2 if self.transpose_right else -1]
        return 2 * int(np.prod(batch, dtype=np.int64)) * outer * inner * width


def products(sizes, batch_size=BATCH_SIZE, length=LENGTH, *, backward, only_first=False):
    """Returns the encoder's matrix products in a forward pass or a training step.

    Args:
      sizes: a value of `MODELS`.
      backward: bool; include the backward pass of adapter tuning: all gradients of inputs, and
        those of the adapters' weights.
      only_first: bool; compute only what the last layer's output at the first position needs.

    Returns:
      list of `Product`, in the order of execution.
    """
    last = sizes["num_hidden_layers"] - 1
    forward_pass, backward_pass = [], []
    for index in range(last + 1):
        queries = 1 if only_first and index == last else length
        layer = _layer(index, sizes, batch_size, queries, length)
        forward_pass += [step[0] for step in layer]
        gradients = [product for step in reversed(layer) for product in step[1:]]
        backward_pass = gradients + backward_pass
    return forward_pass + backward_pass if backward else forward_pass


def _dense(name, rows, inputs, outputs, trained):
    """Returns [a dense layer's product, its gradients]; weights have a gradient only if trained."""
    x, dy = (f"x{rows}x{inputs}", (rows, inputs)), (f"dy{rows}x{outputs}", (rows, outputs))
    kernel = (name, (inputs, outputs))
    step = [Product(x, kernel), Product(dy, kernel, transpose_right=True)]
    if trained:  # Matrices of their own: else the layers' gradients were one product.
        x, dy = ((name + own, shape) for own, shape in (x, dy))
        step.append(Product(x, dy, transpose_left=True))
    return step


def _layer(index, sizes, batch_size, queries, length):
    """Returns a list of [product, its gradients], in the order of execution."""
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    heads = sizes["num_attention_heads"]
    pairs, head = batch_size * heads, width // heads
    rows, all_rows = batch_size * queries, batch_size * length

    def dense(name, rows, inputs, outputs, trained=False):
        return _dense(f"{name}{index}", rows, inputs, outputs, trained)

    def adapter(name):
        down = dense(name + "down", rows, width, ADAPTER_SIZE, trained=True)
        return [down, dense(name + "up", rows, ADAPTER_SIZE, width, trained=True)]

    query = (f"q{index}", (pairs, queries, head))
    probs, d_scores = ((f"{name}{queries}", (pairs, queries, length)) for name in ("p", "ds"))
    key, value = ((f"{name}{index}", (pairs, length, head)) for name in "kv")
    d_context = (f"dc{index}", query[1])
    return [
        dense("query", rows, width, width),
        dense("key", all_rows, width, width),
        dense("value", all_rows, width, width),
        [
            Product(query, key, transpose_right=True),
            Product(d_scores, key),
            Product(d_scores, query, transpose_left=True),
        ],
        [
            Product(probs, value),
            Product(d_context, value, transpose_right=True),
            Product(probs, d_context, transpose_left=True),
        ],
        dense("projection", rows, width, width),
        *adapter("first"),
        dense("intermediate", rows, width, inner),
        dense("output", rows, inner, width),
        *adapter("second"),
    ]
