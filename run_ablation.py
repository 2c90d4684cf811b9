"""Measures the adapters of each layer: evaluates with every span of layers' adapters removed.

    python run_ablation.py --adapter=output/mrpc/adapter

Houlsby et al. 2019, figure 6, left: for all i <= j, the adapters of layers i to j are removed from
a trained task adapter, without further training; LayerNorms and head stay. One graph computes all
spans, with a mask of layers per row.

output_dir/ablation.json has the dev scores:

    {"task", "labels", "num_layers", "num_rows",
     "score": "accuracy",              for a regression "spearman"
     "all": with every adapter, "none": with none,
     "majority": the share of the most frequent label; a regression has none,
     "spans": [[first, last, score without the adapters of these layers and those between], ...],
     "other_scores": {"f1": {"all", "none", "spans"}},      the task's score, if it is another one
     "adapter", "backbone", "setting",                      digests; seeds share a setting
     "data", "max_seq_length", "precision"}                 what was evaluated

ablation.txt has the printed table and sentence.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare()

import dataclasses
import functools
import posixpath
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from adapter_bert import run_classifier
from adapter_bert.files import atomic, gfile, json_objects
from adapter_bert.formats import task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.shell import cli, printing
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import flag
from adapter_bert.sweeps import grids
from adapter_bert.tasks.text import (
    classifier_data,
    classifier_features,
    glue,
    text_kind,
    text_windows,
)
from adapter_bert.tasks.text.classifier_data import LongTextConfig, TaskConfig
from adapter_bert.training import estimator as estimators
from adapter_bert.training import input_pipeline, progress, starting_point
from adapter_bert.training import run as training_run
from adapter_bert.training.config import DeviceConfig, EvaluationConfig, TextConfig, default_folder
from adapter_bert.training.record import ANSWERS
from adapter_bert.training.rows import ProductRows, Rows

_JSON, _TEXT = "ablation.json", "ablation.txt"


@dataclasses.dataclass(frozen=True)
class AblationConfig(TaskConfig, LongTextConfig, EvaluationConfig, TextConfig, DeviceConfig):
    """The settings of this script."""

    adapter_folder: Optional[str] = flag(
        None,
        "Folder of the task adapter, such as output/mrpc/adapter. Task and model flags you omit are"
        " read from the adapter.",
        "Task and data",
        name="adapter",
    )
    output_dir: Optional[str] = flag(
        None, "Output folder of ablation.json and ablation.txt. Default: output/<task>.", "Output"
    )
    overwrite_output_dir: bool = flag(False, "Recompute results in output_dir.", "Output")


def run(values: Any) -> List[str]:
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    settings_of = functools.partial(classifier_data.trained_settings, values)
    start = starting_point.find(values, settings_of=settings_of, script="run_classifier.py")
    config = AblationConfig.from_flags(values, start.supplied)
    classifier_data.check_window_pooling(config, values["window_pooling"].present)
    adapter = _check_adapter(start.adapter, config)
    processor, data_dir = classifier_data.find_task(config, adapter)
    split = processor.splits_of("dev", data_dir)[0]
    examples = processor.get_examples(split, data_dir)
    classifier_data.check_data(
        adapter.description.training,
        adapter.description,
        classifier_data.fields_of({split: examples}),
        classifier_data.trained_on(processor, {split: examples}, data_dir),
        processor.split_settings(),
    )
    is_custom = classifier_data.is_custom(config.task_name)
    has_name = is_custom and task_kinds.is_custom(adapter.description.training)
    name = adapter.description.task if has_name else str(config.task_name)
    folder = config.output_dir or default_folder(name.lower(), "adapters")
    model = training_run.LoadedModel(config, start, folder)
    sources = {
        "adapter": task_adapter.tensors_digest(adapter),
        "backbone": adapter.description.backbone.fingerprint,
        "setting": _setting_digest(adapter.description),
        "data": classifier_data.digest(examples),
        "max_seq_length": config.max_seq_length,
        "precision": model.precision,
        **config.window_settings(),
    }
    path = posixpath.join(folder, _JSON)
    record = None if config.overwrite_output_dir else _read_finished(path, sources)
    if record is None:
        model.folder.create()
        record = {**_evaluate(model, processor, examples), **sources}
        record["task"] = grids.task_label(name, data_dir) if is_custom else record["task"]
        text = "\n".join(map(printing.one_line, report(record))) + "\n"
        atomic.write_atomically(posixpath.join(folder, _TEXT), text)
        json_objects.write_object(path, record)  # Last, because it marks a finished run.
    return [*report(record), f"Ablation: {path}"]


def _check_adapter(
    adapter: "Optional[task_adapter.TaskAdapter]", config: AblationConfig
) -> "task_adapter.TaskAdapter":
    """Returns the adapter; raises UserError if there is nothing to remove from it."""
    if adapter is None:
        raise UserError(
            "--adapter is not given; expected the folder of a task adapter, as in"
            " --adapter=output/mrpc/adapter."
        )
    if adapter.description.adapter is None:
        raise UserError(
            f"--adapter {config.adapter_folder} was trained with"
            f" --tuning={adapter.description.tuning.method} and has no adapters to remove; expected"
            " --tuning=adapters."
        )
    return adapter


def _setting_digest(description: "task_adapter.Description") -> str:
    """Returns a digest of how an adapter was trained, except the seed."""
    free = ("random_seed", ANSWERS)
    training = {n: v for n, v in description.training.items() if n not in free}
    setting = [description.adapter, description.tuning, sorted(training.items())]
    return task_adapter.digest(map(repr, setting))


def _read_finished(path: str, sources: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Returns the record of an earlier run of the same sources, or None.

    Raises:
      UserError: the record has other sources, or the file is damaged.
    """
    if not gfile.exists(path):
        return None
    record, _ = json_objects.read_as(path, "--output_dir", _JSON, lambda read: (read, report(read)))
    # Earlier versions recorded fewer of them; text_windows' defaults are never recorded.
    defaults = {**sources, **text_windows.recorded({})}
    differing = [
        name
        for name, default in defaults.items()
        if record.get(name, default) != sources.get(name, default)
    ]
    if differing:
        raise UserError(
            f"{path} was computed with a different {' and '.join(differing)}; set another"
            " --output_dir, or --overwrite_output_dir."
        )
    return record


