"""A run: its flags, its Estimator, its output folder and its input."""
