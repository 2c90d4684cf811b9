"""The settings of a run: BERT's flags, mostly with BERT's defaults, and further ones.

A script's settings inherit from these. They check what depends on flags alone; errors in data, the
pretrained BERT, devices or files are raised where these are accessed.
"""

import dataclasses
import math
import os
import re
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple, Type, TypeVar

from absl import flags, logging

from adapter_bert.files import paths
from adapter_bert.model import configs
from adapter_bert.model.configs import AdapterConfig, Tuning
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings, Supplied, flag

SPLITS = {"train": "train", "eval": "dev", "predict": "test"}  # Stage → the split it reads.
MAX_SEED = 2**32 - 1  # NumPy's limit.
_MAX_STEPS = 2**31 - 1  # More than any training takes; an int32 holds it.

# (learning rate, epochs). At BERT's default rate, adapters predict only the majority class of CoLA;
# 3e-4 and 5 come from adapter-bert's README. Methods that train BERT's weights keep BERT's values.
ADAPTER_SCHEDULE = (3e-4, 5.0)
BERT_SCHEDULE = (5e-5, 3.0)
_RATE, _BERT_RATE = (
    f"{rate:.0e}".replace("e-0", "e-") for rate, _ in (ADAPTER_SCHEDULE, BERT_SCHEDULE)
)
_EPOCHS, _BERT_EPOCHS = (f"{epochs:g}" for _, epochs in (ADAPTER_SCHEDULE, BERT_SCHEDULE))


def default_schedule(method: str) -> Tuple[float, float]:
    """Returns a tuning method's default (learning rate, epochs)."""
    return BERT_SCHEDULE if method in configs.BERT_METHODS else ADAPTER_SCHEDULE


@dataclasses.dataclass(frozen=True)
class PretrainedConfig(Settings):
    """The location of the pretrained BERT."""

    bert: Optional[str] = flag(
        None,
        "The BERT: a folder in the format of Google, Hugging Face, TF-Hub or the Model Garden, or"
        " hf://owner/name[@revision]. It is converted once if need be, and replaces the other flags"
        " of this section; the default of --do_lower_case is then the BERT's.",
        "Pretrained BERT",
        is_input=True,
        records={"vocabulary": "the vocabulary", "backbone": "the BERT"},
    )
    bert_config_file: Optional[str] = flag(
        None,
        "bert_config.json of the BERT. Default: in $BERT_BASE_DIR, or else the demo's.",
        "Pretrained BERT",
        is_input=True,
        records={"hidden_act": "hidden_act", "num_attention_heads": "num_attention_heads"},
    )
    vocab_file: Optional[str] = flag(
        None,
        "WordPiece vocabulary of the BERT. Default: in $BERT_BASE_DIR, or else the demo's.",
        "Pretrained BERT",
        is_input=True,
        records={"vocabulary": "the vocabulary"},
    )
    init_checkpoint: Optional[str] = flag(
        None,
        "Prefix of the pretrained TensorFlow checkpoint. In run_classifier.py, run_squad.py and"
        " run_tagger.py without training, also a run's folder or checkpoint. Default: in"
        " $BERT_BASE_DIR, or else the demo's.",
        "Pretrained BERT",
        is_input=True,
        records={"backbone": "the BERT"},
    )
    bert_hub_module_handle: Optional[str] = flag(
        None,
        "TF-Hub module (URL or folder) with weights, config and vocabulary, instead of"
        " --bert_config_file, --vocab_file and --init_checkpoint.",
        "Pretrained BERT",
        is_input=True,
    )
    spm_model_file: Optional[str] = flag(
        None, "SentencePiece model, used instead of --vocab_file.", "Pretrained BERT", is_input=True
    )


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(PretrainedConfig):
    """A pretrained BERT and its tokenizer."""

    do_lower_case: bool = flag(
        True, "Lower-case the text: True for uncased models, otherwise False.", "Pretrained BERT"
    )


