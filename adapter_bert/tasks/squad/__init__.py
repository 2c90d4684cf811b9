"""Question answering in SQuAD's format."""
