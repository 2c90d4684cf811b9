"""Multi-worker training of an Estimator; stands in for TensorFlow's module of this name.

TensorFlow removed `tensorflow.python.distribute.estimator_training` with `tf.estimator`, but kept
the `distribute_coordinator` that it called. This replacement has what MultiWorkerMirroredStrategy
needs: every worker in TF_CONFIG's cluster calls `train_and_evaluate` and trains its own copy of the
Estimator. `tf_estimator` installs it under the name that the wheel imports.
"""

import copy
from typing import Any, Dict

from tensorflow.python.distribute import distribute_coordinator as coordinator
from tensorflow.python.distribute import distribute_coordinator_context
from tensorflow.python.training import server_lib

_INDEPENDENT_WORKER = coordinator.CoordinatorMode.INDEPENDENT_WORKER


def init_run_config(config: Any, tf_config: Dict[str, Any]) -> None:
    """Completes an Estimator's RunConfig that has a distribution strategy.

    Args:
      config: `estimator.RunConfig`, changed in place.
      tf_config: dict, the JSON of TF_CONFIG; {} if it is not set.

    Raises:
      NotImplementedError: `experimental_distribute` is set; use `train_distribute`.
    """
    if config._experimental_distribute:
        raise NotImplementedError("experimental_distribute is not supported; use train_distribute.")
    cluster_spec = server_lib.ClusterSpec(tf_config.get("cluster", {}))
    if cluster_spec and config._train_distribute:
        config._init_distributed_setting_from_environment_var({})
        config._cluster_spec = cluster_spec
        config._distribute_coordinator_mode = _INDEPENDENT_WORKER
        return
    config._init_distributed_setting_from_environment_var(tf_config)
    config._maybe_overwrite_session_config_for_distributed_training()
    config._distribute_coordinator_mode = None


def should_run_distribute_coordinator(config: Any) -> bool:
    """Returns whether an Estimator with this RunConfig trains as one of several workers."""
    return getattr(config, "_distribute_coordinator_mode", None) is not None


def train_and_evaluate(estimator: Any, train_spec: Any, eval_spec: Any, executor_cls: Any) -> None:
    """Trains an Estimator as the worker that TF_CONFIG assigns to this process.

    Args:
      estimator: `estimator.Estimator`; each worker trains a copy.
      train_spec: `estimator.TrainSpec`.
      eval_spec, executor_cls: unused, as there is no evaluator.

    Raises:
      NotImplementedError: TF_CONFIG names an evaluator.
    """
    del eval_spec, executor_cls
    config = estimator.config

    def train(strategy: Any) -> None:
        worker_estimator = copy.deepcopy(estimator)
        worker_estimator._config._train_distribute = worker_estimator._train_distribution = strategy
        # Otherwise `worker_estimator.train` would call this function again.
        worker_estimator._config._distribute_coordinator_mode = None
        _describe_worker(
            worker_estimator._config, distribute_coordinator_context.get_current_worker_context()
        )
        worker_estimator.train(
            train_spec.input_fn, hooks=list(train_spec.hooks), max_steps=train_spec.max_steps
        )

    coordinator.run_distribute_coordinator(
        train,
        config.train_distribute,
        _evaluate,
        mode=config._distribute_coordinator_mode,
        session_config=config.session_config,
    )


def _evaluate(strategy: Any) -> None:
    del strategy
    raise NotImplementedError("TF_CONFIG: an evaluator is not supported; expected a worker.")


def _describe_worker(config: Any, worker: Any) -> None:
    """Copies a worker's identity from its context to its RunConfig."""
    jobs = worker.cluster_spec.as_dict()
    chiefs = len(jobs.get("chief", []))
    config._service = None
    config._cluster_spec = worker.cluster_spec
    config._task_type = worker.task_type
    config._task_id = worker.task_id
    config._master = config._evaluation_master = worker.master_target
    config._is_chief = worker.is_chief
    config._num_ps_replicas = 0
    config._num_worker_replicas = chiefs + len(jobs.get("worker", []))
    config._global_id_in_cluster = worker.task_id + (chiefs if worker.task_type == "worker" else 0)


def estimator_train(*args: Any, **kwargs: Any) -> None:
    """Refuses `Estimator.train` with several workers."""
    raise NotImplementedError("With several workers, call estimator.train_and_evaluate.")


def estimator_evaluate(*args: Any, **kwargs: Any) -> None:
    """Refuses `Estimator.evaluate` with several workers."""
    raise NotImplementedError("Several workers cannot evaluate together; evaluate on the chief.")
