"""Many trainings: grids, sweeps, records, and the paper's tables and figures."""
