"""Initializes, restores and saves the variables of a graph.

Frozen variables are read from the pretrained checkpoint at every start, and never written.
"""

import dataclasses
import posixpath
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.training.saver import BulkSaverBuilder

from adapter_bert import modeling, tuning
from adapter_bert.formats import checkpoints
from adapter_bert.ops.layers import moving_variables, variable_name
from adapter_bert.shell import tf_estimator
from adapter_bert.shell.errors import UserError

if TYPE_CHECKING:
    from adapter_bert.training.model_fn import ModelSettings

Assignment = Dict[str, str]  # Tensors of a checkpoint → variables.


def scaffold_fn(
    settings: "ModelSettings", trained: List[tf.Variable], config: Any = None
) -> Callable[[], tf.train.Scaffold]:
    """Returns a scaffold_fn, which initializes, restores and saves the default graph's variables.

    Args:
      settings: `model_fn.ModelSettings`.
      trained: list of the variables that train.
      config: `tf_estimator.RunConfig`, which says how many checkpoints to keep; None for its
        defaults.

    Returns:
      A function without arguments that returns the Scaffold. On a TPU it also sets the variables'
      initial values, as Estimator calls it on the TPU's host; elsewhere they are set at once.

    Raises:
      UserError: the pretrained checkpoint lacks a tensor outside of adapters and head, or has one
        with another shape.
    """
    if settings.init_checkpoint:
        literal = checkpoints.literal_prefix(settings.init_checkpoint)
        settings = dataclasses.replace(settings, init_checkpoint=literal)
    pretrained, of_task = _assignments(settings, trained)
    # Random weights are in no checkpoint: they must be saved, or they would be lost.
    unsaved_names = pretrained.keys() - {variable_name(v) for v in trained}
    frozen = [v for v in tf.trainable_variables() if variable_name(v) in unsaved_names]

    use_tpu = settings.use_tpu
    is_distributed = use_tpu or tf.distribute.has_strategy()
    initialize_from = tf.train.init_from_checkpoint if is_distributed else _initialize_from

    def initialize() -> None:
        for checkpoint, assignment in (
            (settings.init_checkpoint, pretrained),
            (settings.task_checkpoint, of_task),
        ):
            if assignment:  # Without a head, an adapter of --tuning=head has nothing to assign.
                initialize_from(checkpoint, assignment)

    def build_scaffold() -> tf.train.Scaffold:
        if use_tpu:
            initialize()
        saver = _Saver(frozen, config, settings.run_identity)
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
        if is_distributed:
            return tf.train.Scaffold(saver=saver)
        # Alone, a process need not ask each variable whether another one has initialized it.
        none_missing = tf.constant([], tf.string)
        return tf.train.Scaffold(
            saver=saver, ready_op=none_missing, ready_for_local_init_op=none_missing
        )

    if not use_tpu:
        initialize()
    return build_scaffold


def _assignments(
    settings: "ModelSettings", trained: List[tf.Variable]
) -> Tuple[Assignment, Assignment]:
    """Returns the assignment maps of the pretrained and of the task's checkpoint, two dicts."""
    variables, moving_statistics = tf.trainable_variables(), moving_variables()
    pretrained, of_task = {}, {}
    if settings.init_checkpoint:
        pretrained, _ = modeling.get_assignment_map_from_checkpoint(
            variables + moving_statistics, settings.init_checkpoint
        )
        _check_assignment(variables, pretrained, settings.init_checkpoint)
    if settings.task_checkpoint:
        of_task, _ = modeling.get_assignment_map_from_checkpoint(
            trained + moving_statistics, settings.task_checkpoint
        )
    return pretrained, of_task


def _initialize_from(checkpoint: Any, assignment: Assignment) -> None:
    """Does what `tf.train.init_from_checkpoint` does, with one read for all variables."""
    by_name = {variable_name(variable): variable for variable in tf.global_variables()}
    variables = [by_name[name] for name in assignment.values()]
    values = tf.raw_ops.RestoreV2(
        prefix=checkpoint,
        tensor_names=list(assignment),
        shape_and_slices=[""] * len(assignment),
        dtypes=[variable.dtype.base_dtype for variable in variables],
    )
    for variable, value in zip(variables, values):
        variable._initializer_op = variable.assign(value, read_value=False)


