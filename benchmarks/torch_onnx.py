"""Exports BERT with a classifier and random weights from PyTorch as ONNX, and quantizes it.

python benchmarks/torch_onnx.py --model=minilm-l6 --adapters --folder=DIR

Writes float32.onnx and, with ONNX Runtime's dynamic quantization, int8.onnx. A session optimizes
both further; ONNX Runtime's offline optimizer for BERT makes them slower on CPU.
"""

import argparse
import os

import torch
from onnxruntime import quantization  # noqa: TID251 (engines.py turned its telemetry off.)

import torch_bert
import workload

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class _Logits(torch.nn.Module):
    """Returns a classifier's logits, with positional inputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model(**dict(zip(_INPUTS, inputs))).logits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(workload.MODELS), required=True)
    parser.add_argument("--adapters", action="store_true", help="merge adapters into it")
    parser.add_argument("--folder", required=True)
    arguments = parser.parse_args()
    sizes = workload.MODELS[arguments.model]
    model = torch_bert.random_model(sizes)
    if arguments.adapters:
        model = torch_bert.adapted(model)
    model.eval()
    batch = torch_bert.random_batch(sizes)
    path = os.path.join(arguments.folder, "float32.onnx")
    torch.onnx.export(
        _Logits(model),
        tuple(batch[name] for name in _INPUTS),
        path,
        input_names=list(_INPUTS),
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in _INPUTS},
        opset_version=17,
        dynamo=False,
    )
    quantized = os.path.join(arguments.folder, "int8.onnx")
    quantization.quantize_dynamic(path, quantized)


if __name__ == "__main__":
    main()
