"""Predicts texts with a task adapter, as a Python function.

    paraphrase = Predictor("output/demo/adapter")
    paraphrase("The firm sold it.", "It was sold by the firm.")
    # {"label": "1", "probabilities": {"0": 0.43, "1": 0.57}}
    paraphrase.predict(pairs), paraphrase.predict_proba(pairs)  # As in scikit-learn.

ONNX Runtime computes; TensorFlow is needed only to convert a BERT at its first use.
"""

import functools
import itertools
import os
import posixpath
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from adapter_bert.files import gfile, json_objects, paths
from adapter_bert.formats import adapter_folders, bert_folders, hub, task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.serving.inference import bank, request_texts
from adapter_bert.shell.errors import UserError
from adapter_bert.training import pretrained

_Path = Union[str, "os.PathLike[str]"]
_CHUNK_SIZE = 1024  # Texts; 32 batches, so that texts of about one length share a batch.
_MAX_CHARACTERS = 1 << 30  # No limit: only a server needs one.


class BertFiles(NamedTuple):
    """The files of a pretrained BERT.

    Attributes:
      init_checkpoint: prefix of the checkpoint.
      vocab_file: path of the WordPiece vocabulary, or of a SentencePiece model.
      is_sentencepiece: whether vocab_file is a SentencePiece model.
    """

    init_checkpoint: str
    vocab_file: str
    is_sentencepiece: bool = False


