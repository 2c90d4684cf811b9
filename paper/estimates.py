"""Estimates with standard errors, their combinations, and verdicts by confidence intervals."""

import math
from typing import Collection, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import scipy.special

from adapter_bert.sweeps import selection


class Estimate(NamedTuple):
    """A score or a difference in points.

    Attributes:
      sem: its standard error; None if a score has one seed only.
      freedom: the degrees of freedom of the standard error; inf if that is exact.
    """

    value: float
    sem: Optional[float] = 0.0
    freedom: float = math.inf

    def __str__(self) -> str:
        is_exact = self.sem == 0 and math.isinf(self.freedom)
        return signed(self.value) + ("" if self.sem is None or is_exact else f" ± {self.sem:.1f}")

    def minus(self, other: "Estimate") -> "Estimate":
        """Returns the difference from an independent estimate."""
        return combine((1, self), (-1, other))

    @property
    def gap(self) -> str:
        """Why a score over seeds has no usable standard error; "" if it has one."""
        if self.sem is None:
            return "one seed"
        return "two equal scores" if self.freedom == 1 and self.sem < 1e-6 else ""

    def interval(self, count: int = 1) -> Tuple[float, float]:
        """Returns the 95% confidence interval (Student's t), infinite without a standard error.

        With Bonferroni's correction for the intervals of `count` estimates.
        """
        if self.sem is None:
            return -math.inf, math.inf
        half = self.sem and self.sem * float(
            scipy.special.stdtrit(min(self.freedom, 1e6), 1 - 0.025 / count)  # No inf.
        )
        return self.value - half, self.value + half


class Condition(NamedTuple):
    """Requires of each estimate that it is between `low` and `high`.

    Attributes:
      text: the condition in words.
      tolerance: by how much the confidence interval of an estimate that agrees may pass them.
    """

    text: str
    low: float = -math.inf
    high: float = math.inf
    tolerance: float = 0.0

    def verdict(self, estimates: Collection[Estimate]) -> str:
        """Returns "agrees", "differs" or "unclear".

        It differs if the interval of an estimate, corrected for their number, is outside. It agrees
        if all intervals, extended by the tolerance, are inside.
        """
        for one in estimates:
            lower, upper = one.interval(len(estimates))
            if lower > self.high or upper < self.low:
                return "differs"
        ends = [one.interval() for one in estimates]
        is_inside = all(
            self.low - self.tolerance <= lower and upper <= self.high + self.tolerance
            for lower, upper in ends
        )
        return "agrees" if is_inside else "unclear"


def over_seeds(values: Sequence[float]) -> Estimate:
    """Returns the mean over seeds."""
    return Estimate(float(np.mean(values)), selection.standard_error(values), len(values) - 1)


def combine(*terms: Tuple[float, Estimate]) -> Estimate:
    """Returns the weighted sum of independent estimates; `terms` are pairs (weight, estimate).

    The degrees of freedom are those of Welch and Satterthwaite.
    """
    value = float(sum(weight * term.value for weight, term in terms))
    variances: List[float] = []
    for weight, term in terms:
        if term.sem is None:
            return Estimate(value, None, 0)
        variances.append((weight * term.sem) ** 2)
    parts = sum(v**2 / term.freedom for v, (_, term) in zip(variances, terms) if v)
    freedom = sum(variances) ** 2 / parts if parts else min(term.freedom for _, term in terms)
    return Estimate(value, math.sqrt(sum(variances)), freedom)


def mean(estimates: Collection[Estimate]) -> Estimate:
    """Returns the mean of independent estimates."""
    return combine(*((1 / len(estimates), one) for one in estimates))


def signed(value: float) -> str:
    """Returns a number with its sign, "−0.4"; 0 has none."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")
