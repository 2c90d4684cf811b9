"""Exports BERT with a classifier and random weights from PyTorch as ONNX, and quantizes it.

python benchmarks/torch_onnx.py --model=minilm-l6 --adapters --folder=DIR

Writes float32.onnx and int8.onnx: the graph as ONNX Runtime's own optimizer for BERT fuses it, and
what its dynamic quantization makes of that.
"""

import argparse
import os

import torch
from onnxruntime import quantization
from onnxruntime.transformers import optimizer

import torch_bert
import workload

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


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
    exported = os.path.join(arguments.folder, "exported.onnx")
    torch.onnx.export(
        model,
        tuple(batch[name] for name in _INPUTS),
        exported,
        input_names=list(_INPUTS),
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in _INPUTS},
        opset_version=17,
        dynamo=False,
    )
    heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
    fused = optimizer.optimize_model(exported, "bert", num_heads=heads, hidden_size=width)
    path = os.path.join(arguments.folder, "float32.onnx")
    fused.save_model_to_file(path)
    quantization.quantize_dynamic(path, os.path.join(arguments.folder, "int8.onnx"))
    print(torch.__version__, fused.get_fused_operator_statistics())


if __name__ == "__main__":
    main()
