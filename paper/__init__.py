"""The experiments of Houlsby et al. 2019: presets, tables, figures, claims and the baseline."""
