"""Finds and loads the pretrained BERT that settings name: config, weights and tokenizer."""

import posixpath
from typing import Dict, Tuple

from absl import logging

from adapter_bert import tokenization
from adapter_bert.files import gfile, paths
from adapter_bert.model import configs
from adapter_bert.shell.errors import UserError
from adapter_bert.training.config import PretrainedConfig, TokenizerConfig


def load(
    config: TokenizerConfig,
) -> Tuple[configs.PretrainedBert, tokenization.FullTokenizer]:
    """Returns the pretrained BERT and its tokenizer, after checking that they belong together.

    Args:
      config: `TokenizerConfig`.

    Returns:
      (`configs.PretrainedBert`, `tokenization.FullTokenizer`).

    Raises:
      UserError: a file is missing, broken or belongs to another model.
    """
    bert = find(config)
    vocab_file = str(bert.vocab_file)
    lower_case = config.do_lower_case
    if bert.do_lower_case not in (None, lower_case):
        raise UserError(
            f"--do_lower_case={lower_case} contradicts"
            f" --bert_hub_module_handle={config.bert_hub_module_handle}, whose value is"
            f" {bert.do_lower_case}."
        )
    tokenization.validate_case_matches_checkpoint(lower_case, bert.init_checkpoint)
    tokenizer = tokenization.FullTokenizer(
        vocab_file, lower_case, spm_model_file=config.spm_model_file
    )
    tokenizer.check_special_tokens()
    tokenization.check_vocab_casing(tokenizer.vocab, lower_case, vocab_file)
    tokenization.check_vocab_size(tokenizer.vocab, bert.config.vocab_size, vocab_file)
    return bert, tokenizer


def find(
    config: PretrainedConfig, reads_texts: bool = True, reads_checkpoint: bool = True
) -> configs.PretrainedBert:
    """Returns the `configs.PretrainedBert` that settings name.

    Args:
      config: `PretrainedConfig`.
      reads_texts: bool; if False, the vocabulary is optional: None unless a flag names it.
      reads_checkpoint: bool; if False, the checkpoint may be missing, and TensorFlow is not
        imported unless a flag names a hub module.

    Raises:
      UserError: a file is missing, or the weights do not match the config.
    """
    if config.bert_hub_module_handle:
        return _from_hub(config)
    config_file = paths.find_bert("bert_config_file", config.bert_config_file)
    vocab_file = config.spm_model_file or config.vocab_file
    if reads_texts and not vocab_file:
        vocab_file = paths.find_bert("vocab_file", None)
        if posixpath.dirname(vocab_file) != posixpath.dirname(config_file):
            logging.warning(
                "--vocab_file is not set, and %s is not in the folder of --bert_config_file: with"
                " another BERT's vocabulary, token ids are wrong.",
                vocab_file,
            )
    bert = configs.PretrainedBert(
        config=configs.BertConfig.from_json_file(config_file),
        vocab_file=vocab_file,
        init_checkpoint=paths.find_bert("init_checkpoint", config.init_checkpoint),
        do_lower_case=None,
        config_file=config_file,
    )
    if reads_checkpoint:
        from adapter_bert.formats import checkpoints

        checkpoints.check_encoder(bert.init_checkpoint, bert.config)
    return bert


def _from_hub(config: PretrainedConfig) -> configs.PretrainedBert:
    conflicting_flags = [
        "--" + name for name in (*paths.BERT_FILES, "spm_model_file") if getattr(config, name)
    ]
    if conflicting_flags:
        raise UserError(
            "--bert_hub_module_handle replaces {}: give one or the other.".format(
                ", ".join(conflicting_flags)
            )
        )
    return read_hub_bert(str(config.bert_hub_module_handle))


def read_hub_bert(handle: str) -> configs.PretrainedBert:
    """Returns a BERT of TensorFlow Hub; raises UserError, also if TensorFlow is missing."""
    try:
        from adapter_bert.formats import tfhub
    except ImportError:
        raise UserError(
            f"--bert_hub_module_handle={handle} requires TensorFlow, which is not installed."
        ) from None
    return tfhub.read_bert(handle)


def recorded_flags(config: PretrainedConfig, bert: configs.PretrainedBert) -> Dict[str, str]:
    """Returns the flags that locate a BERT from any working directory, which a run records.

    Args:
      config: `PretrainedConfig`.
      bert: the `configs.PretrainedBert` of `config`.

    Returns:
      dict from names to paths or addresses.
    """
    handle = config.bert_hub_module_handle
    if handle:
        is_folder = gfile.isdir(handle)
        return {"bert_hub_module_handle": gfile.absolute(handle) if is_folder else handle}
    recorded = {
        "bert_config_file": bert.config_file,
        "spm_model_file" if config.spm_model_file else "vocab_file": bert.vocab_file,
        "init_checkpoint": bert.init_checkpoint,
    }
    return {flag: gfile.absolute(path) for flag, path in recorded.items() if path}


def check_sequence_length(length: int, config: configs.BertConfig) -> None:
    """Raises UserError if --max_seq_length is too short for a text or too long for the model.

    Args:
      length: --max_seq_length.
      config: `configs.BertConfig`.
    """
    if length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length={length} exceeds the {config.max_position_embeddings} positions"
            " that the BERT was trained with (max_position_embeddings)."
        )
    if length < configs.MIN_SEQ_LENGTH:
        raise UserError(
            f"--max_seq_length={length} is too short; expected at least {configs.MIN_SEQ_LENGTH}."
        )
