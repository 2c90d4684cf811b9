"""The scores of a training's evaluated steps."""

import math
import posixpath
from typing import Any, Dict, Optional

import numpy as np

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError

FILE = "evaluations.json"  # In output_dir.


class Evaluations:
    """The scores of evaluated steps.

    Args:
      folder: output_dir.
      score: name of the score, the higher the better, that defines the best step.

    Attributes:
      by_step: step → scores.

    Raises:
      UserError: the folder's file of scores is damaged.
    """

    def __init__(self, folder: str, score: str):
        self._path = posixpath.join(folder, FILE)
        self._score = score
        self.by_step: Dict[int, Dict[str, Any]] = {}
        if gfile.exists(self._path):
            self.by_step = self._read()

    def _read(self) -> Dict[int, Dict[str, Any]]:
        scores_by_step = json_objects.read_object(self._path)
        try:
            for scores in scores_by_step.values():
                json_objects.require_type(scores[self._score], float)
            return {int(step): scores for step, scores in scores_by_step.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self._path}: expected scores by step, each with {self._score} ({error})."
            ) from error

    def at(self, step: int) -> Optional[Dict[str, Any]]:
        """Returns a step's scores, None if it was not evaluated."""
        return self.by_step.get(step)

    def add(self, step: int, scores: Dict[str, Any]) -> None:
        """Records the numbers among a step's scores; the file is written atomically."""
        self.by_step[step] = scalars(scores)
        json_objects.write_object(self._path, {str(s): v for s, v in self.by_step.items()})

    def best(self) -> float:
        """Returns the best score, -inf before the first."""
        return max((scores[self._score] for scores in self.by_step.values()), default=-math.inf)

    def since_best(self) -> int:
        """Returns the number of evaluations since the first with the best score."""
        best = self.best()
        scores = [self.by_step[step][self._score] for step in sorted(self.by_step)]
        return len(scores) - 1 - scores.index(best) if scores else 0


def scalars(scores: Dict[str, Any], prefix: str = "") -> Dict[str, float]:
    """Returns the single numbers among a dict's values, as floats.

    Args:
      scores: dict.
      prefix: selects the names that begin with it; it is removed from them.
    """
    scalar_types = (int, float, np.number)
    return {
        name[len(prefix) :]: float(value)
        for name, value in scores.items()
        if isinstance(value, scalar_types) and name.startswith(prefix)
    }
