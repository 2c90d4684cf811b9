"""Measures predicting MRPC's test set, as complete processes.

    python benchmarks/predicting.py --glue_dir=... --bert_dir=...             the BERT of bert_dir
    python benchmarks/predicting.py --glue_dir=... --model=bert-base          random weights

Ours with run_classifier.py --do_predict; PyTorch adapters in bfloat16, in the file's order, each
batch padded to its longest pair.
"""

import os

import epoch
import harness
import mrpc
import workload
from harness import Target

_OURS = "ours, batch 32"
_TORCH = "PyTorch adapters, bfloat16"
_CAST = "PyTorch adapters, weights in bfloat16"
_TARGETS = [Target(_TORCH, 1 / 1.25), Target(_CAST, 1 / 1.25)]


def ours(name, glue_dir, folder, *options):
    """Returns a contestant that predicts with run_classifier.py."""
    bert_dir = os.path.join(folder, "ours")
    return epoch.run_classifier(name, glue_dir, bert_dir, "--do_predict", *options)


def describe(timings, num_rows):
    """Returns Markdown lines: throughput while predicting, targets, and whole processes."""
    only = [epoch.steps_alone(timing) for timing in timings]
    ours = only[0]
    header = ["contestant", "rows/s while predicting", "ours is faster by"]
    rows = [
        [timing.name, f"{num_rows / timing.median:.1f}", f"{timing.median / ours.median:.2f}×"]
        for timing in only
    ]
    lines = [f"{num_rows} rows. While predicting, from the loaded model to the last batch:", ""]
    lines += [*harness.table(header, rows), "", *harness.judge(only, _OURS, _TARGETS)]
    return [*lines, "", "The whole processes:", "", *harness.compare(timings, _OURS)]


def main():
    parser = harness.arguments(__doc__)
    harness.data_arguments(parser)
    parser.add_argument("--model", choices=sorted(workload.MODELS), help="random weights")
    values = harness.parse(parser)
    glue_dir = values.glue_dir
    source = ["--bert_dir=" + values.bert_dir]
    if values.model:
        vocab_file = os.path.join(values.bert_dir, "vocab.txt")
        source = ["--model=" + values.model, "--vocab_file=" + vocab_file]
    with epoch.prepared(*source) as folder:
        torch = [values.peers, "predict", glue_dir, folder]
        contestants = [
            ours(_OURS, glue_dir, folder, "--predict_batch_size=32"),
            ours("ours, batch 8 (the default)", glue_dir, folder),
            epoch.torch(_TORCH, *torch),
            epoch.torch(_CAST, *torch, "--cast_weights"),
        ]
        timings = harness.take_turns_whole(contestants, values.repeats)
    name = values.model or os.path.basename(values.bert_dir)
    lines = describe(timings, len(mrpc.read(glue_dir, "test")))
    model = values.model or os.path.relpath(values.bert_dir, harness.ROOT)
    title = "Predicting MRPC's test set: " + model
    versions = harness.versions_of(timings)
    harness.publish(values, "predicting " + name, title, lines, versions)


if __name__ == "__main__":
    main()