@dataclasses.dataclass(frozen=True)
class TextConfig(TokenizerConfig):
    """A pretrained BERT, and the length of the texts that it reads."""

    max_seq_length: int = flag(
        128,
        "Longest text or pair in tokens; longer ones are truncated.",
        "Task and data",
        binds_evaluation=True,
    )
    feature_cache_dir: Optional[str] = flag(
        None,
        "Folder that caches texts as token ids. Default: ~/.cache/adapter-bert/features; none"
        " disables the cache.",
        "Task and data",
    )
    verify_data: bool = flag(
        False,
        "Read all bytes of data and cached features to see whether they have changed. By default,"
        " size, time and samples decide.",
        "Task and data",
    )

    @property
    def feature_folder(self) -> Optional[str]:
        """The folder of the cache of token ids; None if it is disabled."""
        if self.feature_cache_dir == "none":
            return None
        return self.feature_cache_dir or paths.cache_folder("features")


@dataclasses.dataclass(frozen=True)
class DeviceConfig(Settings):
    """The devices and the precision of a model."""

    use_tpu: bool = flag(
        False, "Run on a TPU; if there is none and no --tpu_name, on GPU or CPU.", "Devices"
    )
    precision: str = flag(
        "auto",
        "Precision of activations and matrix products; variables and loss stay float32. On a GPU,"
        " float32 is never TF32. auto: the precision of the resumed run or adapter, else bfloat16"
        " on a TPU, or on a CPU where it measures clearly faster, else float32.",
        "Devices",
        choices=configs.PRECISIONS,
    )
    tpu_name: Optional[str] = flag(
        None,
        "Cloud TPU to use: name, grpc:// address, or local. Default: a TPU in this machine.",
        "Devices",
    )
    tpu_zone: Optional[str] = flag(None, "GCE zone of the Cloud TPU.", "Devices")
    gcp_project: Optional[str] = flag(None, "Project of the Cloud TPU.", "Devices")
    master: Optional[str] = flag(
        None, "Address of a TPU's TensorFlow master, instead of --tpu_name.", "Devices"
    )
    num_tpu_cores: int = flag(8, "Number of cores of the TPU.", "Devices", lower=1)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(Settings):
    """The batch size of evaluations; as a base class it must precede `FinetuningConfig`."""

    eval_batch_size: int = flag(
        8, "Examples per evaluation batch.", "Evaluation and prediction", lower=1
    )


C = TypeVar("C", bound="FinetuningConfig")


_TRAINING_FLAGS = {
    *("keep_best", "early_stopping_patience", "eval_every_steps", "class_weights", "calibrate"),
    *("label_smoothing", "save_full_checkpoint", "label_descriptions", "overwrite_output_dir"),
    *("license", "no_examples"),
}


