"""A run: flags, Estimator, output folder and input pipeline."""
