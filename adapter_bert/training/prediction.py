"""A session that predicts rows with the weights of one checkpoint after another.

Estimator's `predict` builds a graph and a session for each call, which takes seconds: too long for
the evaluations of a training. On a TPU, which has one session at a time, there is no other way.
"""

import weakref
from typing import Any, Callable, Dict, Iterator, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.ops import devices
from adapter_bert.shell import tf_estimator
from adapter_bert.training import input_pipeline
from adapter_bert.training.rows import OrderedRows, Rows


class PredictionSession:
    """Predicts rows on CPU or GPU. Its graph and session live as long as this object.

    Args:
      model_fn: function (features, labels, mode, params, config) → TPUEstimatorSpec.
      config: RunConfig.
      rows: rows with the columns of those to predict; see `columns_of`.
      batch_size: int; None for batches of many tokens, see `input_pipeline.batches_of_tokens`.
    """

    def __init__(self, model_fn: Callable, config: Any, rows: Rows, batch_size: Optional[int]):
        self._rows = OrderedRows(rows, np.arange(len(rows)))
        params = {"batch_size": batch_size}
        graph = tf.Graph()
        with graph.as_default():
            tf.set_random_seed(config.tf_random_seed)
            tf.train.create_global_step()
            input_fn = input_pipeline.input_fn_builder(self._rows, None, False, False)
            batches = tf.data.make_initializable_iterator(input_fn(params))
            mode = tf_estimator.ModeKeys.PREDICT
            spec = model_fn(batches.get_next(), None, mode, params, config).as_estimator_spec()
            self._scaffold = spec.scaffold.finalize()
        graph.finalize()
        self._read, self._predictions = batches.initializer, spec.predictions
        self._session = tf.Session(graph=graph, config=devices.session_config(one_device=True))
        weakref.finalize(self, self._session.close)

    def predict(
        self, rows: Rows, order: np.ndarray, checkpoint: Optional[str]
    ) -> Iterator[Dict[str, Any]]:
        """Yields the predictions of rows in an order, a dict of arrays each; see `batches`."""
        for batch in self.batches(rows, order, checkpoint):
            for index in range(len(next(iter(batch.values())))):
                yield {name: values[index] for name, values in batch.items()}

    def batches(
        self, rows: Rows, order: np.ndarray, checkpoint: Optional[str]
    ) -> Iterator[Dict[str, Any]]:
        """Yields the predictions of batches of rows in an order, arrays [B, ...] by name.

        Args:
          rows: with the columns of this session's.
          order: int [N], indices of rows.
          checkpoint: prefix of the checkpoint; None for the initial weights.
        """
        with self._session.graph.as_default():  # In eager mode, a Saver would restore otherwise.
            if checkpoint is None:
                self._session.run(self._scaffold.init_op)
            else:
                self._scaffold.saver.restore(self._session, checkpoint)
        self._session.run(self._scaffold.local_init_op)
        self._rows.select(rows, order)
        self._session.run(self._read)
        while True:
            try:
                batch = self._session.run(self._predictions)
            except tf.errors.OutOfRangeError:
                return
            yield batch


def columns_of(rows: Rows) -> Dict[str, Any]:
    """Returns the types and numbers of axes of the rows' arrays, by name."""
    return {name: (values.dtype, values.ndim) for name, values in rows.take([0]).items()}