@dataclasses.dataclass(frozen=True)
class FinetuningConfig(TextConfig, DeviceConfig):
    """A training, its evaluations and predictions.

    Attributes, in addition to the flags:
      tuning: `configs.Tuning` from --tuning, --num_top_layers, --train_pooler and --layer_norms.
      adapter: `configs.AdapterConfig` from the --adapter_... flags; None without adapters.
      given_flags: names of the flags on the command line.
    """

    do_train: bool = flag(
        False,
        "Train. Without --do_train, --do_eval and --do_predict: train and evaluate.",
        "Stages",
    )
    do_eval: bool = flag(False, "Evaluate on the dev set (SQuAD: --predict_file).", "Stages")
    do_predict: bool = flag(False, "Predict the test set (SQuAD: --predict_file).", "Stages")
    adapter_folder: Optional[str] = flag(
        None,
        "Task adapter to evaluate, predict with or train further: a folder such as"
        " output/mrpc/adapter, or hf://owner/name on the Hub. Task and model flags you omit are"
        " read from the adapter.",
        "Stages",
        name="adapter",
        is_input=True,
        records={"started_from": "the task adapter that it starts from"},
    )
    train_batch_size: int = flag(32, "Examples per training step.", "Training", lower=1)
    learning_rate: Optional[float] = flag(
        None,
        f"Peak learning rate of Adam. Default: {_RATE} for adapters, layer_norm and head (at BERT's"
        f" {_BERT_RATE} they often learn nothing; 1e-3 suits layer_norm, SQuAD and tagging);"
        f" {_BERT_RATE} for full and top_layers.",
        "Training",
    )
    num_train_epochs: Optional[float] = flag(
        None,
        f"Passes over the training data. Default: {_EPOCHS} for the methods whose default rate is"
        f" {_RATE}, BERT's {_BERT_EPOCHS} for full and top_layers.",
        "Training",
        records={"num_train_steps": "number of steps"},
    )
    warmup_proportion: float = flag(
        0.1,
        "Share of the steps for warmup of the learning rate, which then decays to 0.",
        "Training",
        records={"num_warmup_steps": "number of warm-up steps"},
    )
    random_seed: int = flag(
        12345,
        "Seed of initial values, dropout and the order of the training data.",
        "Training",
        lower=0,
        upper=MAX_SEED,
    )
    gradient_accumulation_steps: int = flag(
        1,
        "Split each training batch into this many equal parts, computed one after the other before"
        " one optimizer step; needs only the memory of one part.",
        "Training",
        lower=1,
    )
    recompute_activations: bool = flag(
        False,
        "Recompute each layer's activations in the backward pass instead of saving them: less"
        " memory, more time.",
        "Training",
    )
    save_checkpoints_steps: int = flag(
        1000,
        "Steps between checkpoints, from which a stopped training resumes.",
        "Training",
        lower=1,
    )
    predict_batch_size: int = flag(
        8, "Examples per prediction batch.", "Evaluation and prediction", lower=1
    )
    eval_every_steps: int = flag(
        0,
        "Number of steps between evaluations on the dev set. 0: evaluate at the end only, or after"
        " each epoch with --keep_best or --early_stopping_patience.",
        "Evaluation and prediction",
        lower=0,
        records={"evaluated_every": ""},
    )
    keep_best: bool = flag(
        False,
        "Keep the task adapter with the best dev score, see --metric, instead of the last one.",
        "Evaluation and prediction",
    )
    early_stopping_patience: int = flag(
        0,
        "Number of evaluations without a better score, see --metric, after which training stops and"
        " keeps the best adapter; 0 disables early stopping.",
        "Evaluation and prediction",
        lower=0,
    )
    metric: Optional[str] = flag(
        None,
        "Score that compares evaluations, such as macro_f1. Default: the task's main score.",
        "Evaluation and prediction",
    )
    plots: bool = flag(False, "Draw the results and the training's curves as pictures.", "Output")
    output_dir: Optional[str] = flag(
        None,
        "Folder for checkpoints and results. Default: output/<task> with adapters, otherwise"
        " output/<task>_<method>, as in output/mrpc_full.",
        "Output",
    )
    overwrite_output_dir: bool = flag(
        False, "Remove an earlier run's files in output_dir before training.", "Output"
    )
    save_full_checkpoint: bool = flag(
        False,
        "After training, write BERT and adapters together as output_dir/full_model.ckpt, for"
        " google-research/adapter-bert. BERT's own code silently ignores adapters, so it can use"
        " only checkpoints of --tuning=full, top_layers, layer_norm and head.",
        "Output",
    )
    label_descriptions: Optional[str] = flag(
        None,
        "JSON file {label: text} that describes the labels; stored in the adapter and shown on the"
        " server's page.",
        "Output",
        is_input=True,
    )
    license: Optional[str] = flag(
        None,
        "License of the adapter, an SPDX id such as cc-by-4.0 or a name, for its card.",
        "Output",
    )
    no_examples: bool = flag(
        False,
        "Custom tasks and tagging: store no texts of the dev set in the adapter. By default, it has"
        " three short ones, which its card and the server's page show.",
        "Output",
    )
    layer_norms: Optional[str] = flag(
        None,
        "LayerNorms that train with adapters; adapted: only in the layers with an adapter. Default:"
        " all, or adapted with --adapter_layers.",
        "Trained parameters",
        choices=configs.LAYER_NORMS,
    )
    iterations_per_loop: int = flag(
        1000,
        "Number of steps that a TPU runs between progress reports and checkpoints.",
        "Devices",
        lower=1,
    )
    distribution: str = flag(
        "none",
        "Devices that train together. "
        + "; ".join("{}: {}".format(*item) for item in configs.DISTRIBUTIONS.items())
        + ". --train_batch_size is the total over all devices.",
        "Devices",
        choices=configs.DISTRIBUTIONS,
    )
    worker_timeout: float = flag(
        300.0,
        "Seconds that a worker in TF_CONFIG's cluster waits for the others.",
        "Devices",
        lower=1.0,
        upper=1e6,
    )
    tuning: Tuning = Tuning()
    adapter: Optional[AdapterConfig] = AdapterConfig()
    given_flags: FrozenSet[str] = frozenset()

    @classmethod
    def define_flags(cls, flag_values: flags.FlagValues = flags.FLAGS) -> None:
        """Defines the flags of all fields, of `Tuning` and of `AdapterConfig`."""
        super().define_flags(flag_values)
        Tuning.define_flags(flag_values)
        AdapterConfig.define_flags(flag_values)

    @classmethod
    def from_flags(
        cls: Type[C], values: flags.FlagValues, supplied: Optional[Supplied] = None
    ) -> C:
        """Returns the settings of parsed flags; see `Settings.from_flags`."""
        config_values = cls.values_of(values, supplied)
        tuning_values, adapter_values = (
            settings_class.values_of(values, supplied) for settings_class in (Tuning, AdapterConfig)
        )
        for name, value in (
            ("adapter_layers", adapter_values["layers"]),
            ("layer_norms", config_values["layer_norms"]),
        ):
            if value is not None and tuning_values["method"] != "adapters":
                raise UserError(
                    f"--{name}={values[name].value} requires --tuning=adapters; got"
                    f" --tuning={tuning_values['method']}."
                )
        layer_norms = config_values["layer_norms"] or (
            "adapted" if adapter_values["layers"] else "all"
        )
        adapter_config: Optional[AdapterConfig] = AdapterConfig(**adapter_values)
        given_flags = frozenset(name for name in values if values[name].present)
        if tuning_values["method"] != "adapters":
            for name in sorted(given_flags):
                if name.startswith("adapter_"):
                    logging.warning(
                        "--%s=%s is ignored: --tuning=%s has no adapters.",
                        name,
                        values[name].value,
                        tuning_values["method"],
                    )
            adapter_config = None
        if tuning_values["train_pooler"] and tuning_values["method"] in configs.BERT_METHODS:
            logging.warning(
                "--train_pooler has no effect: --tuning=%s always trains the pooler.",
                tuning_values["method"],
            )
        return cls(
            **config_values,
            tuning=Tuning(**tuning_values, layer_norms=layer_norms),
            adapter=adapter_config,
            given_flags=given_flags,
        )

    def __post_init__(self) -> None:
        stages = self.stages
        if self.distribution != "none" and self.use_tpu:
            raise UserError(
                f"--distribution={self.distribution} is for GPUs and CPUs, --use_tpu=True for a"
                " TPU; give only one."
            )
        if "train" in stages:
            self._check_schedule()
            self._check_accumulation()
        if self.adapter and self.adapter.is_none:
            raise UserError(
                f"--tuning=adapters requires an adapter, but --adapter_fn={self.adapter.fn} is"
                " none; to train BERT without adapters, choose --tuning=full."
            )
        for name in ("eval_every_steps", "keep_best", "early_stopping_patience"):
            if getattr(self, name) and "train" in stages and "eval" not in stages:
                raise UserError(f"--{name} requires --do_eval, which reads the dev set.")
        if "train" not in stages:
            for name in sorted(self.given_flags & _TRAINING_FLAGS):
                if getattr(self, name):
                    logging.warning("--%s has no effect without --do_train.", name)

    def _check_schedule(self) -> None:
        rate, epochs = self.rate_and_epochs()
        for name, value in (("learning_rate", rate), ("num_train_epochs", epochs)):
            if not 0 < value < math.inf:
                raise UserError(f"--{name} must be a finite number above 0, but is {value}.")
        if not 0 <= self.warmup_proportion < 1:
            raise UserError(
                f"--warmup_proportion must be in [0, 1), but is {self.warmup_proportion}."
            )

    def _check_accumulation(self) -> None:
        parts, batch_size = self.gradient_accumulation_steps, self.train_batch_size
        if batch_size % parts:
            raise UserError(
                f"--gradient_accumulation_steps={parts} does not divide"
                f" --train_batch_size={batch_size} into equal parts."
            )
        normalization = self.adapter and self.adapter.normalization
        if normalization == "batch" and parts == batch_size:
            raise UserError(
                "--adapter_normalization=batch needs more than one row per part, but"
                f" --gradient_accumulation_steps={parts} splits --train_batch_size={batch_size}"
                " into single rows."
            )

    @property
    def stages(self) -> List[str]:
        """The stages to run, from train, eval and predict; train and eval if no flag names one.

        Raises:
          UserError: flags turn all stages off.
        """
        requested = {"train": self.do_train, "eval": self.do_eval, "predict": self.do_predict}
        selected = [stage for stage in requested if requested[stage]]
        if not selected and any("do_" + stage in self.given_flags for stage in requested):
            raise UserError("Nothing to do: --do_train, --do_eval and --do_predict are all off.")
        return selected or ["train", "eval"]

    @property
    def keeps_best(self) -> bool:
        """Returns whether the best evaluated adapter is kept instead of the last one."""
        return self.keep_best or self.early_stopping_patience > 0

    def choose_score(self, names: Sequence[str], default: str) -> str:
        """Returns --metric, or else the default; raises UserError unless it is of the names."""
        if self.metric is not None and self.metric not in names:
            raise UserError(f"--metric={self.metric}: expected one of {', '.join(names)}.")
        return self.metric or default

    @property
    def eval_batch_size(self) -> int:
        """Examples per evaluation batch, for scripts without --eval_batch_size."""
        return self.predict_batch_size

    def folder_of(self, task: str) -> str:
        """Returns --output_dir, by default a folder of its own for each task and method."""
        return self.output_dir or default_folder(task, self.tuning.method)

    @classmethod
    def recorded_names(cls) -> Dict[str, str]:
        """Returns recorded setting → what errors call it, also for a task's and `Tuning`'s."""
        of_task = {"task": "task", "kind": "kind of task", "labels": "labels"}
        return {**of_task, **Tuning.recorded_names(), **super().recorded_names()}

    def schedule(self, num_examples: int) -> Dict[str, Any]:
        """Returns the learning rate and the number of steps, as fields of `ModelSettings`.

        Args:
          num_examples: size of the training set.

        Raises:
          UserError: there is less than one step, or too many.
        """
        rate, epochs = self.rate_and_epochs()
        for name, value in (("learning_rate", rate), ("num_train_epochs", epochs)):
            if getattr(self, name) is None:
                method = self.tuning.method
                logging.info("--%s: %g, the default for --tuning=%s", name, value, method)
        num_steps = num_examples / self.train_batch_size * epochs
        if num_steps < 1:
            raise UserError(
                f"{num_examples} training examples in batches of {self.train_batch_size} for"
                f" {epochs} epochs make less than one step: lower --train_batch_size or raise"
                " --num_train_epochs."
            )
        if num_steps > _MAX_STEPS:
            raise UserError(
                f"--num_train_epochs={epochs:g} makes {num_steps:g} steps of --train_batch_size="
                f"{self.train_batch_size}; expected at most {_MAX_STEPS}."
            )
        num_train_steps = int(num_steps)
        return {
            "learning_rate": rate,
            "num_train_steps": num_train_steps,
            "num_warmup_steps": int(num_train_steps * self.warmup_proportion),
        }

    def evaluation_interval(self, num_examples: int) -> int:
        """Returns the number of training steps between evaluations; 0 for none."""
        if self.eval_every_steps or not self.keeps_best:
            return self.eval_every_steps
        return max(1, num_examples // self.train_batch_size)

    def rate_and_epochs(self) -> Tuple[float, float]:
        """Returns --learning_rate and --num_train_epochs, by default those of the method."""
        rate, epochs = default_schedule(self.tuning.method)
        rate = rate if self.learning_rate is None else self.learning_rate
        return rate, epochs if self.num_train_epochs is None else self.num_train_epochs


def check_task_name(flag: str, name: str) -> None:
    """Raises UserError unless a flag's value may be the name of a task, and of its folder."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--{flag}={name}: expected letters, digits, '_', '.' and '-'.")


def default_folder(task: str, method: str) -> str:
    """Returns the default of --output_dir: a folder of its own for each task and method."""
    return os.path.join("output", task if method == "adapters" else f"{task}_{method}")


def adapter_flags(tuning: Tuning, adapter: Optional[AdapterConfig]) -> Dict[str, Any]:
    """Returns the flags that yield these settings, a dict from names to values."""
    values: Dict[str, Any] = {
        "num_top_layers": tuning.num_top_layers,
        "train_pooler": tuning.train_pooler,
    }
    if adapter:
        values["layer_norms"] = tuning.layer_norms
        for field in dataclasses.fields(adapter):
            values["adapter_" + field.name] = getattr(adapter, field.name)
    return values
