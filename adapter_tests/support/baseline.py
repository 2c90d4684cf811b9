"""Settings of a small model without BERT."""

from adapter_bert.paper.baseline.search_space import TrialSettings

SPACE = TrialSettings(
    *("tiny", False, False, False),
    *(False, "tanh", False, 3, 0.0, 50, 0.0),
    *(2, 64, "leaky_relu", "none", 0.0),
    *(0.1, 0.001, 0.05, 0.01, 100_000),
)
