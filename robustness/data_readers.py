"""The ways in of what a task is trained on, and of what scripts have written about trainings."""

import dataclasses
import functools
import json
import os

import numpy as np

import house
import run_report
import run_squad
import run_sweep
from adapter_bert.baseline import search_space
from adapter_bert.experiments import reports, significance
from adapter_bert.tasks import (
    classifier_features,
    custom_tasks,
    glue,
    squad_features,
    table_readers,
)
from adapter_bert.training import cluster
from adapter_bert.training import output_dir as run_directory
from adapter_tests.support import records
from house import Reader

_ROWS = 30
_LENGTH = 16


def all_readers():
    """List of `Reader`s."""
    return [
        *(_task(task) for task in glue.TASKS.values()),
        *(_layout(layout) for layout in custom_tasks.LAYOUTS.values()),
        *_custom(),
        *_squad(),
        *_reports(),
        Reader("TF_CONFIG", _tf_config, _read_tf_config, ("TF_CONFIG",)),
    ]


def _task(task):
    """A row of `glue.TASKS`."""
    stages = [stage for stage in ("train", "dev", "test") if task.splits_of(stage)]

    def valid():
        return {
            split.file.format(language=task.language): _split_content(task, split)
            for split in task.splits.values()
        }

    def read(folder):
        processor = glue.get_processor(task.name)
        for stage in stages:
            for split in processor.splits_of(stage, folder):
                _make_features(processor, split, folder)

    return Reader(task.name, valid, read)


def _make_features(processor, split, folder):
    examples = processor.get_examples(split, folder)
    labels = processor.get_labels()
    classifier_features.text_arrays(examples, labels, _LENGTH, house.tokenizer())


def _split_content(task, split):
    """A file that a `glue.Split` can be read from."""
    lines = ["\t".join(f"column {c}" for c in range(split.width))] if split.header else []
    for row in range(_ROWS):
        fields = [f"the dog {row} sees {column}" for column in range(split.width)]
        if split.label is not None:
            fields[split.label] = task.labels[row % len(task.labels)] if task.labels else "2.5"
        if split.language is not None:
            fields[split.language] = task.language
        lines.append("\t".join(fields))
    return ("\n".join(lines) + "\n").encode()


def _layout(layout):
    """A row of `custom_tasks.LAYOUTS`, as it is published."""
    labels = layout.labels or ("a", "b", "c")
    column = layout.label

    def valid():
        if layout.name == "newsgroups":
            texts = (
                f"{folder}/{label}/{i}"
                for folder in layout.files
                for label in labels
                for i in "12345"
            )
            return dict.fromkeys(texts, b"Subject: the dog\n\nsees a bird\n")
        separator = "\t" if layout.columns else ","
        names = layout.columns or (layout.text_a, column)
        lines = [] if layout.columns else [separator.join(names)]
        for row in range(_ROWS):
            fields = {layout.text_a: f"the dog {row}", column: labels[row % len(labels)]}
            lines.append(separator.join(fields.get(name, "x") for name in names))
        return {layout.files[0]: ("\n".join(lines) + "\n").encode()}

    def read(folder):
        processor = custom_tasks.TableProcessor(layout, folder)
        for split in ("train", "dev", "test"):
            _make_features(processor, split, folder)

    return Reader(layout.name, valid, read, (*layout.files, "--data_dir"))


def _custom():
    """Tables of one's own, of every kind and format."""
    found = []
    for kind, some in (
        ("classification", ["yes", "no"]),
        ("regression", ["0.5", "-3"]),
        ("multilabel", ["yes,no", ""]),
    ):
        for ending in ("tsv", "csv", "jsonl"):
            layout = custom_tasks.Layout("custom", "body", "label", "title", kind)
            valid = functools.partial(_table, ending, some)
            read = functools.partial(_read_custom, layout)
            names = ("train.", "dev.", "test.", "--data_dir")
            found.append(Reader(f"custom {kind} .{ending}", valid, read, names))
    return found