class _Saver(checkpoints.Saver):
    """Saves and restores all but the frozen variables, and initializes these on restoring.

    Args:
      frozen: list of the frozen variables.
      config, run_identity: as in `scaffold_fn`.
    """

    def __init__(self, frozen: List[tf.Variable], config: Any, run_identity: Optional[str]) -> None:
        self._is_partial = bool(frozen)
        self._initialize_frozen = tf.variables_initializer(frozen)
        self._restored: Optional[tf.Session] = None
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

    def save(self, sess: tf.Session, save_path: str, *arguments: Any, **options: Any) -> Any:
        """Saves as `tf.train.Saver` does; without frozen variables, under another basename.

        Args:
          sess, *arguments, **options: as in `tf.train.Saver.save`.
          save_path: as there; `checkpoints.PARTIAL_CHECKPOINT` replaces Estimator's basename.

        Raises:
          UserError: the checkpoint cannot be written.
        """
        folder, name = posixpath.split(save_path)
        if self._is_partial and name == checkpoints.MODEL_CHECKPOINT:
            save_path = posixpath.join(folder, checkpoints.PARTIAL_CHECKPOINT)
        return super().save(sess, save_path, *arguments, **options)

    def restore(self, session: tf.Session, save_path: str) -> None:
        """Restores or initializes all variables; in the same session again, only the trained.

        A graph that is not finalized is being exported. From then on this saves all variables, as
        a SavedModel must contain the whole model.

        Raises:
          UserError: the checkpoint belongs to another model, or it is from a training with a
            pretrained checkpoint, which this graph lacks.
        """
        try:
            super().restore(session, save_path)
        except tf.errors.NotFoundError as error:
            saved_names = {name for name, _ in tf.train.list_variables(save_path)}
            missing = sorted(set(self._names) - saved_names)
            if not missing:
                raise
            if checkpoints.is_slot(missing[0], {*self._names, *saved_names}):
                raise UserError(
                    f"{save_path} was saved by a training with another optimizer: it lacks"
                    f" {missing[0]}; give another --output_dir, or --overwrite_output_dir."
                ) from error
            raise UserError(
                f"{save_path} lacks {len(missing)} variables, such as {missing[0]}: it holds only"
                " what was trained, so the model must be built with the training's"
                " init_checkpoint."
            ) from error
        if session is not self._restored:  # Frozen variables have their values for good.
            session.run(self._initialize_frozen)
            self._restored = session
        if not session.graph.finalized:
            self._is_partial = False
            super().__init__()


class _IdentitySaverBuilder(BulkSaverBuilder):
    """Writes a run's identity into checkpoints; it is not a variable and not restored."""

    def __init__(self, run_identity: str) -> None:
        super().__init__()
        self._run_identity = run_identity

    def save_op(self, filename_tensor: tf.Tensor, saveables: List[Any]) -> tf.Operation:
        """Returns the operation that writes the variables and the identity."""
        value = tf.constant(self._run_identity)
        spec = self.SaveSpec(value, "", checkpoints.IDENTITY, tf.string)
        identity = self.SaveableObject(value, [spec], checkpoints.IDENTITY)
        return super().save_op(filename_tensor, [*saveables, identity])


def _check_assignment(
    variables: List[tf.Variable], names: Iterable[str], init_checkpoint: str
) -> None:
    """Raises UserError unless each of BERT's variables is found, and all shapes match."""
    shapes = {variable_name(variable): variable.shape.as_list() for variable in variables}
    checkpoints.check_shapes(init_checkpoint, shapes)
    roles = tuning.roles()
    for name in shapes:
        if name not in names and roles[name].kind not in ("adapter", "head"):
            raise UserError(
                f"--init_checkpoint {init_checkpoint} lacks {name}, which the model needs."
            )
