"""Estimates with standard errors, their combinations, and verdicts by confidence intervals."""

import math
from typing import Any, Collection, List, NamedTuple, Optional, Tuple

import scipy.special


class Estimate(NamedTuple):
    """A score or a difference in points.

    Attributes:
      sem: its standard error; None if a score has one seed only.
      freedom: the degrees of freedom of the standard error; inf if that is exact.
    """

    points: float
    sem: Optional[float] = 0.0
    freedom: float = math.inf

    def __str__(self) -> str:
        text = f"{self.points:+.1f}".replace("-", "−")
        is_exact = self.sem == 0 and math.isinf(self.freedom)
        error = "" if self.sem is None or is_exact else f" ± {self.sem:.1f}"
        return ("0.0" if text in ("+0.0", "−0.0") else text) + error

    def interval(self, count: int = 1) -> Tuple[float, float]:
        """Returns the 95% confidence interval (Student's t), infinite without a standard error.

        With Bonferroni's correction for the intervals of `count` estimates.
        """
        if self.sem is None:
            return -math.inf, math.inf
        half = self.sem and self.sem * float(
            scipy.special.stdtrit(min(self.freedom, 1e6), 1 - 0.025 / count)  # No inf.
        )
        return self.points - half, self.points + half


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
        corrected = [one.interval(len(estimates)) for one in estimates]
        if any(lower > self.high or upper < self.low for lower, upper in corrected):
            return "differs"
        low, high = self.low - self.tolerance, self.high + self.tolerance
        ends = [one.interval() for one in estimates]
        is_inside = all(low <= lower and upper <= high for lower, upper in ends)
        return "agrees" if is_inside else "unclear"


def combine(*terms: Tuple[float, Any]) -> Estimate:
    """Returns the weighted sum of independent scores.

    The degrees of freedom are those of Welch and Satterthwaite.

    Args:
      terms: pairs of a weight and an `Estimate` or a `Cell`.
    """
    points = float(sum(weight * term.points for weight, term in terms))
    variances: List[float] = []
    for weight, term in terms:
        if term.sem is None:
            return Estimate(points, None, 0)
        variances.append((weight * term.sem) ** 2)
    parts = sum(v**2 / term.freedom for v, (_, term) in zip(variances, terms) if v)
    freedoms = [term.freedom for _, term in terms]
    freedom = sum(variances) ** 2 / parts if parts else min(freedoms, default=math.inf)
    return Estimate(points, math.sqrt(sum(variances)), freedom)
