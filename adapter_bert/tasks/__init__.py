"""Tasks: their data, what BERT reads of it, heads, predictions and scores."""
