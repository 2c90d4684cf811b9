"""The losses of a training, as TensorBoard's event files in output_dir have them."""

from typing import Dict, List, Sequence, Tuple

import numpy as np

from adapter_bert.files import gfile

_LOSS = "loss"
_MIN_LOSSES = 3  # Of the first and of the last fifth of a training, to be compared.


def read(folder: str) -> List[Tuple[int, float]]:
    """Returns the training's (step, loss) that TensorBoard shows, by step, also of a resumed run.

    Args:
      folder: output_dir. A file that a kill has truncated is read up to there.
    """
    import tensorflow.compat.v1 as tf

    by_step: Dict[int, float] = {}
    for path in sorted(gfile.glob("events.out.tfevents.*", folder)):  # By time.
        try:
            for event in tf.train.summary_iterator(path):
                for value in event.summary.value:
                    if value.tag == _LOSS and value.HasField("simple_value"):
                        by_step[event.step] = value.simple_value
        except tf.errors.DataLossError:
            continue
    return sorted(by_step.items())


def warnings(losses: Sequence[float]) -> List[str]:
    """Returns a sentence if the training's loss has not fallen, by step; [] otherwise.

    Welch's t-test compares the first and the last fifth.
    """
    size = len(losses) // 5
    if size < _MIN_LOSSES:
        return []
    import scipy.stats  # Takes 0.4 s.

    first, last = losses[:size], losses[-size:]
    if scipy.stats.ttest_ind(first, last, equal_var=False, alternative="greater").pvalue < 0.05:
        return []
    return [
        f"The training loss has not fallen: {np.mean(first):.3f} in the first fifth of the steps,"
        f" {np.mean(last):.3f} in the last; try another --learning_rate or more"
        " --num_train_epochs."
    ]
