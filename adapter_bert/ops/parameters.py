"""The source of the weights in a forward pass, and their initial value if that is zero."""

from typing import Any, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.ops import xla


class Parameters:
    """Provides weights as variables of the default graph; subclasses have other sources."""

    def get(
        self,
        name: str,
        shape: Sequence[int],
        initializer: Any,
        *,
        collections: Sequence[str] = (),
        trainable: bool = True,
    ) -> tf.Tensor:
        """Returns the weight with a name in the current variable scope.

        Args:
          name: str.
          shape: list of int.
          initializer: initializer of a new variable.
          collections: graph collections for a new variable, besides the global variables.
          trainable: bool; whether a new variable can train.

        Returns:
          float Tensor or variable of that shape; with one more axis [B, ...], which comes first, if
          each of B examples has its own weight.
        """
        return tf.get_variable(
            name,
            shape,
            initializer=initializer,
            trainable=trainable,
            collections=[*collections, tf.GraphKeys.GLOBAL_VARIABLES],
        )

    def get_for_rows(
        self, name: str, rows: tf.Tensor, initializer: Any, **options: Any
    ) -> tf.Tensor:
        """Returns the weight with a name that scales or shifts rows.

        Args:
          name, initializer, **options: as in `get`.
          rows: float Tensor [..., D].

        Returns:
          float Tensor or variable: [D], or [..., D] if each row has its own weight.
        """
        return self.get(name, rows.shape.as_list()[-1:], initializer, **options)


VARIABLES = Parameters()


def zeros(shape: Any, dtype: tf.DType = tf.float32, partition_info: Any = None) -> tf.Tensor:
    """Initializes a variable with zeros; all variables of a shape share one Tensor.

    TensorFlow's initializer would add three operations to the graph for each variable.
    """
    del partition_info
    tensors = xla.graph_dict(tf.get_default_graph(), __name__)
    key = (*shape, dtype)
    if key not in tensors:
        tensors[key] = tf.zeros(shape, dtype)
    return tensors[key]
