"""Measures SQuAD's conversion from JSON to features on disk, on one core: speed and memory.

    python benchmarks/squad_reading.py --squad_file=train.json

Compares ours with BERT's way, which tokenizes a paragraph for each of its questions, character by
character, and writes every row with padding.
"""

import os

import harness
from harness import Target

_OURS = "ours"
_PLAIN = "BERT's way"
_TARGETS = [Target(_PLAIN, 1 / 8)]


def describe(timings):
    """Returns Markdown lines: rates, memory beyond the imports', and size on disk."""
    header = ["contestant", "questions/s", "memory above the imports", "on disk"]
    rows = [
        [
            timing.name,
            f"{timing.facts['questions'] / timing.median:,.0f}",
            f"{timing.facts['memory'] / 1e6:.0f} MB",
            f"{timing.facts['bytes'] / 1e6:.1f} MB",
        ]
        for timing in timings
    ]
    facts = timings[0].facts
    corpus = f"{facts['questions']:,} questions, {facts['rows']:,} windows of 384 WordPieces."
    return [corpus, "", *harness.table(header, rows)]


def main():
    parser = harness.arguments(__doc__, peers=False)
    harness.bert_argument(parser)
    parser.add_argument("--squad_file", required=True, help="SQuAD's JSON, with one answer each")
    values = harness.parse(parser)
    common = [
        "--squad_file=" + values.squad_file,
        "--vocab_file=" + os.path.join(values.bert_dir, "vocab.txt"),
    ]
    contestants = [
        harness.project_script(name, "squad_worker.py", "--way=" + way, *common)
        for name, way in ((_OURS, "ours"), (_PLAIN, "plain"))
    ]
    timings = harness.take_turns(contestants, values.repeats)
    lines = describe(timings) + ["", *harness.compare(timings, _OURS)]
    lines += ["", *harness.judge(timings, _OURS, _TARGETS)]
    versions = harness.versions_of(timings)
    harness.publish(values, "squad_features", "SQuAD's features", lines, versions)


if __name__ == "__main__":
    main()
