"""Estimates with standard errors, their combinations, and verdicts by confidence intervals."""

import math
from typing import Callable, Collection, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import scipy.stats

from adapter_bert.paper import report_tables
from adapter_bert.sweeps import selection


class Estimate(NamedTuple):
    """A score or a difference in points.

    Attributes:
      sem: its standard error; None if a score has one seed only.
      freedom: the degrees of freedom of the standard error.
    """

    value: float
    sem: Optional[float]
    freedom: float

    def __str__(self) -> str:
        return signed(self.value) + report_tables.format_error(self.sem)

    def minus(self, other: "Estimate") -> "Estimate":
        """Returns the difference from an independent estimate."""
        return combine((1, self), (-1, other))

    @property
    def gap(self) -> str:
        """Why a score over seeds has no usable standard error; "" if it has one."""
        if self.sem is None:
            return "one seed"
        return "two equal scores" if self.freedom == 1 and self.sem < 1e-6 else ""

    def moved(self, end: int, count: int = 1) -> float:
        """Returns an end of the 95% confidence interval: the lower for -1, the upper for 1.

        With Bonferroni's correction for the intervals of `count` estimates.
        """
        if not self.sem:
            return self.value
        return self.value + end * self.sem * float(
            scipy.stats.t.ppf(1 - 0.025 / count, self.freedom)
        )


NOTHING = Estimate(0.0, 0.0, 0)  # The difference of a score from itself.


def over_seeds(values: Sequence[float]) -> Estimate:
    """Returns the mean over seeds."""
    return Estimate(float(np.mean(values)), selection.standard_error(values), len(values) - 1)


def combine(*terms: Tuple[float, Estimate]) -> Estimate:
    """Returns the weighted sum of independent estimates; `terms` are pairs (weight, estimate).

    The degrees of freedom are those of Welch and Satterthwaite.
    """
    value = float(sum(weight * term.value for weight, term in terms))
    variances = [(weight * term.sem) ** 2 for weight, term in terms if term.sem is not None]
    if len(variances) < len(terms):
        return Estimate(value, None, 0)
    parts = sum(v**2 / term.freedom for v, (_, term) in zip(variances, terms) if v)
    return Estimate(value, math.sqrt(sum(variances)), sum(variances) ** 2 / parts if parts else 0)


def mean(estimates: Collection[Estimate]) -> Estimate:
    """Returns the mean of estimates."""
    return combine(*((1 / len(estimates), one) for one in estimates))


def verdict(agrees: Callable[[int], bool]) -> str:
    """Returns "agrees" or "differs", or "unclear" if that depends on the confidence interval.

    Args:
      agrees: called with -1, 0 and 1 for the lower end, the estimate and the upper end.
    """
    answers = {agrees(end) for end in (-1, 0, 1)}
    return "unclear" if len(answers) > 1 else "agrees" if answers.pop() else "differs"


def all_moved(estimates: Collection[Estimate], end: int, favorable: int) -> List[float]:
    """Returns all estimates' ends of the confidence intervals, for a claim about each of them.

    One estimate beyond the limit is enough to differ, so Bonferroni's correction applies.

    Args:
      end: see `verdict`.
      favorable: the end where the claim holds most easily; if it fails there, it differs.
    """
    count = len(estimates) if end == favorable else 1
    return [one.moved(end, count) for one in estimates]


def at_most(estimates: Collection[Estimate], limit: float) -> str:
    """Returns the `verdict` that all estimates are at most a limit."""
    return verdict(lambda end: max(all_moved(estimates, end, -1)) <= limit)


def below_zero(estimates: Collection[Estimate]) -> str:
    """Returns the `verdict` that all estimates are negative."""
    return verdict(lambda end: max(all_moved(estimates, end, -1)) < 0)


def at_least(estimates: Collection[Estimate], limit: float) -> str:
    """Returns the `verdict` that all estimates are at least a limit."""
    return verdict(lambda end: min(all_moved(estimates, end, 1)) >= limit)


def joint(*verdicts: str) -> str:
    """Returns the verdict on a claim that has several conditions."""
    return next((word for word in ("differs", "unclear") if word in verdicts), "agrees")


def signed(value: float) -> str:
    """Returns a number with its sign, "−0.4"; 0 has none."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")
