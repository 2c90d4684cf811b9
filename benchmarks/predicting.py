"""Predicting MRPC's test set, as complete processes.

    python benchmarks/predicting.py --glue_dir=... --bert_dir=...             the BERT of bert_dir
    python benchmarks/predicting.py --glue_dir=... --model=bert-base          random weights

Ours with run_classifier.py --do_predict; PyTorch adapters in bfloat16, in the file's order, each
batch padded to its longest pair.
"""

import os
import tempfile

import epoch
import harness
import mrpc
import workload
from harness import Target

_OURS = "ours, batch 32"
_TORCH = "PyTorch adapters, bfloat16"
_CAST = "PyTorch adapters, weights in bfloat16"
_TARGETS = [Target(_TORCH, 1 / 1.25), Target(_CAST, 1 / 1.25)]


def ours(name, glue_dir, prepared, *options):
    """A contestant that predicts with run_classifier.py."""
    return harness.own(
        name,
        "traced.py",
        "run_classifier.py",
        "--task_name=MRPC",
        "--do_predict",
        "--output_dir={scratch}/output",
        f"--data_dir={os.path.join(glue_dir, 'MRPC')}",
        f"--bert_config_file={prepared}/ours/bert_config.json",
        f"--vocab_file={prepared}/ours/vocab.txt",
        f"--init_checkpoint={prepared}/ours/bert_model.ckpt",
        *options,
    )


def predicting_only(timing):
    """The same contestant's time from the model being ready to the last batch's result."""
    seconds = [
        harness.last_mark(marks, "step") - harness.first_mark(marks, "session")
        for marks in timing.facts["marks"]
    ]
    return timing._replace(seconds=seconds, first=seconds[0])


def describe(timings, num_rows):
    """Markdown lines: throughput while predicting, the targets, and whole processes."""
    only = [predicting_only(timing) for timing in timings]
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
    with tempfile.TemporaryDirectory() as folder:
        prepared = os.path.join(folder, "prepared")
        epoch.prepare(prepared, *source)
        torch = [values.peers, "predict", glue_dir, prepared]
        contestants = [
            ours(_OURS, glue_dir, prepared, "--predict_batch_size=32"),
            ours("ours, batch 8 (the default)", glue_dir, prepared),
            epoch.torch(_TORCH, *torch),
            epoch.torch(_CAST, *torch, "--cast_weights"),
        ]
        timings = harness.take_turns_whole(contestants, values.repeats)
    name = values.model or os.path.basename(os.path.abspath(values.bert_dir))
    lines = describe(timings, len(mrpc.read(glue_dir, "test")))
    title = f"Predicting MRPC's test set: {name}"
    harness.publish(values, "predicting " + name, title, lines, harness.versions_of(timings))


if __name__ == "__main__":
    main()