class Predictor:
    """Predicts a task's texts. Any thread may call it.

    Args:
      adapter: folder of a task adapter, or of the run that wrote it; or hf://owner/name[@revision].
      bert: the BERT that it was trained on, as in --bert: a folder in any format, or
        hf://owner/name[@revision]; in Google's format, vocab.txt, and bert_model.ckpt or
        backbone.onnx suffice. Default: the run's BERT, else $BERT_BASE_DIR, else the demo's BERT.
      precision: see `AdapterBank`.
      num_threads: see `AdapterBank`.

    Attributes:
      description: `task_adapter.Description`.
      labels: the task's labels, a list of str, in the order of `predict_proba`; [] of a regression
        and of questions.
      bert: `BertFiles`.

    Raises:
      UserError: the adapter's config is damaged; its BERT is not found, or is another one. Damaged
        tensors raise it in the first call, which reads them.
    """

    def __init__(
        self,
        adapter: _Path,
        bert: Union[_Path, BertFiles, None] = None,
        *,
        precision: str = "float32",
        num_threads: Optional[int] = None,
    ):
        folder = hub.local_folder(os.fspath(adapter), "Folder")
        folder = gfile.absolute(folder)  # The working directory may change.
        folder = min(
            adapter_folders.candidates(folder),
            key=lambda path: posixpath.basename(path).isdigit(),  # A run comes before uploads.
            default=folder,
        )
        self.description = task_adapter.describe(folder, "Folder")
        self.labels = list(self.description.labels)
        self._kind = task_kinds.get(self.description.kind)
        backbone = self.description.backbone
        config = backbone.bert_config()
        self.bert = bert if isinstance(bert, BertFiles) else _find_bert(folder, bert)
        options: Dict[str, Any] = {"precision": precision, "num_threads": num_threads}
        self._make = functools.partial(type(self), folder, self.bert, **options)
        tokenizers = request_texts.Tokenizers(self.bert.vocab_file, self.bert.is_sentencepiece)
        encoding = request_texts.TextEncoding(config, tokenizers, _MAX_CHARACTERS)
        self._texts = request_texts.TaskTexts(self.description, encoding, f"Folder {folder}")
        self._bank = bank.AdapterBank(config, self.bert.init_checkpoint, **options)
        try:
            self._bank.add(self.description.task, folder, lazy=True)
        except UserError as error:
            if bert is None and self._bank.backbone.fingerprint != backbone.fingerprint:
                raise UserError(f"{str(error).rstrip('.')}; set bert= to its BERT.") from None
            raise

    def __reduce__(self) -> Any:
        return self._make, ()  # Another process makes its own sessions.

    def __call__(self, *texts: Any, **fields: Any) -> Any:
        """Predicts one instance, or several.

        Args:
          *texts: the task's texts, such as a sentence, a pair, or a question and its context; or
            one instance, a text, a tuple of texts or a dict of `fields`; or several instances, as
            in `predict`.
          **fields: the texts by name, such as question and context; or tokens, the list of words of
            a sentence to tag.

        Returns:
          The prediction in the server's format, a dict, or a number for a regression. For several
          instances, a list of predictions.

        Raises:
          UserError: the texts are not an instance of this task.
        """
        if len(texts) == 1 and not fields:
            if isinstance(texts[0], (dict, tuple)):
                return self._answer([texts[0]])[0]
            if not isinstance(texts[0], str) and hasattr(texts[0], "__iter__"):
                return list(self._answers(texts[0]))
        return self._answer([self._instance(texts, fields)])[0]

    def predict(self, texts: Iterable[Any]) -> List[Any]:
        """Predicts any number of texts, of which 1,024 at a time are in memory with their outputs.

        Args:
          texts: list, tuple, generator, NumPy array or pandas.Series of str; of pairs and
            questions, of tuples, as ("question", "context"); of sentences to tag, also of lists of
            words. Or a pandas.DataFrame, whose columns have the names of the task's texts, as
            "text" and "text_b", or of those that it was trained on; it may have others.

        Returns:
          A list with a prediction for each text: its label, a str; for a regression its number; for
          multi-label classification the list of its labels; for a sentence the list of its words'
          tags; for a question its answer, "" if there is none.

        Raises:
          UserError: the texts are not those of this task; it names the first row that is not.
        """
        name = self._kind.predicted
        return [answer if name is None else answer[name] for answer in self._answers(texts)]

    def predict_proba(self, texts: Iterable[Any]) -> np.ndarray:
        """Computes the probabilities of the labels; see `predict`.

        Args:
          texts: as in `predict`.

        Returns:
          float32 [N, L] for N texts and the L `labels`. For multi-label classification each label
          has a probability of its own; otherwise they sum to 1.

        Raises:
          UserError: as in `predict`; or the task is a regression, or predicts tags or answers.
        """
        name = "probabilities"
        if name not in self._kind.answer_types:
            raise UserError(
                f"The task {self.description.task} is of the kind {self._kind.name}, which has no"
                " probabilities of labels; use predict."
            )
        rows = [list(answer[name].values()) for answer in self._answers(texts)]
        return np.array(rows, np.float32).reshape(len(rows), len(self.labels))

    def _answers(self, texts: Iterable[Any]) -> Iterator[Any]:
        """Yields the prediction of each instance, computed in chunks."""
        if isinstance(texts, (str, bytes, dict)) or not hasattr(texts, "__iter__"):
            raise UserError(
                f"found a {type(texts).__name__}; expected a list of texts, such as"
                ' ["a text"], or a column of a table.'
            )
        rows = self._rows_of(texts) if hasattr(texts, "columns") else texts
        instances = map(self._as_instance, rows)
        for first in itertools.count(0, _CHUNK_SIZE):
            chunk = list(itertools.islice(instances, _CHUNK_SIZE))
            if not chunk:
                return
            yield from self._answer(chunk, first)

    def _rows_of(self, frame: Any) -> Iterable[Any]:
        """Returns the tuples of texts, or the lists of words, in the rows of a DataFrame."""
        names, fields = list(frame.columns), self._texts.fields
        answers = self.description.training.get("answers", {})
        if task_kinds.is_custom(self.description.training) and answers["text_column"] in names:
            columns = [answers.get(f"{field}_column") for field in fields]
        elif self._kind.words_field in names and fields[0] not in names:
            return frame[self._kind.words_field]
        else:
            columns = list(fields)
        columns = [name for name in columns if names.count(name) == 1]
        if not columns:
            raise UserError(
                f"found the columns {', '.join(map(str, names))}; expected {' and '.join(fields)}"
            )
        return zip(*(frame[name] for name in columns))

    def _as_instance(self, value: Any) -> Any:
        """Returns a list or array as the words of a sentence, or else as a tuple of texts."""
        if isinstance(value, (str, dict, tuple)):
            return value
        if not isinstance(value, (list, np.ndarray)):
            return (value,)  # The error then names the field.
        words = self._kind.words_field
        return {words: list(value)} if words else tuple(value)

    def _instance(self, texts: Tuple[Any, ...], fields: Any) -> Any:
        names = self._texts.fields
        if len(texts) > len(names):
            raise UserError(f"found {len(texts)} texts; expected {' and '.join(names)}")
        named = dict(zip(names, texts))
        for name in sorted(set(named) & set(fields)):
            raise UserError(f"found {name} twice; expected each text once")
        return {**named, **fields}

    def _answer(self, instances: List[Any], first: int = 0) -> List[Any]:
        """Returns the predictions of instances; errors count these from `first`."""
        requests = []
        for index, instance in enumerate(instances, start=first):
            try:
                if isinstance(instance, tuple):
                    instance = self._instance(instance, {})
                requests.append(self._texts.encode(instance))
            except UserError as error:
                raise UserError(f"Instance {index}: {error}.") from None
        task = self.description.task
        outputs = iter(
            self._bank.predict(bank.Row(task, *ids) for request in requests for ids in request.rows)
        )
        return [request.decode([next(outputs) for _ in request.rows]) for request in requests]