def spans(num_layers: int) -> List[Tuple[int, int]]:
    """Returns all (first, last) layers of a span, in order."""
    return [(first, last) for first in range(num_layers) for last in range(first, num_layers)]


def span_gates(num_layers: int, adapted_layers: Optional[Sequence[int]] = None) -> np.ndarray:
    """Returns adapter_gates for `modeling.BertModel`: nothing removed, then each span removed.

    Args:
      num_layers: L.
      adapted_layers: indices of the layers with adapters, None for all. Other layers' gates stay
        1, so that spans that remove the same adapters have equal gates.

    Returns:
      float32 [1 + L (L + 1) / 2, L].
    """
    layers = np.arange(num_layers)
    unadapted = ~np.isin(layers, layers if adapted_layers is None else adapted_layers)
    removed = [(layers >= first) & (layers <= last) for first, last in spans(num_layers)]
    return np.array([layers >= 0, *(unadapted | ~mask for mask in removed)], np.float32)


def _evaluate(
    model: "training_run.LoadedModel",
    processor: "glue.SplitProcessor",
    examples: "List[classifier_features.InputExample]",
) -> Dict[str, Any]:
    """Evaluates all spans; returns the `_record` of their scores."""
    task, labels = processor.task, processor.get_labels()
    builder = functools.partial(
        run_classifier.model_fn_builder,
        num_labels=len(labels),
        kind=task.kind,
        predicts_loss=True,
    )
    estimator = model.estimator_of(task.kind, task.labels, builder)
    rows = classifier_data.encode_examples(examples, labels, model.config, model.tokenizer)
    num_layers = model.bert.config.num_hidden_layers
    assert model.start.adapter and model.start.adapter.description.adapter  # Checked before.
    gates = span_gates(num_layers, model.start.adapter.description.adapter.layers)
    answers = _predict_answers(estimator, rows, gates, task)
    return _record(task, num_layers, text_windows.labels_of(rows), answers)


