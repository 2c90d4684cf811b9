"""The paper's baseline without BERT: a search over models of text embeddings."""
