"""Kinds of tasks: data, features, heads, predictions and scores."""