def _find_bert(folder: str, bert: Optional[_Path]) -> BertFiles:
    """Returns the `BertFiles` in a folder, or else the one for the task adapter in a folder."""
    if bert is None:
        recorded = _recorded_bert(folder)
        if recorded:
            return recorded
        checkpoint, vocabulary = (
            paths.find_bert(name, None, "bert=") for name in ("init_checkpoint", "vocab_file")
        )
        return BertFiles(gfile.absolute(checkpoint), vocabulary)
    bert = bert_folders.local_folder(os.fspath(bert), "bert")
    if bert_folders.is_module(bert):
        return _hub_files(bert)
    checkpoint, vocabulary = (paths.BERT_FILES[name] for name in ("init_checkpoint", "vocab_file"))
    return BertFiles(posixpath.join(bert, checkpoint), posixpath.join(bert, vocabulary))


def _recorded_bert(folder: str) -> Optional[BertFiles]:
    """Returns the `BertFiles` of the run that wrote an adapter, or None if its files are gone."""
    path = posixpath.join(posixpath.dirname(folder.rstrip("/")), paths.SETTINGS_FILE)
    try:
        recorded = json_objects.read_object(path).get("pretrained")
    except UserError:
        return None
    if not isinstance(recorded, dict):
        return None
    recorded = {name: value for name, value in recorded.items() if isinstance(value, str)}
    names = ("bert_hub_module_handle", "init_checkpoint", "spm_model_file", "vocab_file")
    locations = [recorded[name] for name in names if name in recorded]
    if any(map(gfile.is_remote, locations)) and not gfile.is_remote(folder):
        return None  # A downloaded folder must not name what else to download.
    handle = recorded.get("bert_hub_module_handle")
    if handle:
        if handle.startswith("/") and not gfile.isdir(handle):
            return None
        return _hub_files(handle)
    checkpoint = recorded.get("init_checkpoint")
    sentencepiece = recorded.get("spm_model_file")
    vocabulary = sentencepiece or recorded.get("vocab_file")
    if not checkpoint or not vocabulary:
        return None
    from adapter_bert.formats import onnx_backbone  # Here, as Python 3.7 has no ONNX.

    converted = posixpath.join(posixpath.dirname(checkpoint), onnx_backbone.FILE)
    has_weights = any(map(gfile.exists, (checkpoint + ".index", checkpoint, converted)))
    if not gfile.exists(vocabulary) or not has_weights:
        pretrained.check_conversion(recorded, f"Folder {folder}", "set bert=")
        return None
    return BertFiles(checkpoint, vocabulary, bool(sentencepiece))


def _hub_files(handle: str) -> BertFiles:
    """Returns the `BertFiles` of a TF-Hub module."""
    bert = pretrained.read_hub_bert(handle)
    assert bert.vocab_file is not None
    return BertFiles(bert.init_checkpoint, bert.vocab_file)
