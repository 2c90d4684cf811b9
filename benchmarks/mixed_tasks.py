"""Compares forward passes of batches that mix tasks with single-task ones, for ours and PEFT.

    python benchmarks/mixed_tasks.py --model=minilm-l6

Batch 32, 128 tokens, no padding, float32; adapters of size 64, LoRA of rank 8 on queries and
values. The result is each one's mixed throughput as a share of its single-task throughput.
"""

import statistics

import harness
import workload

_TASKS = (1, 8, 32)
_SINGLE = "ours, the task's own model on TensorFlow"
_SHARE = 0.85  # The target: a mixed batch's throughput, as a share of the bank's single task.


def contestants(peers, model):
    """Returns the list of `harness.Contestant`."""
    options = ["--model=" + model]
    result = [harness.project_script(_SINGLE, "own_model.py", *options, "--work=forward")]
    for tasks in _TASKS:
        more = [*options, f"--tasks={tasks}"]
        result.append(harness.project_script(_name("ours", tasks), "bank_worker.py", *more))
        result.append(harness.peer(_name("PEFT LoRA", tasks), peers, "torch_mixed.py", *more))
    return result


def _name(whose, tasks):
    return f"{whose}, a batch of {tasks} tasks" if tasks > 1 else f"{whose}, a single task"


def describe(timings):
    """Returns Markdown lines: times, shares of single-task throughput, and targets."""
    median = {timing.name: statistics.median(timing.seconds) for timing in timings}
    lines = [*harness.compare(timings, _SINGLE), ""]
    for tasks in _TASKS[1:]:
        ours = median[_SINGLE] / median[_name("ours", tasks)]
        same = median[_name("ours", 1)] / median[_name("ours", tasks)]
        peft = median[_name("PEFT LoRA", 1)] / median[_name("PEFT LoRA", tasks)]
        verdict = "reached" if same >= max(_SHARE, peft) else "missed"
        lines.append(
            f"- {tasks} tasks in a batch keep {same:.2f}× of a bank's throughput with one task"
            f" ({ours:.2f}× of the task's own model in TensorFlow), PEFT's {peft:.2f}× of its own;"
            f" {_SHARE}× and no less than PEFT's is the target: {verdict}."
        )
    return lines


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="minilm-l6")
    values = harness.parse(parser)
    timings = harness.take_turns(contestants(values.peers, values.model), values.repeats)
    title = f"A batch of several tasks: {values.model}, float32, batch 32, 128 tokens"
    section = f"mixed_tasks {values.model}"
    versions = harness.versions_of(timings)
    harness.publish(values, section, title, describe(timings), versions)


if __name__ == "__main__":
    main()
