"""Reads GLUE's MRPC, and gives our script's flags; needs only Python."""

import csv
import os


def flags(glue_dir, bert_dir):
    """Returns the flags of run_classifier.py for MRPC and for the BERT in a folder."""
    return [
        "--task_name=MRPC",
        f"--data_dir={os.path.join(glue_dir, 'MRPC')}",
        f"--bert_config_file={os.path.join(bert_dir, 'bert_config.json')}",
        f"--vocab_file={os.path.join(bert_dir, 'vocab.txt')}",
        f"--init_checkpoint={os.path.join(bert_dir, 'bert_model.ckpt')}",
        "--feature_cache_dir=none",  # Each run tokenizes, as the peers do.
    ]


def read(glue_dir, split):
    """Returns a split's rows in the file's order, a list of (sentence, sentence, label)."""
    path = os.path.join(glue_dir, "MRPC", split + ".tsv")
    with open(path, encoding="utf-8-sig", newline="") as reader:
        rows = csv.reader(reader, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [(row[3], row[4], 0 if split == "test" else int(row[0])) for row in rows]
