"""Downloads BERTs and task adapters from the Hugging Face Hub, hf://owner/name[@revision]; uploads.

Only this module needs the package huggingface_hub, which caches downloads and reads $HF_ENDPOINT,
$HF_TOKEN and $HF_HUB_OFFLINE.
"""

import contextlib
import os
import re
from typing import Any, Iterator, Optional, Sequence, Tuple

from absl import logging

from adapter_bert.files import atomic, gfile, paths
from adapter_bert.formats import card, huggingface, huggingface_tokenizer, task_adapter
from adapter_bert.shell import extras
from adapter_bert.shell.errors import UserError

_SCHEME = "hf://"
_FILES = (*task_adapter.FILES, card.FILE)


def local_folder(path: str, flag: str) -> str:
    """Downloads a task adapter if the path is an address on the Hub; returns the local folder.

    Args:
      path: a folder, or hf://owner/name[@revision]; a revision is a branch, a tag or a commit.
      flag: what errors call the path.

    Raises:
      UserError: the address is invalid, cannot be downloaded, or is not a task adapter.
    """
    if not path.startswith(_SCHEME):
        return path
    folder = _download(path, flag, _FILES)
    missing = [name for name in task_adapter.FILES if not gfile.exists(os.path.join(folder, name))]
    if missing:
        raise UserError(
            f"{flag} {path} is not a task adapter: it has no {' and no '.join(missing)}."
        )
    logging.info("Downloaded %s=%s to %s.", flag, path, folder)
    return folder


def is_address(path: str) -> bool:
    """Returns whether a path is an address on the Hub."""
    return path.startswith(_SCHEME)


def pin(address: str, flag: str) -> str:
    """Returns hf://owner/name@commit for the commit that an address refers to now.

    Args:
      address: of a model that has a config.json.
      flag: what errors call the address.

    Raises:
      UserError: the address is invalid, or the Hub cannot be asked.
    """
    repository, revision = _parse(address, flag)
    if not re.fullmatch("[0-9a-f]{40}", revision or ""):
        revision = os.path.basename(_download(address, flag, [huggingface.CONFIG]))
    return f"{_SCHEME}{repository}@{revision}"


def download_bert(address: str, flag: str) -> str:
    """Downloads a BERT in HuggingFace's format; returns the local folder.

    Args:
      address: as for `pin`.
      flag: what errors call the address.

    Raises:
      UserError: it cannot be downloaded, or its config is not that of a BERT.
    """
    folder = _download(address, flag, [huggingface.CONFIG, *huggingface_tokenizer.FILES])
    config_file = os.path.join(folder, huggingface.CONFIG)
    if gfile.exists(config_file):
        huggingface.read_config(config_file)  # Before the weights, which are large.
    for patterns in huggingface.WEIGHT_PATTERNS:
        folder = _download(address, flag, patterns)
        if huggingface.find_weights(folder, flag):
            break
    return folder


def _download(address: str, flag: str, patterns: Sequence[str]) -> str:
    """Downloads the files of a repository that match patterns; returns the local folder."""
    repository, revision = _parse(address, flag)
    with _as_user_errors(f"{flag} {address} cannot be downloaded"):
        return _library().snapshot_download(
            repository, revision=revision, allow_patterns=list(patterns)
        )


def name_of(path: str) -> Optional[str]:
    """Returns "name" for hf://owner/name[@revision]; None for a folder."""
    return _parse(path, "")[0].split("/")[1] if path.startswith(_SCHEME) else None


def push(folder: str, repository: str, *, private: bool = False) -> str:
    """Uploads a task adapter and its card to a repository; creates the repository if needed.

    Args:
      folder: folder of the task adapter; if it has no card, one is created on the Hub.
      repository: owner/name, or hf://owner/name.
      private: whether a new repository is private.

    Returns:
      The address with the new revision.

    Raises:
      UserError: the adapter is damaged, or has a link that leads out of its folder; the name of the
        repository is invalid; or the Hub rejects it.
    """
    if not repository.startswith(_SCHEME):
        repository = _SCHEME + repository
    repository, revision = _parse(repository, "REPOSITORY")
    if revision:
        raise UserError(f"REPOSITORY {repository}: expected owner/name without a revision.")
    adapter = task_adapter.load(folder, "ADAPTER_DIR")
    folder = atomic.current_folder(folder)
    contents = {}
    for name in _FILES:
        path = os.path.join(folder, name)
        if gfile.exists(path):
            paths.check_inside(folder, [path], "ADAPTER_DIR")  # Else a link publishes any file.
            contents[name] = gfile.read_bytes(path, f"ADAPTER_DIR {path}")
    if card.FILE not in contents:
        contents[card.FILE] = task_adapter.card_of(adapter).encode()
    library = _library()
    with _as_user_errors(f"REPOSITORY {repository}: the adapter cannot be uploaded"):
        api = library.HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(
            repository,
            [library.CommitOperationAdd(name, content) for name, content in contents.items()],
            commit_message=f"Task adapter {adapter.description.task}",
        )
    return f"{_SCHEME}{repository}@{commit.oid}"


def _parse(address: str, flag: str) -> Tuple[str, Optional[str]]:
    """Returns (owner/name, revision or None)."""
    name = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"  # Neither empty nor "..": it becomes a path.
    match = re.fullmatch(rf"hf://({name}/{name})(?:@({name}(?:/{name})*))?", address)
    if not match:
        raise UserError(f"{flag} {address}: expected hf://owner/name, or hf://owner/name@revision.")
    return match.group(1), match.group(2)


def _library() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # Read by the import.
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(
            f"{_SCHEME} requires the package huggingface_hub; run {extras.install_command('hub')}."
        ) from None
    return huggingface_hub


@contextlib.contextmanager
def _as_user_errors(what: str) -> Iterator[None]:
    """Converts all errors to UserError, as the library raises those of several HTTP packages."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{what} ({reason[:300]}).") from error