def _table(ending, labels):
    rows = [
        {"body": f"the dog {i}", "title": "a bird", "label": labels[i % 2]} for i in range(_ROWS)
    ]
    separator = "\t" if ending == "tsv" else ","
    lines = [separator.join(rows[0])]
    for row in rows:
        lines.append(
            separator.join(f'"{v}"' if "," in v and ending == "csv" else v for v in row.values())
        )
    if ending == "jsonl":
        lines = [json.dumps(row) for row in rows]
    content = ("\n".join(lines) + "\n").encode()
    return {f"{name}.{ending}": content for name in ("train", "dev", "test")}


def _read_custom(layout, folder):
    processor = custom_tasks.TableProcessor(layout, folder)
    for split in ("train", "dev", "test"):
        _make_features(processor, split, folder)


def _squad():
    """SQuAD's JSON, for training, prediction and scores, of both versions."""
    return [
        Reader(
            f"SQuAD {name}",
            functools.partial(_squad_file, version_2),
            functools.partial(read, version_2),
        )
        for name, version_2, read in (
            ("v1.1 training", False, _read_training),
            ("v2.0 training", True, _read_training),
            ("v1.1 prediction and scores", False, _read_dev),
            ("v2.0 prediction and scores", True, _read_dev),
        )
    ]


def _squad_file(version_2):
    context = "The big dog sees a small bird and hears the old cat . " * 2
    qas = [
        {
            "id": f"q{i}",
            "question": "What sees the dog ?",
            "answers": [{"text": "bird", "answer_start": 25}],
        }
        for i in range(4)
    ]
    if version_2:
        qas = [dict(qa, is_impossible=False) for qa in qas]
        qas[0].update(answers=[], is_impossible=True)
    paragraphs = [{"context": context, "qas": qas[i : i + 2]} for i in (0, 2)]
    data = {"version": "v2.0", "data": [{"title": "T", "paragraphs": paragraphs}]}
    return {"squad.json": json.dumps(data, indent=1).encode()}


def _read_training(version_2, folder):
    rows, _, _ = run_squad._rows(*_squad_flags("train", version_2, folder))
    rows.take([0])


def _read_dev(version_2, folder):
    values, _, *texts = given = _squad_flags("predict", version_2, folder)
    rows, _, digest = run_squad._rows(*given)
    reader = run_squad._Reader(values, *texts, digest, True)
    logits = dict.fromkeys(("start_logits", "end_logits"), np.zeros(_LENGTH))
    reader.scores(reader.answers([logits] * len(rows)))


def _squad_flags(stage, version_2, folder):
    """The arguments of run_squad's `_rows`."""
    values = house.flag_values(
        run_squad,
        f"--{stage}_file=" + os.path.join(folder, "squad.json"),
        f"--version_2_with_negative={version_2}",
        "--feature_cache_dir=none",
    )
    return values, stage == "train", house.tokenizer(), squad_features.Limits(_LENGTH, 4, 8)


def _reports():
    """What scripts wrote of trainings, searches and predictions, and grids of trainings."""
    return [
        Reader("sweep grid", _grid, _read_grid, ("--grid=", "is not set.")),
        Reader("results.jsonl", _records, _read_records, ("--records", "results.jsonl")),
        Reader("ablation.json", _ablation, _read_ablation, ("ablation.json",)),
        Reader("search.json", _search, _read_search, ("search.json",)),
        Reader("predictions.tsv and labels.tsv", _predictions, _compare),
        Reader("run_directory.json", _evaluations, _read_evaluations),
        Reader("table with columns .tsv", _plain_table, _read_plain_table),
    ]


def _grid():
    grid = {
        "common": {"task_name": ["MRPC", "CoLA"], "random_seed": [1, 2, 3]},
        "grids": [
            {"adapter_size": [8, 64], "learning_rate": [3e-4, 1e-3]},
            {"tuning": "full", "script": "run_squad.py", "train_file": "squad.json"},
        ],
    }
    return {"grid.json": json.dumps(grid).encode()}


def _read_grid(folder):
    settings = ("--set=learning_rate=1e-4", "--set=adapter_size=8,16")
    values = house.flag_values(run_sweep, "--grid=" + os.path.join(folder, "grid.json"), *settings)
    for trial in run_sweep._trials(values)[:50]:
        trial.command("output")
        trial.key("backbone")
        str(trial.task), str(trial.method)


