"""The flags that say where, and how precisely, a model is computed, and what they become.

As `bert_flags`: a script's main module defines them, and functions read the parsed values.
"""

from absl import flags

from adapter_bert.common import configs, devices, files
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.training import estimator


def define(flag_values):
    """Defines those of every script."""
    at = section("Devices", flag_values)
    flags.DEFINE_bool(
        "use_tpu", False, "Run on a TPU; where there is none and none is named, without.", **at
    )
    flags.DEFINE_enum(
        "precision",
        "auto",
        list(configs.PRECISIONS),
        "Precision of what lies between the variables and the loss, which stay float32; auto:"
        " that of the run or adapter that is used, else bfloat16 on a TPU and where it is measured"
        " to be faster, else float32.",
        **at,
    )
    flags.DEFINE_string(
        "tpu_name",
        None,
        "Cloud TPU to use: name, grpc:// address, local. Default: one in this machine.",
        **at,
    )
    flags.DEFINE_string("tpu_zone", None, "GCE zone of the Cloud TPU.", **at)
    flags.DEFINE_string("gcp_project", None, "Project of the Cloud TPU.", **at)
    flags.DEFINE_string(
        "master", None, "Address of a TPU's TensorFlow master, in place of --tpu_name.", **at
    )
    flags.DEFINE_integer("num_tpu_cores", 8, "Cores that the TPU has.", 1, **at)


def define_distribution(flag_values):
    """Defines those of a training, which several devices may share."""
    at = section("Devices", flag_values)
    flags.DEFINE_integer(
        "iterations_per_loop",
        1000,
        "Steps that a TPU takes between two looks at it, for progress and checkpoints.",
        1,
        **at,
    )
    flags.DEFINE_enum(
        "distribution",
        "none",
        list(configs.DISTRIBUTIONS),
        "What trains together: "
        + "; ".join("{}: {}".format(*item) for item in configs.DISTRIBUTIONS.items())
        + ". --train_batch_size is that of all together.",
        **at,
    )
    flags.DEFINE_float(
        "worker_timeout",
        300.0,
        "Seconds that a worker of TF_CONFIG's cluster waits for the others to come.",
        1.0,
        1e6,
        **at,
    )


def evaluation_settings(values, output_dir, eval_batch_size):
    """Connects to the TPU if one is asked for: what a run needs to evaluate.

    Returns:
      (`estimator.RunSettings` with the defaults of a training, use_tpu).

    Raises:
      UserError: the TPU cannot be reached, or a batch has no equal parts.
    """
    use_tpu, cluster = devices.find_tpu(
        values.use_tpu,
        values.tpu_name,
        values.tpu_zone,
        values.gcp_project,
        values.master,
        values.num_tpu_cores,
    )
    run = estimator.RunSettings(
        output_dir=output_dir,
        eval_batch_size=eval_batch_size,
        num_tpu_cores=values.num_tpu_cores,
        tpu_cluster=cluster,
        master=(use_tpu and values.master) or None,
    )
    if "eval_batch_size" in values:  # run_squad.py evaluates in --predict_batch_size.
        check_batches(run, use_tpu, ["eval_batch_size"])
    return run, use_tpu


def check_paths_for_tpu(values, output_dir, init_checkpoint):
    """Raises UserError unless the host of the TPU can read what it is to read itself.

    Args:
      values: parsed flags.
      output_dir, init_checkpoint: paths.
    """
    host = values.tpu_name or values.master
    if host in (None, "", "local"):
        return
    for flag, path in (("output_dir", output_dir), ("init_checkpoint", init_checkpoint)):
        if not files.is_remote(path):
            raise UserError(
                f"--{flag}={path}: the host of the TPU {host} cannot read this machine's files;"
                " expected a gs:// path."
            )


def replicas(run, use_tpu):
    """(how many replicas share a batch, the flag that says so)."""
    if use_tpu:
        return run.num_tpu_cores, f"--num_tpu_cores={run.num_tpu_cores}"
    return run.distribution.num_replicas, f"--distribution={run.distribution.kind}"


def check_batches(run, use_tpu, flags_of_batches):
    """Raises UserError unless each replica's batches are equal."""
    count, among = replicas(run, use_tpu)
    for flag in flags_of_batches:
        if getattr(run, flag) % count:
            raise UserError(
                f"--{flag}={getattr(run, flag)} does not fall into equal parts for the {count}"
                f" replicas of {among}; choose a multiple of {count}."
            )
