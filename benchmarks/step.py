"""Measures one training step, or one forward pass, of ours and the peers.

    python benchmarks/step.py --model=bert-base
    python benchmarks/step.py --model=minilm-l6 --work=forward

Batch 32, 128 tokens, no padding, without reading data. PyTorch and plain TensorFlow are measured
separately, each together with ours and the floor, because TensorFlow does not release memory: all
contestants of BERT-Base together would need 28 GB.
"""

import harness
import workload
from harness import Target

_OURS = "ours, --precision=auto"
_PLAIN = "plain TensorFlow, float32"
_ADAPTERS = "PyTorch adapters, "  # At its best precision.
_ONLY_FIRST = "bfloat16, TensorFlow, [CLS] only"

# The project's targets for a training step, by model.
_TARGETS = {
    "bert-base": [Target(_ADAPTERS, 0.8), Target(_PLAIN, 1 / 1.8)],
    "minilm-l6": [Target(_ADAPTERS, 0.6)],
}


def against_torch(peers, model, work):
    """Returns contestants: ours, PyTorch's in each precision and the floors."""
    half, full = _options(model, work, "bfloat16"), _options(model, work, "float32")

    def torch(name, *options):
        return harness.peer(name, peers, "torch_bert.py", *options)

    if work == "step":
        strongest = torch("PyTorch LoRA r=8, bfloat16", *half, "--method=lora")
    else:
        strongest = torch("PyTorch adapters, weights in bfloat16", *half, "--cast_weights")
    library = "--library=torch"
    return [
        harness.project_script(_OURS, "own_model.py", *_options(model, work, "auto")),
        torch("PyTorch adapters, bfloat16", *half),
        torch("PyTorch adapters, bfloat16, torch.compile", *half, "--compile"),
        strongest,
        torch("PyTorch adapters, float32", *full),
        _floor("bfloat16, TensorFlow", half),
        _floor(_ONLY_FIRST, half, "--only_first"),
        harness.peer("floor, bfloat16, PyTorch", peers, "products.py", *half, library),
    ]


def against_plain(peers, model, work):
    """Returns contestants: ours, plain TensorFlow and the floors."""
    half, full = _options(model, work, "bfloat16"), _options(model, work, "float32")
    return [
        harness.project_script(_OURS, "own_model.py", *_options(model, work, "auto")),
        harness.project_script("ours, float32", "own_model.py", *full),
        harness.project_script(_PLAIN, "plain_bert.py", "--model=" + model, "--work=" + work),
        _floor("bfloat16, TensorFlow", half),
        _floor(_ONLY_FIRST, half, "--only_first"),
        _floor("float32, TensorFlow", full),
    ]


_GROUPS = {"PyTorch": against_torch, "plain TensorFlow": against_plain}


def _options(model, work, precision):
    return ["--model=" + model, "--work=" + work, "--precision=" + precision]


def _floor(name, options, *more):
    """Returns a contestant that computes only the matrix products, in TensorFlow."""
    return harness.project_script(
        "floor, " + name, "products.py", *options, "--library=tensorflow", *more
    )


def floors_of(timings):
    """Returns name → seconds of the fastest measured bfloat16 floor for this contestant's products.

    Ours computes only the products of `_ONLY_FIRST`, the others compute all.
    """
    median = {timing.name: timing.median for timing in timings}
    names = [f"floor, bfloat16, {library}" for library in ("TensorFlow", "PyTorch")]
    whole = min(median[name] for name in names if name in median)
    least = median["floor, " + _ONLY_FIRST]
    return {
        name: least if name.startswith("ours") or name.endswith(_ONLY_FIRST) else whole
        for name in median
    }


def describe(timings, targets):
    """Returns Markdown lines: the contestants, the floors' rates and the targets."""
    lines = [*harness.compare(timings, _OURS, floors_of(timings)), ""]
    for timing in timings:
        if "flops" in timing.facts:
            flops = timing.facts["flops"]
            rate = flops / timing.median / 1e9
            lines.append(f"- {timing.name}: {flops / 1e9:,.0f} GFLOP at {rate:.0f} GFLOP/s")
    return [*lines, *harness.judge(timings, _OURS, targets), ""]


_FLOORS = (
    "A floor is the time of the matrix products alone, of the same shapes and type. '[CLS] only'"
    " omits the last layer's products for other positions, as this project does; peers compute"
    " them. The share is of the fastest bfloat16 floor for the same products."
)


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="bert-base")
    parser.add_argument("--work", choices=["step", "forward"], default="step")
    values = harness.parse(parser)
    targets = _TARGETS[values.model] if values.work == "step" else []
    lines, versions = [], []
    for name, group in _GROUPS.items():
        contestants = group(values.peers, values.model, values.work)
        timings = harness.take_turns(contestants, values.repeats)
        lines += [f"### Against {name}", "", *describe(timings, targets)]
        versions += harness.versions_of(timings)
    work = {"step": "training step", "forward": "forward pass"}[values.work]
    title = f"One {work}: {values.model}, batch {workload.BATCH_SIZE}, {workload.LENGTH} tokens"
    section = f"{values.work} {values.model}"
    harness.publish(values, section, title, [*lines, _FLOORS], versions)


if __name__ == "__main__":
    main()
