"""The flags that name the pretrained BERT, and what they become: its config, weights, tokenizer.

As of all flags here, a function that a script's main module calls defines them, and functions that
take the parsed values read them: nothing depends on a global, and scripts can be imported together.
"""

import os

from absl import flags

import tokenization
from adapter_bert.common import configs, files, paths
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints, tfhub
from adapter_bert.training import feature_cache


def define(flag_values):
    """Defines those of a BERT that reads texts."""
    define_pretrained(flag_values)
    flags.DEFINE_bool(
        "do_lower_case",
        True,
        "Lower-case the text: True for uncased models, else False.",
        **section("Pretrained BERT", flag_values),
    )


def define_pretrained(flag_values):
    """Defines those that say where it lies."""
    at = section("Pretrained BERT", flag_values)
    bert = " Default: from $BERT_BASE_DIR, else what `make demo` prepared."
    flags.DEFINE_string("bert_config_file", None, "bert_config.json of the BERT." + bert, **at)
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary of the BERT." + bert, **at)
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Prefix of the pretrained TensorFlow checkpoint. To evaluate or predict without --adapter,"
        " run_classifier.py and run_squad.py also accept a run's folder or checkpoint." + bert,
        **at,
    )
    flags.DEFINE_string(
        "bert_hub_module_handle",
        None,
        "TF-Hub module (address or folder) to take weights, config and vocabulary from, in place"
        " of --bert_config_file, --vocab_file and --init_checkpoint.",
        **at,
    )
    flags.DEFINE_string(
        "spm_model_file", None, "SentencePiece model, in place of --vocab_file.", **at
    )


def define_feature_cache(flag_values):
    """Defines the flag that says where texts are kept once they are read."""
    flags.DEFINE_string(
        "feature_cache_dir",
        None,
        "Where texts are kept as token ids, to be read the next time. Default:"
        " ~/.cache/adapter-bert/features; none keeps nothing.",
        **section("Task and data", flag_values),
    )


def feature_folder(values):
    """Where --feature_cache_dir keeps features; None for nowhere."""
    if values.feature_cache_dir == "none":
        return None
    return values.feature_cache_dir or feature_cache.default_folder()


def pretrained_bert(values):
    """Finds the pretrained BERT, and makes its tokenizer; its parts must belong together.

    Args:
      values: parsed flags of `define`.

    Returns:
      (`checkpoints.PretrainedBert`, `tokenization.FullTokenizer`).

    Raises:
      UserError: something is missing, broken or of another model.
    """
    bert = find_pretrained(values)
    lower_case = values.do_lower_case
    if bert.do_lower_case not in (None, lower_case):
        raise UserError(
            f"--do_lower_case={lower_case} does not fit"
            f" --bert_hub_module_handle={values.bert_hub_module_handle}, which says"
            f" {bert.do_lower_case}."
        )
    tokenization.validate_case_matches_checkpoint(lower_case, bert.init_checkpoint)
    tokenizer = tokenization.FullTokenizer(
        bert.vocab_file, lower_case, spm_model_file=values.spm_model_file
    )
    tokenizer.check_special_tokens()
    tokenization.check_vocab_casing(tokenizer.vocab, lower_case, bert.vocab_file)
    tokenization.check_vocab_size(tokenizer.vocab, bert.config.vocab_size, bert.vocab_file)
    return bert, tokenizer


def find_pretrained(values, reads_texts=True):
    """The `checkpoints.PretrainedBert` that the flags of `define_pretrained` name.

    Args:
      values: parsed flags.
      reads_texts: bool; else its vocabulary may be missing, and is None unless a flag names it.

    Raises:
      UserError: something is missing, or the weights are not those of the config.
    """
    if values.bert_hub_module_handle:
        return _from_hub(values)
    config_file = paths.find_bert("bert_config_file", values.bert_config_file)
    vocab_file = values.spm_model_file or values.vocab_file
    if reads_texts and not vocab_file:
        vocab_file = paths.find_bert("vocab_file", None)
    bert = checkpoints.PretrainedBert(
        config=configs.BertConfig.from_json_file(config_file),
        vocab_file=vocab_file,
        init_checkpoint=paths.find_bert("init_checkpoint", values.init_checkpoint),
        do_lower_case=None,
        config_file=config_file,
    )
    checkpoints.check_encoder(bert.init_checkpoint, bert.config)
    return bert


def _from_hub(values):
    given = ["--" + name for name in (*paths.BERT_FILES, "spm_model_file") if getattr(values, name)]
    if given:
        raise UserError(
            "--bert_hub_module_handle takes the place of {}: give one or the other.".format(
                ", ".join(given)
            )
        )
    return tfhub.read_bert(values.bert_hub_module_handle)


def recorded_flags(values, bert):
    """Returns the flags that name a BERT from any folder, as `take_recorded_flags` reads them.

    Args:
      values: parsed flags.
      bert: the `checkpoints.PretrainedBert` that they name.

    Returns:
      dict from names to paths or addresses.
    """
    handle = values.bert_hub_module_handle
    if handle:
        is_folder = files.isdir(handle)
        return {"bert_hub_module_handle": _absolute(handle) if is_folder else handle}
    return {
        "bert_config_file": _absolute(bert.config_file),
        "spm_model_file" if values.spm_model_file else "vocab_file": _absolute(bert.vocab_file),
        "init_checkpoint": _absolute(bert.init_checkpoint),
    }


def _absolute(path):
    return path if files.is_remote(path) else os.path.abspath(path)


def take_recorded_flags(values, recorded):
    """Lets the flags name the BERT of a run, in place of the run that --init_checkpoint names.

    Flags that are given stay. Where the run does not tell, or its files are gone, the checkpoint
    beside --bert_config_file is taken, or else that of `paths.find_bert`.

    Args:
      values: parsed flags.
      recorded: what `recorded_flags` gave when the run was trained; {} if it does not tell.
    """
    values["init_checkpoint"].value = None
    if values.bert_hub_module_handle:
        return
    recorded = {flag: path for flag, path in recorded.items() if isinstance(path, str)}
    vocabulary = values.vocab_file or values.spm_model_file
    handle = recorded.get("bert_hub_module_handle")
    if handle and not (values.bert_config_file or vocabulary):
        values["bert_hub_module_handle"].value = handle
        return
    given = {"vocab_file": vocabulary, "spm_model_file": vocabulary, "init_checkpoint": None}
    given["bert_config_file"] = values.bert_config_file
    for flag, path in recorded.items():
        if flag not in given or given[flag]:  # A TF-Hub address is no path to ask for.
            continue
        if files.exists(path) or files.exists(path + ".index"):
            values[flag].value = path
    if values.bert_config_file and not values.init_checkpoint:
        folder = os.path.dirname(values.bert_config_file)
        prefix = os.path.join(folder, paths.BERT_FILES["init_checkpoint"])
        if files.exists(prefix + ".index"):
            values["init_checkpoint"].value = prefix


def check_sequence_length(values, config, shortest):
    """Raises UserError unless --max_seq_length has room for a text and the model for it."""
    length = values.max_seq_length
    if length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length={length} is over the {config.max_position_embeddings} positions"
            " that the BERT was trained with (max_position_embeddings)."
        )
    if length < shortest:
        raise UserError(f"--max_seq_length={length} is too short, it must be {shortest} or more.")
