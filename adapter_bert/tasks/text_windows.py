"""Long texts in windows: how a text is divided, and how the predictions of its windows are joined.

Axes: W windows of all texts, N texts.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.common.errors import UserError

LONG_TEXTS = {"cut": "read the begin alone", "windows": "read all, in windows"}
POOLINGS = ("mean", "max")

Tokens = List[Any]


def divide(tokens_a: Tokens, tokens_b: Tokens, room: int) -> List[Tuple[Tokens, Tokens]]:
    """Returns the windows of a text or pair, itself if it fits.

    They are over the longer text, as few as show all of it, equally far apart and all full. The
    shorter one stands in each of them; it loses its end if it takes more than half of the room.

    Args:
      tokens_a, tokens_b: lists of tokens; the second is empty where there is one text.
      room: how many tokens a window has, without special ones.
    """
    if len(tokens_a) + len(tokens_b) <= room:
        return [(tokens_a, tokens_b)]
    is_a_longer = len(tokens_a) >= len(tokens_b)
    longer, shorter = (tokens_a, tokens_b) if is_a_longer else (tokens_b, tokens_a)
    shorter = shorter[: room // 2]
    size = room - len(shorter)
    count = max(-(-len(longer) // size), 1)
    starts = [index * (len(longer) - size) // max(count - 1, 1) for index in range(count)]
    parts = [longer[max(start, 0) : max(start, 0) + size] for start in starts]
    return [(part, shorter) if is_a_longer else (shorter, part) for part in parts]


class Windows(NamedTuple):
    """Which rows are windows of one text, and how their predictions are joined.

    Attributes:
      first_rows: int array [N], each text's first window; the others follow it.
      pooling: one of `POOLINGS`.
    """

    first_rows: np.ndarray
    pooling: str

    def join(self, predictions: Dict[str, Any], is_single_label: bool) -> Dict[str, np.ndarray]:
        """Returns the predictions of texts.

        A maximum of probabilities over windows that exclude each other is divided by their sum.
        The loss is the mean of the windows' losses.

        Args:
          predictions: arrays [W, ...] by name, as of `classifier_results`.
          is_single_label: each text has one of the labels, whose probabilities add up to 1.
        """
        joined = {name: self._join(name, np.asarray(each)) for name, each in predictions.items()}
        if self.pooling == "max" and is_single_label:
            probabilities = joined["probabilities"]
            sums = probabilities.sum(-1, keepdims=True)
            several = self._counts(probabilities, len(predictions["probabilities"])) > 1
            joined["probabilities"] = np.where(several, probabilities / sums, probabilities)
        return joined

    def _join(self, name, values):
        if self.pooling == "max" and name != "loss":
            return np.maximum.reduceat(values, self.first_rows)
        sums = np.add.reduceat(values, self.first_rows)
        return sums / self._counts(sums, len(values)).astype(values.dtype)

    def _counts(self, values, num_rows):
        """Returns how many windows each text has, as [N, 1, ...] with the dimensions of values."""
        counts = np.diff([*self.first_rows, num_rows])
        return counts.reshape(-1, *[1] * (values.ndim - 1))


def recorded(training: Dict[str, Any]) -> Dict[str, str]:
    """Returns the flags about long texts that a task adapter's `training` decides.

    One of an earlier version has none, and cuts.

    Raises:
      UserError: they are none that this version knows.
    """
    found = {
        "long_texts": training.get("long_texts", "cut"),
        "window_pooling": training.get("window_pooling", POOLINGS[0]),
    }
    for name, known in (("long_texts", LONG_TEXTS), ("window_pooling", POOLINGS)):
        if found[name] not in known:
            raise UserError(f"{name} is {found[name]}; expected one of {', '.join(known)}.")
    return found


def labels_of(rows) -> np.ndarray:
    """Returns the labels of the texts that rows, or windows, are of.

    Args:
      rows: `rows.TextRows` with "label_ids"; `windows` is its `Windows`, if it has any.
    """
    windows: Optional[Windows] = getattr(rows, "windows", None)
    labels = rows["label_ids"]
    return labels if windows is None else labels[windows.first_rows]
