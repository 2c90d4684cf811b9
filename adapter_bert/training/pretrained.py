"""Finds and loads the pretrained BERT that settings name: config, weights and tokenizer."""

import os
import posixpath
from typing import Dict, Tuple

from absl import logging

from adapter_bert import tokenization
from adapter_bert.files import gfile, paths
from adapter_bert.formats import bert_folders, huggingface_tokenizer
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
        flag = "bert" if config.bert else "bert_hub_module_handle"
        raise UserError(
            f"--do_lower_case={lower_case} contradicts --{flag}={getattr(config, flag)}, whose"
            f" value is {bert.do_lower_case}."
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
    do_lower_case = None
    if config.bert:
        folder = local_folder(config)
        do_lower_case = huggingface_tokenizer.lower_case_of(folder)
        config = PretrainedConfig(**location_flags(folder))
    if config.bert_hub_module_handle:
        _check_alone(config, "bert_hub_module_handle")
        return read_hub_bert(config.bert_hub_module_handle)
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
        do_lower_case=do_lower_case,
        config_file=config_file,
    )
    if reads_checkpoint:
        from adapter_bert.formats import checkpoints

        checkpoints.check_encoder(bert.init_checkpoint, bert.config)
    return bert


def local_folder(config: PretrainedConfig) -> str:
    """Returns the local folder of the BERT that --bert names; see `bert_folders.local_folder`.

    Raises:
      UserError: other flags name a BERT, too; or see there.
    """
    _check_alone(config, "bert")
    return bert_folders.local_folder(str(config.bert), "--bert")


def location_flags(folder: str) -> Dict[str, str]:
    """Returns the flags that --bert replaces, for a result of `local_folder`."""
    if bert_folders.is_module(folder):
        return {"bert_hub_module_handle": folder}
    return {flag: posixpath.join(folder, name) for flag, name in paths.BERT_FILES.items()}


def _check_alone(config: PretrainedConfig, flag: str) -> None:
    """Raises UserError if further flags name the BERT that a flag names."""
    names = (*paths.BERT_FILES, "spm_model_file", "bert_hub_module_handle")
    others = ["--" + name for name in names if name != flag and getattr(config, name)]
    if others:
        raise UserError(f"--{flag} replaces {', '.join(others)}: give one or the other.")


def is_lower_cased(bert: configs.PretrainedBert) -> bool:
    """Returns whether a BERT's texts are lower-cased: as it says, else by its vocabulary and name.

    Raises:
      UserError: the vocabulary is missing or damaged.
    """
    if bert.do_lower_case is not None:
        return bert.do_lower_case
    vocab_file = str(bert.vocab_file)
    vocabulary = tokenization.load_vocab(vocab_file)
    try:
        tokenization.validate_case_matches_checkpoint(True, bert.init_checkpoint)
        tokenization.check_vocab_casing(vocabulary, True, vocab_file)
    except UserError:
        return False
    return True


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
    handle = config.bert_hub_module_handle or (None if bert.config_file else config.bert)
    if handle:
        is_folder = gfile.isdir(handle)
        return {"bert_hub_module_handle": gfile.absolute(handle) if is_folder else handle}
    recorded = {
        "bert_config_file": bert.config_file,
        "spm_model_file" if config.spm_model_file else "vocab_file": bert.vocab_file,
        "init_checkpoint": bert.init_checkpoint,
    }
    located = {flag: gfile.absolute(path) for flag, path in recorded.items() if path}
    source = bert_folders.source_of(posixpath.dirname(str(bert.config_file)))
    return {**located, "bert": source} if source else located


def check_conversion(recorded: Dict[str, str], where: str, advice: str) -> None:
    """Checks that a BERT was not converted into a cache folder that is gone now.

    $BERT_BASE_DIR replaces a BERT that is gone.

    Args:
      recorded: see `recorded_flags`.
      where: begins the error.
      advice: what to do; the source of the conversion follows it.

    Raises:
      UserError: it was; the text names its source.
    """
    source, checkpoint = recorded.get("bert"), recorded.get("init_checkpoint", "")
    is_gone = source and not gfile.exists(posixpath.dirname(checkpoint))
    if is_gone and not os.environ.get("BERT_BASE_DIR"):
        raise UserError(
            f"{where}: its BERT, converted from {source}, is no longer at {checkpoint}; to convert"
            f" it again, {advice}{source}."
        )


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
