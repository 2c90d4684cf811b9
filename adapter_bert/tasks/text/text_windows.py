"""Splits long texts into windows, and pools the predictions of a text's windows.

Axes: W windows of all texts, N texts.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.shell.errors import UserError

LONG_TEXTS = {"cut": "truncate", "windows": "read all, in windows"}
POOLINGS = ("mean", "max")

Tokens = List[Any]


def divide(tokens_a: Tokens, tokens_b: Tokens, room: int) -> List[Tuple[Tokens, Tokens]]:
    """Returns the windows of a text or pair; the text itself if it fits.

    The windows cover the longer text. They are as few as possible, evenly spaced and all full. The
    shorter text is in each of them; it is truncated to half of the room.

    Args:
      tokens_a, tokens_b: lists of tokens; tokens_b is empty for a single text.
      room: length of a window in tokens, without special tokens.
    """
    if len(tokens_a) + len(tokens_b) <= room:
        return [(tokens_a, tokens_b)]
    is_a_longer = len(tokens_a) >= len(tokens_b)
    longer, shorter = (tokens_a, tokens_b) if is_a_longer else (tokens_b, tokens_a)
    shorter = shorter[: room // 2]
    size = room - len(shorter)
    count = -(-len(longer) // size)
    starts = [index * (len(longer) - size) // max(count - 1, 1) for index in range(count)]
    parts = [longer[start : start + size] for start in starts]
    return [(part, shorter) if is_a_longer else (shorter, part) for part in parts]


class Windows(NamedTuple):
    """The assignment of windows to texts, and the pooling of their predictions.

    Attributes:
      first_rows: int array [N], index of each text's first window; its others follow.
      pooling: one of `POOLINGS`.
    """

    first_rows: np.ndarray
    pooling: str

    def join(self, predictions: Dict[str, Any], is_single_label: bool) -> Dict[str, np.ndarray]:
        """Returns the predictions of texts, pooled over their windows.

        Maxima of single-label probabilities are normalized to a sum of 1. The loss is always the
        mean over windows.

        Args:
          predictions: arrays [W, ...] by name, as in `classifier_results`.
          is_single_label: whether each text has exactly one label.
        """
        joined = {name: self._join(name, np.asarray(each)) for name, each in predictions.items()}
        if self.pooling == "max" and is_single_label:
            probabilities = joined["probabilities"]
            sums = probabilities.sum(-1, keepdims=True)
            several = self._counts(probabilities, len(predictions["probabilities"])) > 1
            joined["probabilities"] = np.where(several, probabilities / sums, probabilities)
        return joined

    def _join(self, name: str, values: np.ndarray) -> np.ndarray:
        if self.pooling == "max" and name != "loss":
            return np.maximum.reduceat(values, self.first_rows)
        sums = np.add.reduceat(values, self.first_rows)
        return sums / self._counts(sums, len(values)).astype(values.dtype)

    def _counts(self, values: np.ndarray, num_rows: int) -> np.ndarray:
        """Returns each text's number of windows, [N, 1, ...] with as many axes as `values`."""
        counts = np.diff([*self.first_rows, num_rows])
        return counts.reshape(-1, *[1] * (values.ndim - 1))


def recorded(training: Dict[str, Any]) -> Dict[str, str]:
    """Returns the flags about long texts from a task adapter's `training`.

    An adapter without them was trained on truncated texts.

    Raises:
      UserError: a value is unknown to this version.
    """
    settings = {
        "long_texts": training.get("long_texts", "cut"),
        "window_pooling": training.get("window_pooling", POOLINGS[0]),
    }
    for name, known in (("long_texts", LONG_TEXTS), ("window_pooling", POOLINGS)):
        if settings[name] not in tuple(known):  # A file may hold a list, which no dict can look up.
            raise UserError(f"{name} is {settings[name]}; expected one of {', '.join(known)}.")
    return settings


def labels_of(rows: Any) -> np.ndarray:
    """Returns the labels of texts, from those of their rows or windows.

    Args:
      rows: `rows.PackedRows` with "label_ids", and optionally `windows`.
    """
    windows: Optional[Windows] = getattr(rows, "windows", None)
    labels = rows["label_ids"]
    return labels if windows is None else labels[windows.first_rows]
