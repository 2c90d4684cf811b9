"""Readers and writers of task adapters and pretrained weights, one module per format."""
