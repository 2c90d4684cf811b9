"""Hand-written records of trainings, for tests of their readers."""

import itertools

from adapter_bert.sweeps import selection

BACKBONE = 10_000  # Number of parameters of the BERT.
_KEYS = itertools.count()

# An ablation.json, as run_ablation.py writes it.
ABLATION_FILE = {
    "task": "CoLA",
    "score": "accuracy",
    "num_layers": 2,
    "all": 0.75,
    "none": 0.69,
    "majority": 0.6875,
    "spans": [[0, 0, 0.745], [0, 1, 0.69], [1, 1, 0.76]],
    "adapter": "a1",
    "backbone": "b1",
}

# The same ablation, in points.
ABLATION = {
    "task": "CoLA",
    "score": "accuracy",
    "num_layers": 2,
    "majority": 0.6875,
    "backbone": "b1",
    "scores": {
        "all adapters": [75.0],
        "no adapters": [69.0],
        "majority class": [68.75],
        "0-0": [74.5],
        "0-1": [69.0],
        "1-1": [76.0],
    },
}


def record(task, value, seed=1, *, test=None, score="accuracy", trained=200, script=None, **flags):
    """Returns the record of a finished training with dev score `value` and test score `test`."""
    scores = {f"eval_{score}": value, "trained_parameters": trained}
    if test is not None:
        scores[f"test_{score}"] = test
    if script == "run_baseline.py":
        others = {"settings": {"hidden_size": 64}}
    else:
        scores["backbone_parameters"] = BACKBONE
        others = {}
    return {
        "key": f"{next(_KEYS):x}",
        "script": script or "run_classifier.py",
        "flags": {"task_name": task, "random_seed": seed, **flags},
        "status": "done",
        "seconds": 1.5,
        "finished": "2026-11-22T12:00:00",
        "task": task,
        "score": f"eval_{score}",
        "scores": scores,
        **others,
    }


def run(*arguments, **options):
    """Returns the run of a `record`."""
    (result,) = selection.read([record(*arguments, **options)])
    return result


def with_majority(entries, majority, labels, split="eval"):
    """Returns records that also have the majority class's score and the predicted labels."""
    for entry, count in zip(entries, labels):
        name = entry["score"].replace("eval", f"{split}_majority", 1)
        entry["scores"].update({name: majority, f"{split}_predicted_labels": float(count)})
    return entries


def seeds(task, values, tests=(None, None, None), **options):
    """Returns the records of one setting with the seeds 1, 2, ..."""
    return [
        record(task, value, seed, test=test, **options)
        for seed, (value, test) in enumerate(zip(values, tests), start=1)
    ]
