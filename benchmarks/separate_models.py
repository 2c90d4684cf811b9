"""Compares time and memory of a bank of 26 tasks over one BERT with those of 26 models.

    python benchmarks/separate_models.py --model=bert-base

Each predicts one row of 128 tokens per task: the bank in one mixed batch, the models one after the
other. The paper has 26 tasks, 9 of GLUE and 17 others.
"""

import harness
import workload

_TASKS = 26
_BANK = "a bank, adapters of size 64"


def main():
    parser = harness.arguments(__doc__, peers=False)
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="minilm-l6")
    values = harness.parse(parser)
    options = ["--model=" + values.model]
    bank = [*options, f"--rows={_TASKS}"]
    models = [*options, "--work=forward"]
    contestants = [
        harness.project_script(_BANK, "bank_worker.py", *bank, f"--tasks={_TASKS}"),
        harness.project_script(
            "a bank, adapters of size 8", "bank_worker.py", *bank, f"--tasks={_TASKS}", "--size=8"
        ),
        harness.project_script("a bank of one task", "bank_worker.py", *bank, "--tasks=1"),
        harness.project_script("26 models", "own_model.py", *models, f"--models={_TASKS}"),
        harness.project_script("one model", "own_model.py", *models, "--models=1"),
    ]
    timings = harness.take_turns(contestants, values.repeats)
    size = {timing.name: timing.bytes for timing in timings}
    each = (size["26 models"] - size["one model"]) / (_TASKS - 1)
    lines = [*harness.compare(timings, _BANK), ""]
    for name in (_BANK, "a bank, adapters of size 8"):
        # Not for small adapters: a process's memory varies by more than they need.
        task = max(0, size[name] - size["a bank of one task"]) / (_TASKS - 1)
        lines.append(
            f"- A further task takes {task / 1e6:.1f} MB in {name}, {each / 1e6:.0f} MB as a model:"
            f" {task / each:.1%}."
        )
    title = f"26 tasks, one row of each: {values.model}, float32"
    section = f"separate_models {values.model}"
    harness.publish(values, section, title, lines, harness.versions_of(timings))


if __name__ == "__main__":
    main()
