"""Measures tokenizing MRPC's sentences and SQuAD's paragraphs and questions, on one core.

    python benchmarks/tokenizing.py --glue_dir=... --squad_file=train.json [--squad_file=...]

Compares ours, the original's way (character by character) and HuggingFace's tokenizers.
"""

import json
import os
import sys
import tempfile

import harness
import mrpc
from harness import Target

_OURS = "ours"
_PLAIN = "character by character, as the original"
_TARGETS = [Target(_PLAIN, 0.2)]


def texts_of(glue_dir, squad_files):
    """Returns all sentences, paragraphs and questions in order, a list of str."""
    texts = []
    for split in ("train", "dev", "test"):
        texts += [sentence for row in mrpc.read(glue_dir, split) for sentence in row[:2]]
    for path in squad_files:
        with open(path, encoding="utf-8") as reader:
            articles = json.load(reader)["data"]
        for paragraph in (p for article in articles for p in article["paragraphs"]):
            texts.append(paragraph["context"])
            texts += [question["question"] for question in paragraph["qas"]]
    return texts


def contestants(peers, texts_file, vocab_file):
    common = ["--texts=" + texts_file, "--vocab_file=" + vocab_file]

    def row(name, python, tokenizer, *options):
        options = ["--tokenizer=" + tokenizer, *common, *options]
        return harness.peer(name, python, "tokenizer_worker.py", *options)

    return [
        row(_OURS, sys.executable, "ours"),
        row(_PLAIN, sys.executable, "plain"),
        row("HuggingFace tokenizers, one by one", peers, "single"),
        row("HuggingFace tokenizers, batched", peers, "batched"),
        row("HuggingFace tokenizers, batched, all cores", peers, "batched", "--all_cores"),
    ]


def describe(timings, num_texts):
    """Returns Markdown lines: rates, and whether the tokens are equal."""
    ours = timings[0]
    header = ["contestant", "WordPieces/s", "ours is faster by", "texts with other tokens"]
    rows = []
    for timing in timings:
        differing = sum(a != b for a, b in zip(timing.facts["digests"], ours.facts["digests"]))
        rate = timing.facts["pieces"] / timing.median
        ratio = timing.median / ours.median
        rows.append([timing.name, f"{rate:,.0f}", f"{ratio:.2f}×", str(differing)])
    corpus = f"{num_texts:,} texts, {ours.facts['pieces']:,} WordPieces."
    return [corpus, "", *harness.table(header, rows)]


def main():
    parser = harness.arguments(__doc__)
    harness.data_arguments(parser)
    parser.add_argument(
        "--squad_file", action="append", required=True, help="SQuAD's JSON; may be given again"
    )
    values = harness.parse(parser)
    texts = texts_of(values.glue_dir, values.squad_file)
    with tempfile.TemporaryDirectory() as folder:
        texts_file = os.path.join(folder, "texts.json")
        with open(texts_file, "w", encoding="utf-8") as writer:
            json.dump(texts, writer)
        vocab_file = os.path.join(values.bert_dir, "vocab.txt")
        timings = harness.take_turns(
            contestants(values.peers, texts_file, vocab_file), values.repeats
        )
    lines = describe(timings, len(texts)) + ["", *harness.compare(timings, _OURS)]
    lines += ["", *harness.judge(timings, _OURS, _TARGETS)]
    title = "Tokenizing MRPC and SQuAD on one core"
    harness.publish(values, "tokenizing", title, lines, harness.versions_of(timings))


if __name__ == "__main__":
    main()
