"""The sources that a forward pass asks for its weights."""

from typing import Any, Dict

import tensorflow.compat.v1 as tf


class Parameters:
    """Variables of the default graph. A subclass takes the weights from elsewhere."""

    def get(self, name: str, shape, initializer, *, collections=(), trainable: bool = True):
        """Returns the weight of a name in the current variable scope.

        Args:
          name: str.
          shape: list of int.
          initializer: of a new variable.
          collections: graph collections that a new variable joins, besides the global variables.
          trainable: bool; whether a new variable may train.

        Returns:
          float Tensor or variable of that shape.
        """
        return tf.get_variable(
            name,
            shape,
            initializer=initializer,
            trainable=trainable,
            collections=[*collections, tf.GraphKeys.GLOBAL_VARIABLES],
        )

    def get_for_rows(self, name: str, rows, initializer, *, collections=()):
        """Returns the weight of a name that each of some rows is scaled or shifted by.

        Args:
          rows: float Tensor [..., D].
          name, initializer, collections: as in `get`.

        Returns:
          float Tensor or variable [D]; or [..., D], if each row has its own.
        """
        return self.get(name, rows.shape.as_list()[-1:], initializer, collections=collections)


class SharedParameters(Parameters):
    """The weights of another source, each asked for once: every later call gets the first's.

    Args:
      parameters: the other source.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        self._answers: Dict[str, Any] = {}

    def get(self, name, *arguments, **options):
        """Returns what the other source returned for the name, whatever the scope is now."""
        return self._once(name, self._parameters.get, name, *arguments, **options)

    def get_for_rows(self, name, *arguments, **options):
        """Returns what the other source returned for the name, whatever the scope is now."""
        return self._once(name, self._parameters.get_for_rows, name, *arguments, **options)

    def _once(self, name, ask, *arguments, **options):
        if name not in self._answers:
            self._answers[name] = ask(*arguments, **options)
        return self._answers[name]


VARIABLES = Parameters()
