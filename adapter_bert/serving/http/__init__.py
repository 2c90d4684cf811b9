"""The server: registry of tasks, requests, limits, metrics."""
