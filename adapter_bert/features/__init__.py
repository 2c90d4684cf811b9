"""The vectors of BERT's layers that extract_features.py writes."""
