"""Task adapters and pretrained weights, read and written in each format."""