def _records():
    found = [
        *records.seeds("CoLA", (0.1, 0.2), (0.1, 0.3), score="matthews", adapter_size=8),
        *records.seeds("MRPC", (0.7, 0.8), (0.7, 0.8), score="f1", adapter_size=64),
        *records.seeds("MRPC", (0.7, 0.8), (0.7, 0.8), score="f1", tuning="full"),
    ]
    lines = [json.dumps({**one, "key": str(i)}) for i, one in enumerate(found)]
    return {"results.jsonl": ("\n".join(lines) + "\n").encode()}


def _flags(**given):
    return house.flag_values(run_report, *(f"--{name}={value}" for name, value in given.items()))


def _read_records(folder):
    source = run_report._read_results(_flags(records=folder))
    for report in reports.REPORTS.values():
        report.make(source)


def _ablation():
    spans = [[i, j, 0.5 + 0.01 * (i + j)] for i in range(3) for j in range(i, 3)]
    found = {"task": "MRPC", "score": "accuracy", "num_layers": 3, "num_rows": 10}
    found.update({"all": 0.8, "none": 0.6, "majority": 0.6, "spans": spans})
    return {"ablation.json": json.dumps(found).encode()}


def _read_ablation(folder):
    source = run_report._read_results(_flags(ablations=os.path.join(folder, "ablation.json")))
    reports.REPORTS["figure6"].make(source)


def _search():
    settings = dataclasses.asdict(search_space.PRESETS["airline"])
    trials = [
        {"number": i, "score": 0.1 * i, "pruned": i == 2, "samples": 100, "seconds": 1.5}
        for i in range(5)
    ]
    found = {"task": "airline", "score": "eval_accuracy", "sampler": "tpe", "pruner": "none"}
    found["trials"] = [{**trial, "settings": settings} for trial in trials]
    return {"search.json": json.dumps(found).encode()}


def _read_search(folder):
    source = run_report._read_results(_flags(searches=os.path.join(folder, "search.json")))
    reports.REPORTS["searches"].make(source)


def _predictions():
    rows = [(i, "ab"[i % 2], 0.4, 0.6) for i in range(12)]
    header = "index\tlabel\ta\tb\n"
    predicted = header + "".join("\t".join(map(str, row)) + "\n" for row in rows)
    labels = "index\tlabel\n" + "".join(f"{row[0]}\ta\n" for row in rows)
    texts = {"first.tsv": predicted, "second.tsv": predicted, "labels.tsv": labels}
    return {name: text.encode() for name, text in texts.items()}


def _compare(folder):
    names = ("first.tsv", "second.tsv", "labels.tsv")
    paths = (os.path.join(folder, name) for name in names)
    significance.describe(significance.compare(*paths))


def _evaluations():
    scores = {"eval_f1": 0.5, "eval_accuracy": 0.6, "loss": 0.7, "global_step": 3}
    by_step = {str(step): {**scores, "global_step": step} for step in (3, 6, 9)}
    return {"run_directory.json": json.dumps(by_step).encode()}


def _read_evaluations(folder):
    found = run_directory.Evaluations(folder, "eval_f1")
    found.best(), found.since_best(), found.at(3)
    found.add(12, {"eval_f1": 0.7})
    found.best(), found.since_best()


def _plain_table():
    return {"table.tsv": b"a\tb\nthe dog\tthe cat\n1\t2\n"}


def _read_plain_table(folder):
    table_readers.read_table(os.path.join(folder, "table.tsv"))
    table_readers.read_rows(os.path.join(folder, "table.tsv"), quotechar='"')


def _tf_config():
    cluster_of = {"chief": ["a:1234"], "worker": ["b:1", "c:2"]}
    config = {"cluster": cluster_of, "task": {"type": "worker", "index": 1}}
    return {"TF_CONFIG.json": json.dumps(config).encode()}


def _read_tf_config(folder):
    path = os.path.join(folder, "TF_CONFIG.json")
    content = b""
    if os.path.isfile(path):
        with open(path, "rb") as reader:
            content = reader.read()
    os.environ[cluster.VARIABLE] = content.replace(b"\0", b"").decode("utf-8", "surrogateescape")
    try:
        cluster.from_environment()
    finally:
        os.environ.pop(cluster.VARIABLE, None)
