"""Where a graph's variables come from at a start, and which of them a checkpoint keeps.

The frozen ones are read from the pretrained checkpoint at every start, and never written.
"""

import posixpath

import tensorflow.compat.v1 as tf
from tensorflow.python.training.saver import BulkSaverBuilder

import modeling
import tuning
from adapter_bert.common import tf_estimator
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints
from adapter_bert.ops.layers import moving_variables, variable_name


def scaffold_fn(trained, init_checkpoint, task_checkpoint, use_tpu, config=None, run_identity=None):
    """What initializes, restores and saves the variables of the default graph.

    Args:
      trained: list of the variables that train.
      init_checkpoint: prefix of the pretrained checkpoint, None for random weights.
      task_checkpoint: prefix of a checkpoint of all that trains, which it starts from; None for
        random weights, or what the pretrained checkpoint holds of it.
      use_tpu: whether the graph runs on a TPU.
      config: `tf_estimator.RunConfig`, which says how many checkpoints are kept; None for its
        defaults.
      run_identity: str by which checkpoints say which run they are of; None for none.

    Returns:
      A function without arguments that returns the Scaffold. It also points the variables'
      initializers at the checkpoints on a TPU, on whose host Estimator calls it; elsewhere that is
      done here.

    Raises:
      UserError: the pretrained checkpoint lacks a tensor that is neither an adapter's nor the
        head's, or holds one of another shape.
    """
    sources, moving_statistics = [], moving_variables()
    if init_checkpoint:
        variables = tf.trainable_variables()
        assignment, initialized_names = modeling.get_assignment_map_from_checkpoint(
            variables + moving_statistics, init_checkpoint
        )
        _check_assignment(variables, initialized_names, init_checkpoint)
        sources.append((init_checkpoint, assignment))
    if task_checkpoint:
        assignment, _ = modeling.get_assignment_map_from_checkpoint(
            trained + moving_statistics, task_checkpoint
        )
        sources.append((task_checkpoint, assignment))
    # Random weights that no checkpoint holds must be written, or are lost.
    trained_names = {variable_name(v) for v in trained}
    frozen = [
        v
        for v in tf.trainable_variables()
        if init_checkpoint and variable_name(v) not in trained_names
    ]

    def initialize():
        for checkpoint, assignment in sources:
            tf.train.init_from_checkpoint(checkpoint, assignment)

    def build_scaffold():
        if use_tpu:
            initialize()
        saver = _Saver(frozen, config, run_identity)
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
        return tf.train.Scaffold(saver=saver)

    if not use_tpu:
        initialize()
    return build_scaffold


class _Saver(checkpoints.Saver):
    """Saves and restores all but the frozen variables, which it initializes where it restores.

    Args:
      frozen: list of them.
      config, run_identity: as in `scaffold_fn`.
    """

    def __init__(self, frozen, config, run_identity):
        self._is_partial = bool(frozen)
        self._initialize_frozen = tf.variables_initializer(frozen)
        names = {variable_name(variable) for variable in frozen}
        saved = [v for v in tf.global_variables() if variable_name(v) not in names]
        config = config or tf_estimator.RunConfig()
        super().__init__(
            saved,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            builder=run_identity and _IdentitySaverBuilder(run_identity),
        )
        self._names = [variable_name(variable) for variable in saved]

    def save(self, sess, save_path, *arguments, **options):
        """Saves as `tf.train.Saver` does; a checkpoint that lacks the frozen ones is called so.

        Args:
          sess: as there.
          save_path: as there; `checkpoints.PARTIAL_CHECKPOINT` replaces Estimator's basename.
          *arguments, **options: as there.

        Raises:
          UserError: it cannot be written.
        """
        folder, name = posixpath.split(save_path)
        if self._is_partial and name == checkpoints.MODEL_CHECKPOINT:
            save_path = posixpath.join(folder, checkpoints.PARTIAL_CHECKPOINT)
        return super().save(sess, save_path, *arguments, **options)

    def restore(self, session, save_path):
        """Gives all variables their values.

        A graph that can still grow is being exported; from then on this saves all of them, for a
        SavedModel holds its whole model.

        Raises:
          UserError: the checkpoint is of another model, or of a training that began with a
            pretrained one, and this graph has none.
        """
        try:
            super().restore(session, save_path)
        except tf.errors.NotFoundError as error:
            saved_names = {name for name, _ in tf.train.list_variables(save_path)}
            missing = sorted(set(self._names) - saved_names)
            if not missing:
                raise
            raise UserError(
                f"{save_path} lacks {len(missing)} variables, {missing[0]} among them: it holds"
                " what trained, so that the model must be built as for the training, with the same"
                " init_checkpoint."
            ) from error
        session.run(self._initialize_frozen)
        if not session.graph.finalized:
            self._is_partial = False
            super().__init__()


class _IdentitySaverBuilder(BulkSaverBuilder):
    """Has a Saver write a run's identity beside the variables; it is neither one nor restored."""

    def __init__(self, run_identity):
        super().__init__()
        self._run_identity = run_identity

    def save_op(self, filename_tensor, saveables):
        """The operation that writes both."""
        value = tf.constant(self._run_identity)
        spec = self.SaveSpec(value, "", checkpoints.IDENTITY, tf.string)
        identity = self.SaveableObject(value, [spec], checkpoints.IDENTITY)
        return super().save_op(filename_tensor, [*saveables, identity])


def _check_assignment(variables, names, init_checkpoint):
    """Raises UserError unless every variable of BERT's own is found, and all found ones fit."""
    shapes = {variable_name(variable): variable.shape.as_list() for variable in variables}
    checkpoints.check_shapes(init_checkpoint, shapes)
    roles = tuning.roles()
    for name in shapes:
        if name not in names and roles[name].kind not in ("adapter", "head"):
            raise UserError(
                f"--init_checkpoint {init_checkpoint}: it lacks {name}, which the model needs."
            )
