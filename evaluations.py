"""Dev scores: those of a training's checkpoints, which outlive a kill, and those of the result."""

import math
import posixpath

import numpy as np

import files
from errors import UserError

FILE = "evaluations.json"


class Evaluations:
    """What was scored at which step.

    Args:
      folder: output_dir.
      score: name of the score, the larger the better, that tells what is best.

    Raises:
      UserError: the file there is damaged.
    """

    def __init__(self, folder, score):
        self._path = posixpath.join(folder, FILE)
        self._score = score
        self._by_step = {}
        if files.exists(self._path):
            self._by_step = self._read()

    def _read(self):
        found = files.read_object(self._path)
        try:
            for scores in found.values():
                files.checked(scores[self._score], float)
            return {int(step): scores for step, scores in found.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self._path}: expected scores by step, each with {self._score} ({error})."
            ) from error

    def at(self, step):
        """A step's scores, None if it was not evaluated."""
        return self._by_step.get(step)

    def add(self, step, scores):
        """Records a step's scores (JSON values); the file is written whole or not at all."""
        self._by_step[step] = scores
        files.write_object(self._path, self._by_step)

    def best(self):
        """The best score, -inf before the first."""
        return max((scores[self._score] for scores in self._by_step.values()), default=-math.inf)

    def since_best(self):
        """How many evaluations have come after the first with the best score."""
        best = self.best()
        scores = [self._by_step[step][self._score] for step in sorted(self._by_step)]
        return len(scores) - 1 - scores.index(best) if scores else 0


def write_results(folder, result, about):
    """Writes eval_results.txt, BERT's, and eval_results.json, which has all there is.

    Args:
      folder: path.
      result: dict from names to numbers, lists and texts.
      about: dict, what else the latter tells.

    Returns:
      The path of eval_results.txt.
    """
    path = posixpath.join(folder, "eval_results.txt")
    lines = [f"{key} = {str(result[key])}\n" for key in sorted(result) if np.ndim(result[key]) == 0]
    files.write_atomically(path, "".join(lines))
    files.write_object(posixpath.join(folder, "eval_results.json"), {**about, **result})
    return path
