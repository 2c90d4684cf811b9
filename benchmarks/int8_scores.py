"""Measures the dev scores of trained task adapters in float32 and in int8.

    python benchmarks/int8_scores.py --glue_dir=... --mrpc=output/mrpc/adapter --cola=... \\
        --squad=... --squad_file=... --conll=... --conll_file=...

A `Predictor` of each precision answers the whole dev set.
"""

import os

import harness  # First: it makes the project's modules importable.

# isort: split
import numpy as np

from adapter_bert import Predictor
from adapter_bert.serving.inference.onnx_runtime import onnxruntime
from adapter_bert.tasks.squad import squad_data, squad_scores
from adapter_bert.tasks.tagging import tag_schemes, tagging_data, tagging_scores
from adapter_bert.tasks.text import glue, text_kind

_GLUE = {"MRPC": "f1", "CoLA": "matthews", "STS-B": "spearman", "SST-2": "accuracy"}


def glue_score(predictor, task, glue_dir):
    """Returns the task's score on its dev set."""
    examples = glue.get_processor(task).get_dev_examples(os.path.join(glue_dir, task))
    texts = [tuple(t for t in (e.text_a, e.text_b) if t is not None) for e in examples]
    answers, labels = predictor(texts), predictor.description.labels
    if labels:
        found = [labels.index(answer["label"]) for answer in answers]
        expected = [labels.index(example.label) for example in examples]
    else:
        found, expected = answers, [float(example.label) for example in examples]
    kind = text_kind.get(predictor.description.kind)
    return kind.scores(np.array(expected), np.array(found), len(labels))[_GLUE[task]]


def squad_f1(predictor, path):
    """Returns the F1 on SQuAD 1.1."""
    examples = squad_data.read_squad_examples(path, False)
    answers = predictor([(e.question_text, " ".join(e.doc_tokens)) for e in examples])
    found = {example.qas_id: answer["answer"] for example, answer in zip(examples, answers)}
    return squad_scores.scores_v1(squad_data.answer_texts(path), found)["f1"] / 100


def conll_f1(predictor, path):
    """Returns the F1 of entities."""
    sentences = tagging_data.read(path).sentences
    answers = predictor([{"tokens": list(sentence.words)} for sentence in sentences])
    expected = [tag_schemes.to_iob2(sentence.tags) for sentence in sentences]
    return tagging_scores.scores(expected, [answer["tags"] for answer in answers], True)["f1"]


def main():
    parser = harness.arguments(__doc__, peers=False, repeats=False)
    harness.data_arguments(parser)
    names = [*_GLUE, "SQuAD", "CoNLL"]
    for name in names:
        flag = name.replace("-", "").lower()
        parser.add_argument("--" + flag, help=f"folder of {name}'s task adapter")
    for flag in ("squad_file", "conll_file"):
        parser.add_argument("--" + flag, help="the dev set")
    values = harness.parse(parser, needs_mrpc=False)
    rows = []
    for name in names:
        folder = getattr(values, name.replace("-", "").lower())
        if not folder:
            continue
        if name in _GLUE:
            harness.check_folder(parser, "glue_dir", values.glue_dir, name)
        scores = {}
        for precision in ("float32", "int8"):
            predictor = Predictor(folder, values.bert_dir, precision=precision)
            if name in _GLUE:
                scores[precision] = glue_score(predictor, name, values.glue_dir)
            elif name == "SQuAD":
                scores[precision] = squad_f1(predictor, values.squad_file)
            else:
                scores[precision] = conll_f1(predictor, values.conll_file)
            harness.log(f"{name}, {precision}: {scores[precision]:.4f}")
        exact, rounded = (100 * score for score in scores.values())
        rows.append([name, f"{exact:.1f}", f"{rounded:.1f}", f"{rounded - exact:+.1f}"])
    lines = harness.table(["dev score", "float32", "int8", "difference"], rows)
    how = "Once: the scores of one adapter a task."
    title = "What int8 costs: dev scores of MiniLM's task adapters"
    versions = ["ONNX Runtime " + onnxruntime.__version__]
    harness.publish(values, "int8_scores", title, lines, versions, how)


if __name__ == "__main__":
    main()
