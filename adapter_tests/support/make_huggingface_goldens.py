"""Writes support/huggingface_goldens/: BERTs and outputs of the package `transformers`, for tests.

    python adapter_tests/support/make_huggingface_goldens.py  # with transformers and torch

Each folder holds a tiny BERT with large random weights and its tokenizer as `save_pretrained` wrote
them, and `outputs.npz`: for `texts`, the ids of the tokens, and the model's hidden states and
pooled output.
"""

import os
import shutil

import numpy as np
import torch
from transformers import BertConfig, BertModel, BertTokenizer

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "huggingface_goldens")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "sees", "a", "cat", "##s", "."]
TEXTS = ["The dogs see a cat.", "The cat sees the dog ."]

# Folder → (words that follow `WORDS`, whether texts are lower-cased, activation, size of a shard,
# whether a vocab.txt is added to tokenizer.json).
CASES = {
    "uncased": (["see", "cats"], True, "gelu", "1MB", True),
    "cased_sharded": (["The", "Dog", "A", "Cat", "see"], False, "gelu_new", "4KB", True),
    "cased_tokenizer_json": (["The", "Dog", "A", "Cat"], False, "gelu", "1MB", False),
}


def write(name, words, lower_case, hidden_act, shard_size, has_vocab_file):
    """Writes one folder."""
    folder = os.path.join(FOLDER, name)
    os.makedirs(folder)
    words = WORDS + words
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_act=hidden_act,
        max_position_embeddings=16,
    )
    model = BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # Large, so that the forms of GELU differ.
            parameter.add_(0.7 * torch.randn_like(parameter))
    model.save_pretrained(folder, max_shard_size=shard_size)
    vocab_file = os.path.join(folder, "vocab.txt")
    with open(vocab_file, "w") as writer:
        writer.write("".join(f"{word}\n" for word in words))
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = BertTokenizer(vocab=vocab, do_lower_case=lower_case)
    tokenizer.save_pretrained(folder)
    if not has_vocab_file:
        os.remove(vocab_file)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
    np.savez_compressed(
        os.path.join(folder, "outputs.npz"),
        texts=TEXTS,
        input_ids=inputs["input_ids"].numpy(),
        input_mask=inputs["attention_mask"].numpy(),
        hidden_states=torch.stack(outputs.hidden_states).numpy(),
        pooled=outputs.pooler_output.numpy(),
    )


def main():
    """Writes all folders."""
    torch.manual_seed(0)
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, case in CASES.items():
        write(name, *case)


if __name__ == "__main__":
    main()
