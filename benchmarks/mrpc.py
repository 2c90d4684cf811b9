"""Reads MRPC as GLUE holds it; runs in every contestant's environment."""

import csv
import os


def read(glue_dir, split):
    """The rows of a split in the file's order: list of (sentence, sentence, label)."""
    path = os.path.join(glue_dir, "MRPC", split + ".tsv")
    with open(path, encoding="utf-8-sig", newline="") as reader:
        rows = csv.reader(reader, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [(row[3], row[4], 0 if split == "test" else int(row[0])) for row in rows]
