"""Questions in SQuAD's format, hand-made or from the shared folder."""

import gzip
import json
import os

import tokenization
from adapter_tests.support.shared import SHARED

CONTEXT = "The cat sat on  the\u202fmat. It slept."


def question(qas_id="q1", text="Who sat?", answers=(("cat", 4),), **fields):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": qas_id, "question": text, "answers": answers, **fields}


def squad(*questions, context=CONTEXT):
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def squad_golden(version):
    """Returns (the original's results, its input, the input's path) from the shared folder."""
    prefix = os.path.join(SHARED, "goldens", f"squad_v{version}_public")
    with gzip.open(prefix + ".json.gz") as reader:
        golden = json.loads(reader.read().decode("utf-8"))
    path = prefix + "_input.json"
    with open(path, encoding="utf-8") as reader:
        return golden, json.load(reader), path


def minilm_tokenizer():
    folder = os.path.join(SHARED, "checkpoints", "minilm-l6-uncased")
    return tokenization.FullTokenizer(os.path.join(folder, "vocab.txt"))
