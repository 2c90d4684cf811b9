"""Contestants: tokenizers, on all texts of a file, on one core."""

import argparse
import hashlib
import importlib
import json
import os
import sys

import plain_tokenizer
import worker


def ours(vocab_file):
    """Returns this project's function from texts to their tokens."""
    import tokenization

    importlib.reload(tokenization)  # Empties its caches.
    tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case=True)
    return lambda texts: [tokenizer.tokenize(text) for text in texts]


def plain(vocab_file):
    """Returns the original's function, character by character."""
    vocab = plain_tokenizer.load_vocab(vocab_file)
    return lambda texts: [plain_tokenizer.tokenize(text, vocab) for text in texts]


def single(vocab_file):
    """Returns HuggingFace's function, one text at a time."""
    tokenizer = _huggingface(vocab_file)
    return lambda texts: [tokenizer.encode(text, add_special_tokens=False).tokens for text in texts]


def batched(vocab_file):
    """Returns HuggingFace's function, all texts at once."""
    tokenizer = _huggingface(vocab_file)
    return lambda texts: [
        encoding.tokens for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)
    ]


def _huggingface(vocab_file):
    import tokenizers

    return tokenizers.BertWordPieceTokenizer(vocab_file, lowercase=True)


_TOKENIZERS = {function.__name__: function for function in (ours, plain, single, batched)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", choices=sorted(_TOKENIZERS), required=True)
    parser.add_argument("--texts", required=True, help="JSON file: a list of strings")
    parser.add_argument("--vocab_file", required=True)
    parser.add_argument("--all_cores", action="store_true")
    arguments = parser.parse_args()
    if not arguments.all_cores:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    with open(arguments.texts, encoding="utf-8") as reader:
        texts = json.load(reader)
    build = _TOKENIZERS[arguments.tokenizer]
    state = {}

    def prepare():
        state["tokenize"] = build(arguments.vocab_file)

    prepare()
    tokens = state["tokenize"](texts)
    facts = {
        "version": "Python " + sys.version.split()[0],
        "pieces": sum(map(len, tokens)),
        "digests": [hashlib.sha1(" ".join(row).encode()).hexdigest()[:8] for row in tokens],
    }
    worker.serve(lambda: state["tokenize"](texts), facts=facts, prepare=prepare)


if __name__ == "__main__":
    main()
