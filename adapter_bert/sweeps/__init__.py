"""Many trainings: grids, sweeps, their records, and the selection of the best."""
