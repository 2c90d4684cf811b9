"""The paper's baseline without BERT: a search over models on text embeddings."""
