"""Compares a training step with adapters in the upper half of the layers with the full set.

    python benchmarks/upper_half.py --model=bert-base

Batch 32, 128 tokens, no padding. LayerNorms train in the layers with adapters.
"""

import harness
import workload

_HALF, _FULL = "ours, upper half", "ours, all layers"


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="bert-base")
    values = harness.parse(parser)
    middle = workload.MODELS[values.model]["num_hidden_layers"] // 2
    full = ["--model=" + values.model, "--precision=bfloat16"]
    half = [*full, f"--first_adapted_layer={middle}"]
    torch = [values.peers, "torch_bert.py"]
    products = ["products.py", "--library=tensorflow"]
    contestants = [
        harness.project_script(_HALF, "own_model.py", *half),
        harness.project_script(_FULL, "own_model.py", *full),
        harness.peer("PyTorch adapters, upper half", *torch, *half),
        harness.peer("PyTorch adapters, all layers", *torch, *full),
        harness.project_script("floor, upper half", *products, *half),
        harness.project_script("floor, all layers", *products, *full),
    ]
    timings = harness.take_turns(contestants, values.repeats)
    lines = harness.compare(timings, _HALF)
    lines += ["", "All in bfloat16. The floors are the matrix products alone, by TensorFlow."]
    title = f"Adapters in the upper half only, one training step: {values.model}"
    versions = harness.versions_of(timings)
    harness.publish(values, "upper_half " + values.model, title, lines, versions)


if __name__ == "__main__":
    main()
