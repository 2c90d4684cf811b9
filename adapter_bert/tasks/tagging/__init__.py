"""Tagging: a label for each word."""