def _predict_answers(
    estimator: "estimators.Estimator", rows: Rows, gates: np.ndarray, task: "glue.TaskInfo"
) -> np.ndarray:
    """Returns the predictions [rows, gates, ...] of all rows with all gates."""
    kind = text_kind.get(task.kind)
    unique_gates, gate_indices = np.unique(gates, axis=0, return_inverse=True)
    product_rows = ProductRows(rows, "adapter_gates", unique_gates)
    predictions = estimator.stream(product_rows, estimator.model.task_checkpoint)
    windows = getattr(rows, "windows", None)
    answer = kind.answers if windows is None else lambda row: row[kind.prediction]
    ordered_answers = input_pipeline.sort_by_index(
        (index, answer(row))
        for index, row in progress.show_progress(predictions, len(product_rows))
    )
    answers = np.array(ordered_answers)
    answers = answers.reshape(len(rows), len(unique_gates), *answers.shape[1:])
    if windows is not None:
        answers = kind.answers(windows.join({kind.prediction: answers}, kind.is_single_label))
    return answers[:, gate_indices]


def _record(
    task: "glue.TaskInfo", num_layers: int, labels: np.ndarray, answers: np.ndarray
) -> Dict[str, Any]:
    """Returns the scores in the format of ablation.json.

    Args:
      num_layers: L.
      labels: [N, ...], the correct labels.
      answers: [N, 1 + L (L + 1) / 2, ...], see `_predict_answers`.
    """
    kind = text_kind.get(task.kind)
    by_gates = [
        kind.scores(labels, answers[:, index], len(task.labels))
        for index in range(answers.shape[1])
    ]
    first, *others = dict.fromkeys([kind.ablation_score, task.score, kind.score])

    def table(name: str) -> Dict[str, Any]:
        full, *removed = (scores[name] for scores in by_gates)
        by_span = [[*span, score] for span, score in zip(spans(num_layers), removed)]
        return {"all": full, "none": removed[num_layers - 1], "spans": by_span}

    record: Dict[str, Any] = {
        "task": task.name,
        "labels": list(task.labels),
        "num_layers": num_layers,
        "num_rows": len(labels),
        "score": first,
        **table(first),
        "other_scores": {name: table(name) for name in others},
    }
    if task.labels:
        _, counts = np.unique(labels, axis=0, return_counts=True)
        record["majority"] = float(np.max(counts) / len(labels))
    return record


def report(record: Dict[str, Any]) -> List[str]:
    """Returns the report of an ablation.json: the lines of a table, and a sentence.

    The table's rows are a span's first layer, its columns the last, as in the paper's figure.
    """
    layers = range(record["num_layers"])
    losses = {(i, j): 100 * (record["all"] - score) for i, j, score in record["spans"]}
    cells = {span: f"{round(-points, 1) + 0.0:7.1f}" for span, points in losses.items()}  # No -0.0.
    return [
        f"{record['task']} dev, {record['num_rows']} rows: {record['score']}"
        f" {_format_score(record, record['all'])}. Change in points without the adapters of layers"
        " (row) to (column):",
        "    " + "".join(f"{last:7}" for last in layers),
        *(
            f"{first:4}" + "".join(cells.get((first, last), " " * 7) for last in layers)
            for first in layers
        ),
        _sentence(record, [losses[layer, layer] for layer in layers]),
    ]


def _sentence(record: Dict[str, Any], losses: List[float]) -> str:
    """Returns the paper's observations on its figure, with this record's numbers.

    Args:
      losses: the loss in points when each single layer's adapters are removed.
    """
    half = (len(losses) + 1) // 2  # The middle layer of an odd number counts in both halves.
    worst = int(np.argmax(losses))
    majority = record.get("majority")
    majority_note = (
        "" if majority is None else f" (majority class: {_format_score(record, majority)})"
    )
    return (
        f"Removing one layer's adapters costs at most {losses[worst]:.1f} points (layer {worst});"
        f" removing all leaves {_format_score(record, record['none'])}{majority_note}. On average,"
        f" a layer of the lower half costs {np.mean(losses[:half]):.1f}, of the upper half"
        f" {np.mean(losses[-half:]):.1f}."
    )


def _format_score(record: Dict[str, Any], value: float) -> str:
    return f"{value:.1%}" if record["score"] == "accuracy" else f"{value:.4f}"


define_flags = AblationConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
