"""A tagging task: settings, encoded sentences, and tags from predictions."""

import collections
import dataclasses
import itertools
import posixpath
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from absl import logging

from adapter_bert import tokenization
from adapter_bert.files import atomic, gfile, json_objects
from adapter_bert.files.paths import is_same_path
from adapter_bert.formats import task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import flag
from adapter_bert.tasks import caveats
from adapter_bert.tasks import splits as data_splits
from adapter_bert.tasks.tagging import (
    tag_schemes,
    tagging,
    tagging_data,
    tagging_features,
    tagging_report,
    tagging_scores,
)
from adapter_bert.tasks.text import classifier_data, classifier_results, custom_tasks
from adapter_bert.training import (
    evaluations,
    feature_cache,
    starting_point,
    stored_predictions,
)
from adapter_bert.training.config import SPLITS, EvaluationConfig, check_task_name
from adapter_bert.training.task import Evaluated, Tables, Task, short_examples

NAME = "tagging"  # The default of --task_name.
_EXTENSIONS = ("txt", "jsonl")
_PREDICTIONS = {"dev": "dev_predictions", "test": "predictions"}  # Their files, by split.
_DATA_FLAGS = ("data_dir", "train_file", "dev_file", "test_file")
_COLUMN_FLAGS = ("token_column", "tag_column")
_NO_SPANS = "none"  # Of --tag_scheme.


@dataclasses.dataclass(frozen=True)
class TaggerConfig(EvaluationConfig, data_splits.FoldsConfig):
    """The settings of run_tagger.py."""

    task_name: Optional[str] = flag(
        None,
        f"Name of the task in reports. Default: {NAME}.",
        "Task and data",
        records={"task": "task"},
    )
    data_dir: Optional[str] = flag(
        None,
        "Folder with one file per split: train.txt, dev.conll, test.jsonl, train.parquet, or"
        " eng.train, eng.testa, eng.testb; or of a saved DatasetDict.",
        "Task and data",
        is_input=True,
        records={"labels": "labels", "data": "the training data", "dev_data": "the dev data"},
    )
    train_file: Optional[str] = flag(
        None,
        "Tagged sentences for training; overrides --data_dir.",
        "Task and data",
        is_input=True,
        records={"data": "the training data"},
    )
    dev_file: Optional[str] = flag(
        None,
        "Tagged sentences to evaluate on; overrides --data_dir.",
        "Task and data",
        is_input=True,
        records={"dev_data": "the dev data"},
    )
    test_file: Optional[str] = flag(
        None,
        "Sentences to predict, with or without tags; overrides --data_dir.",
        "Task and data",
        is_input=True,
    )
    token_column: Optional[str] = flag(
        None,
        "Column of the words: a number from 1, or for .jsonl and .parquet files a key."
        " Default: 1, tokens.",
        "Task and data",
    )
    tag_column: Optional[str] = flag(
        None,
        "Column of the tags: a number from 1, or from -1 for the last, or for .jsonl and .parquet"
        " files a key. Default: -1, tags.",
        "Task and data",
    )
    tag_scheme: str = flag(
        "auto",
        "How tags mark spans of words, as B-PER and I-PER, or B and I without a type; auto detects"
        f" it. {_NO_SPANS}: tags are learned as they are, and not scored by F1.",
        "Task and data",
        choices=("auto", _NO_SPANS, *tag_schemes.SCHEMES),
    )
    max_seq_length: int = flag(
        128,
        "Tokens of a row; longer sentences are read in windows.",
        "Task and data",
        binds_evaluation=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tuning.train_pooler:
            raise UserError("--train_pooler: tagging does not use the pooler.")
        if self.task_name:
            check_task_name("task_name", self.task_name)

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task_name or NAME

    @property
    def answers(self) -> Dict[str, str]:
        """The flags that a task adapter records; see `trained_settings`."""
        values = {name: getattr(self, name) for name in _COLUMN_FLAGS}
        # Of other schemes, the adapter's labels tell that there is one.
        values["tag_scheme"] = _NO_SPANS if self.tag_scheme == _NO_SPANS else None
        return {name: value for name, value in values.items() if value}


def trained_settings(training: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the flags that a task adapter supplies, from its `training`.

    Raises:
      UserError: a value is invalid.
    """
    names = (*_COLUMN_FLAGS, "tag_scheme")
    values = {name: task_kinds.recorded_answer(training, name, "") for name in names}
    answers = {name: values[name] for name in names if name in training.get("answers", {})}
    return {**answers, **data_splits.recorded(training)}


Sources = Dict[str, List[Any]]  # Split → paths of its files, or the one `DataTable`.


class Split(NamedTuple):
    """The sentences of a file.

    Attributes:
      file: `tagging_data.TaggedFile`.
      tags: the tags of each sentence, chunk tags in IOB2; None for a test file without tags or
        with placeholders.
      notation: that of the file's chunk tags; None for other tags.
    """

    file: "tagging_data.TaggedFile"
    tags: Optional[List[List[str]]]
    notation: Optional[tag_schemes.Notation]

    @property
    def words(self) -> List[List[str]]:
        """The words of each sentence."""
        return [sentence.words for sentence in self.file.sentences]

    def digest(self) -> str:
        """Returns a digest of words and tags, independent of the file's format."""
        tags = self.tags or [[]] * len(self.words)
        return task_adapter.digest(zip(map(tuple, self.words), map(tuple, tags)))

    def part(self, indices: Sequence[int]) -> "Split":
        """Returns some of the sentences."""
        tags = None if self.tags is None else [self.tags[index] for index in indices]
        return self._replace(file=self.file.part(indices), tags=tags)


def _read_splits(
    config: TaggerConfig,
    given: "Optional[task_adapter.TaskAdapter]",
    output_dir: Optional[str] = None,
    tables: Optional[Tables] = None,
) -> Tuple[Tuple[str, ...], bool, Dict[str, Split], List[str]]:
    """Returns the labels, whether tags mark spans, the splits, and the names of those set apart.

    The splits are those that a run needs, and train if others are set apart from it.

    Args:
      config: `TaggerConfig`.
      given: `task_adapter.TaskAdapter` of --adapter, or None.
      output_dir: folder of the run; an earlier run's labels keep their order.
      tables: see `TaggingTask`.

    Raises:
      UserError: a file is missing or malformed.
    """
    sources: Sources = {split: [table] for split, table in (tables or {}).items()}
    if tables is None:
        flags = {name: getattr(config, name) for name in _DATA_FLAGS}
        sources.update(tagging_data.find_files(flags))
    needed = [SPLITS[stage] for stage in config.stages]
    labels = tuple(given.description.labels) if given else ()
    earlier = labels or classifier_data.earlier_labels(config, output_dir)
    apart = _find_missing(config, sources, needed)
    tagged_files = {
        split: _read(config, sources, split, earlier)
        for split in dict.fromkeys([*["train"] * bool(apart), *needed])
        if split not in apart
    }
    train = tagged_files.get("train")
    if given:
        where, is_chunks = "--adapter", _are_chunks(config, labels)
    else:
        why = ", or --adapter, for the task's labels"
        train = train or _read(config, sources, "train", earlier, why)
        where = train.path
        labels, is_chunks = _learned_labels(config, train, earlier)
    arguments = labels, is_chunks, config.tag_scheme
    trained = _as_split("train", train, *arguments) if train else None
    like = trained.notation if trained else None
    splits = {
        name: trained if trained and file is train else _as_split(name, file, *arguments, like)
        for name, file in tagged_files.items()
    }
    if apart:
        assert trained
        partition = _partition(config, trained, apart, is_chunks)
        advice, indices = "{}" if tables else "--{}_file", range(len(trained.words))
        for name in {"train", *needed} - (set(splits) - {"train"}):
            splits[name] = trained.part(partition.select(name, indices, advice))
    for name, split in splits.items():
        _check_tags(name, split, labels)
        if name != "train":  # Predictions have the format of their file.
            split.file.check_tags(labels)
    _log_tags(where, splits, labels, is_chunks)
    if is_chunks and any(splits[name].tags for name in splits if name != "train"):
        tagging_scores.seqeval()  # Fails before the training if it is missing.
    return labels, is_chunks, splits, apart


def _find_missing(config: TaggerConfig, sources: Sources, needed: Sequence[str]) -> List[str]:
    """Returns the splits to set apart from the training sentences, of dev and test.

    The dev set is if the run evaluates, or --dev_share is given; the test set if --test_share is.
    """
    wanted = {
        "dev": "dev" in needed or config.dev_share is not None or config.has_folds,
        "test": config.test_share is not None,
    }
    missing = [name for name in wanted if wanted[name] and not sources.get(name)]
    is_needed = "train" in needed or set(missing) & set(needed)
    return missing if sources.get("train") and is_needed else []


def _partition(
    config: TaggerConfig, train: Split, missing: Sequence[str], is_chunks: bool
) -> data_splits.Partition:
    """Returns the partition of sentences, by their rarest tag or type of chunk."""
    labels = train.tags or []
    if is_chunks:
        labels = [[chunk.label for chunk in tag_schemes.chunks(tags)] for tags in labels]
    keys = data_splits.keys_of(data_splits.rarest(labels))
    return data_splits.Partition(config, missing, keys, train.file.path, unit="sentences")


def _count(split: Split, is_chunks: bool) -> Dict[str, int]:
    """Returns how many chunks of each type, or words with each tag, a split has."""
    names: Iterable[Any] = split.tags or ()
    if is_chunks:
        names = ([chunk.label for chunk in tag_schemes.chunks(tags)] for tags in names)
    return collections.Counter(itertools.chain.from_iterable(names))


def _log_tags(where: str, splits: Dict[str, Split], labels: Sequence[str], is_chunks: bool) -> None:
    """Logs how tags were taken, and the flag that changes it."""
    if is_chunks:
        schemes = {split.notation.scheme for split in splits.values() if split.notation}
        logging.info(
            "%s: tags mark spans, which are scored by F1; scheme: %s. To choose another, or none,"
            " set --tag_scheme.",
            *(where, " and ".join(sorted(schemes))),
        )
    else:
        logging.info(
            "%s: the %d tags are learned as they are and scored by accuracy: %s. If they mark"
            " spans, set --tag_scheme.",
            *(where, len(labels), _shown(labels)),
        )


def _are_chunks(config: TaggerConfig, labels: Sequence[str]) -> bool:
    """Returns whether the labels of an adapter mark spans; raises UserError if they should."""
    is_chunks = tag_schemes.mark_chunks(labels)
    if config.tag_scheme in tag_schemes.SCHEMES and not is_chunks:
        raise UserError(
            f"--tag_scheme={config.tag_scheme}: the adapter's labels do not mark spans:"
            f" {_shown(labels)}."
        )
    return is_chunks and config.tag_scheme != _NO_SPANS


def _learned_labels(
    config: TaggerConfig, train: "tagging_data.TaggedFile", earlier: Sequence[str]
) -> Tuple[Tuple[str, ...], bool]:
    """Returns the labels of a training file, and whether its tags mark spans.

    Args:
      config: `TaggerConfig`.
      train: the file.
      earlier: the labels of an earlier run, whose order stays if they are the same.
    """
    notation = tag_schemes.notation_of(_tags_of(train), config.tag_scheme)
    if config.tag_scheme == "auto" and _are_plain(earlier, train):
        notation = None  # As in that run, perhaps of an older version.
    labels = _labels_of(train, notation, config.tag_scheme)
    return tuple(earlier) if set(labels) == set(earlier) else labels, notation is not None


def _are_plain(labels: Sequence[str], train: "tagging_data.TaggedFile") -> bool:
    """Returns whether a run learned the tags of a training file as they are."""
    return list(labels) == sorted({tag for _, tag in tagging_data.tags_at(train.sentences)})


def _shown(labels: Iterable[str]) -> str:
    labels = list(labels)
    return ", ".join(map(tagging_data.shown, labels[:10])) + ", ..." * (len(labels) > 10)


def _tags_of(file: "tagging_data.TaggedFile") -> List[List[str]]:
    return [sentence.tags or [] for sentence in file.sentences]


def _read(
    config: TaggerConfig,
    sources: Sources,
    split: str,
    known: Sequence[str],
    why: str = "",
) -> "tagging_data.TaggedFile":
    if not sources.get(split):
        if split == "test":
            why = ", or a --test_share"
        folder = f"--data_dir={config.data_dir} has no file {split}" if config.data_dir else ""
        raise UserError(
            f"{folder or f'Neither --data_dir nor --{split}_file is given'}; expected sentences"
            f" for {split} in {split}.txt or --{split}_file{why}."
        )
    if len(sources[split]) > 1:
        names = " and ".join(map(posixpath.basename, sources[split][:3]))
        raise UserError(f"--data_dir={config.data_dir} has {names}; choose one by --{split}_file.")
    (source,) = sources[split]
    has_keys = tagging_data.has_keys(source)
    word_column, tag_column = (_column(config, name, has_keys) for name in _COLUMN_FLAGS)
    file = tagging_data.read(source, word_column, tag_column, split != "test", known)
    _check_words(file)
    return file


def _check_words(file: "tagging_data.TaggedFile") -> None:
    """Raises UserError if the words are all chunk tags, and two more signs say that they are tags.

    Alone, a sentence such as B, L, U, E or B-52 is no reason.
    """
    words = [sentence.words for sentence in file.sentences]
    word_set = set(itertools.chain.from_iterable(words))
    notation = tag_schemes.notation_of(words)
    if not notation or not all(map(notation.is_tag, word_set)):
        return
    of_tags = tag_schemes.notation_of(_tags_of(file))
    tag_set = {tag for _, tag in tagging_data.tags_at(file.sentences)}
    tags_are_chunks = of_tags is not None and all(map(of_tags.is_tag, tag_set))
    signs = (
        bool(notation.separator),
        tag_schemes.OUTSIDE in word_set,
        not tags_are_chunks,
        not tags_are_chunks and len(tag_set) > len(word_set),
    )
    if sum(signs) >= 2:
        raise UserError(
            f"{file.path}: all words are tags, such as {tagging_data.shown(min(word_set))}; check"
            " --token_column and --tag_column."
        )


def _column(config: TaggerConfig, name: str, has_keys: bool) -> Optional[str]:
    """Returns a column flag's value; None if it is --adapter's and for files of another format."""
    value = getattr(config, name)
    is_number = bool(value) and tagging_data.is_column_number(value)
    if name not in config.given_flags and is_number == has_keys:
        return None
    return value


def _labels_of(
    train: "tagging_data.TaggedFile", notation: Optional[tag_schemes.Notation], scheme: str
) -> Tuple[str, ...]:
    """Returns the labels of a training file: its tags; for chunks B and I of each type."""
    all_tags = [tag for _, tag in tagging_data.tags_at(train.sentences)]
    tags = set(all_tags)
    if len(tags) < 2:
        raise UserError(
            f"{train.path}: all tags are {tagging_data.shown(all_tags[0])}; expected at least two"
            " tags."
        )
    if notation:
        _check_notation(train, notation, scheme)
        types = {chunk.label for each in _tags_of(train) for chunk in tag_schemes.chunks(each)}
        chunks = (tag_schemes.Chunk(name, 0, 2) for name in sorted(types))  # Tagged as B, I.
        pairs = (tag_schemes.IOB2.tags_of([chunk], 2) for chunk in chunks)
        return (tag_schemes.OUTSIDE, *itertools.chain.from_iterable(pairs))
    if all_tags.count(all_tags[0]) == 1:
        logging.warning(
            "%s: only the first line has the tag %s; remove the line if it is a header.",
            train.path,
            tagging_data.shown(all_tags[0]),
        )
    return tuple(custom_tasks.in_order(sorted(tags)))


def _check_notation(
    file: "tagging_data.TaggedFile", notation: tag_schemes.Notation, scheme: str
) -> None:
    """Raises UserError for a tag that is not of the notation or, unless it is auto, the scheme."""
    letters = ["B", "I", "E", "S", "L", "U", "M", "W"]
    if scheme != "auto":
        letters = [letter for letter in letters if letter in "B" + tag_schemes.SCHEMES[scheme]]
    for line, tag in tagging_data.tags_at(file.sentences):
        if not notation.is_tag(tag) or tag[0] not in ("O", *letters):
            separator = notation.separator
            types = f" with a type, as in B{separator}PER" if separator else ""
            raise UserError(
                f"{file.path}, line {line}: found the tag {tagging_data.shown(tag)}, expected O, or"
                f" {', '.join(letters[:-1])} or {letters[-1]}{types} (--tag_scheme={scheme})."
            )


def _as_split(
    name: str,
    file: "tagging_data.TaggedFile",
    labels: Sequence[str],
    is_chunks: bool,
    scheme: str,
    like: Optional[tag_schemes.Notation] = None,
) -> Split:
    tags = _tags_of(file)
    separator = "" if "B" in labels else "-"
    default = like or tag_schemes.Notation("IOB2" if scheme == "auto" else scheme, separator)
    notation = is_chunks and tag_schemes.notation_of(tags, scheme, like) or default
    if bool(notation.separator) != bool(separator):  # Only one of them has types.
        notation = default
    is_tag = notation.is_tag if is_chunks else set(labels).__contains__
    if name == "test" and not any(is_tag(tag) for _, tag in tagging_data.tags_at(file.sentences)):
        logging.info("%s: no word has a tag of the task: predictions are not scored.", file.path)
        return Split(file, None, default if is_chunks else None)
    if not is_chunks:
        return Split(file, tags, None)
    _check_notation(file, notation, scheme)
    return Split(file, [tag_schemes.to_iob2(each) for each in tags], notation)


def _check_tags(name: str, split: Split, labels: Sequence[str]) -> None:
    """Raises UserError for an unknown tag in training, or if all of dev are; else warns of one."""
    known = set(labels)
    tags_of_split = {tag for tags in split.tags or () for tag in tags}
    # A test file may have only chunks of other types.
    if name != "test" and tags_of_split and not tags_of_split & known:
        shown = ", ".join(map(tagging_data.shown, sorted(tags_of_split)[:10]))
        raise UserError(
            f"{split.file.path}: none of its tags ({shown}) is a label of the task; check"
            " --tag_column."
        )
    for sentence, tags in zip(split.file.sentences, split.tags or ()):
        for line, tag in zip(sentence.lines, tags):
            if tag not in known:
                where = f"{split.file.path}, line {line}: the tag {tagging_data.shown(tag)}"
                if name == "train":
                    shown = ", ".join(map(tagging_data.shown, labels[:10]))
                    raise UserError(f"{where} is not in the adapter's labels ({shown}).")
                logging.warning("%s is not in the training set: it counts as an error.", where)
                return


def _shown_sentences(split: Split) -> Tuple[Dict[str, str], ...]:
    """Returns a few sentences by field, of different tags; see `short_examples`."""
    texts = [" ".join(words) for words in split.words]
    labels = [tuple(sorted(set(tags))) for tags in split.tags or ()]
    lengths = list(map(len, texts))
    return short_examples(
        lengths, len(set(labels)), lambda row: ({"text": texts[row]}, labels[row])
    )


def encode(
    split: Split, labels: Sequence[str], config: TaggerConfig, tokenizer: Any
) -> "tagging_features.TaggedRows":
    """Returns the `tagging_features.TaggedRows` of a split, from the cache if they are in it."""
    ids = {label: index for index, label in enumerate(labels)}

    def make(add: Callable) -> None:
        pieces = tagging_features.WordPieces(tokenizer, config.max_seq_length)
        tag_ids: Iterable[Any] = [None] * len(split.words)
        if split.tags is not None:
            tag_ids = ([ids.get(tag, -1) for tag in tags] for tags in split.tags)
        tagging_features.add_rows(zip(split.words, tag_ids), pieces, add)

    key = feature_cache.key_of(
        [split.digest(), tokenizer.fingerprint, tuple(labels), config.max_seq_length],
        [tagging_features, tokenization],
    )
    arrays = feature_cache.load_or_build(config.feature_folder, key, make, config.verify_data)
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    rows = tagging_features.TaggedRows(arrays, cls_id, sep_id, config.max_seq_length)
    rows.key = arrays.digest
    return rows


def from_flags(
    values: Any, tables: Optional[Tables] = None
) -> "Tuple[TaggerConfig, TaggingTask, starting_point.StartingPoint]":
    """Returns the settings, task and starting point of run_tagger.py's flags; raises UserError.

    Args:
      values: parsed flags.
      tables: see `TaggingTask`.
    """
    name = (values.task_name or NAME).lower()
    start = starting_point.find(values, name, trained_settings, "run_tagger.py")
    config = TaggerConfig.from_flags(values, start.supplied)
    return config, TaggingTask(config, start.adapter, tables), start


class TaggingTask(Task):
    """A tagging task; see `Task`. The labels come from --adapter, or else from the training file.

    Args:
      config: `TaggerConfig`.
      adapter: the task adapter of --adapter, or None.
      tables: of splits in memory, instead of files; their columns are lists.

    Raises:
      UserError: a file is missing or malformed.
    """

    kind = tagging.KIND.name

    def __init__(
        self,
        config: TaggerConfig,
        adapter: "Optional[task_adapter.TaskAdapter]" = None,
        tables: Optional[Tables] = None,
    ):
        self.config, self.name = config, config.name
        self.folder = config.folder_of(config.name.lower())
        self.answer_settings = config.answers
        self.labels, self._is_chunks, self.splits, apart = _read_splits(
            config, adapter, self.folder, tables
        )
        self._trained_on = self.splits["train"].digest() if apart else None
        self._split_settings = config.split_settings(apart)
        config.warn_of_unused(apart)
        config.check_dev_set(apart, self.name)
        self._arguments = adapter, tables
        scores = ("f1", "precision", "recall", "accuracy") if self._is_chunks else ("accuracy",)
        self.score = config.choose_score(scores, scores[0])
        self._rows: Dict[str, tagging_features.TaggedRows] = {}

    def with_config(self, config: Any) -> "TaggingTask":
        """Returns the task with other settings; see `Task`."""
        return TaggingTask(config, *self._arguments)

    def load(self, stages: Sequence[str]) -> None:
        """Selects the sentences of the stages.

        Raises:
          UserError: the file of a split is one that the run would write.
        """
        self.splits = {name: self.splits[name] for name in (SPLITS[stage] for stage in stages)}
        names = [name for split, name in _PREDICTIONS.items() if split in self.splits]
        for split in self.splits.values():
            for name, end in itertools.product(names, (*_EXTENSIONS, "json")):
                if is_same_path(split.file.path, posixpath.join(self.folder, f"{name}.{end}")):
                    raise UserError(
                        f"{split.file.path}: predictions would replace it; give another"
                        " --output_dir."
                    )
        self.warnings = self._warnings()

    def _warnings(self) -> List[str]:
        """Returns what the user must know about the data; see `caveats`."""
        is_chunks, labels = self._is_chunks, list(self.labels)
        if is_chunks:
            types = (chunk.label for tag in labels for chunk in tag_schemes.chunks([tag]))
            labels = [each for each in dict.fromkeys(types) if each]
        train, dev = (
            _count(self.splits[name], is_chunks) if name in self.splits else None
            for name in ("train", "dev")
        )
        names = ("types of spans", "spans") if is_chunks else ("tags", "words")
        return caveats.of_labels(labels, train, dev, *names)

    def encode(self, tokenizer: Any) -> Dict[str, Any]:
        """Returns the `tagging_features.TaggedRows` of each split; see `Task`."""
        self._rows = {
            name: encode(split, self.labels, self.config, tokenizer)
            for name, split in self.splits.items()
        }
        if "train" in self.splits:
            self.num_examples = len(self._rows["train"])
            self.settings = {"data": self.splits["train"].digest(), **self._split_settings}
        if "dev" in self.splits:
            self.dev_settings = {"dev_data": self.splits["dev"].digest()}
            self.examples = _shown_sentences(self.splits["dev"])
        return self._rows

    def check_trained(
        self, description: Optional[task_adapter.Description], training: Dict[str, Any]
    ) -> None:
        """Raises UserError if sentences to evaluate may have been trained on."""
        data_splits.check_trained(training, self._trained_on, self._split_settings)

    def head(self) -> Dict[str, Any]:
        """Returns the arguments of run_tagger.py's `model_fn_builder`."""
        return {"num_labels": len(self.labels)}

    def evaluate(self, split: str, predictions: Any) -> Evaluated:
        """Returns the predicted tags of each sentence, chunk tags in IOB2, and their scores."""
        tag_ids, loss, rows, file = [], 0.0, self._rows[split], self.splits[split]
        for index, prediction in enumerate(stored_predictions.rows_of(predictions)):
            tag_ids.append(prediction["tag_ids"][rows.positions(index)])
            loss += float(prediction["loss"])
        flat = iter(np.concatenate(tag_ids))  # One per word, in the order of the file.
        tags = [[self.labels[next(flat)] for _ in words] for words in file.words]
        if file.notation:
            tags = [tag_schemes.to_iob2(each) for each in tags]
        if file.tags is None:
            return Evaluated(tags, {})
        stage = "eval" if split == "dev" else split
        arguments = file.tags, tags, bool(file.notation)
        plain = tagging_scores.scores(*arguments)
        plain.update(tagging_scores.references(*arguments, self.score))
        words = f"{sum(map(len, tags)):,} {split} words"
        warnings = tagging_scores.warnings(words, file.tags, tags, self.score, plain)
        result = classifier_results.add_prefix(stage, plain)
        if split == "dev":
            result["eval_loss"] = loss / max(1, rows.num_learned)
            warnings = caveats.of_loss(words, result["eval_loss"]) or warnings
        return Evaluated(tags, result, warnings)

    def write(self, folder: str, split: str, evaluated: Evaluated) -> List[str]:
        """Writes a file with the predicted tags, and a JSON file with entities; see `Task`."""
        file, tags = self.splits[split], evaluated.answers
        if file.notation:
            as_tags = file.notation.tags_of
            tags = [as_tags(tag_schemes.chunks(each), len(each)) for each in tags]
        name, extension = _PREDICTIONS[split], file.file.extension
        for other in _EXTENSIONS:
            if other != extension:
                gfile.remove_if_exists(posixpath.join(folder, f"{name}.{other}"))
        written = [posixpath.join(folder, f"{name}.{end}") for end in (extension, "json")]
        atomic.write_atomically(written[0], file.file.with_tags(tags))
        answers = self._answers(file, evaluated.answers)
        json_objects.write_object(written[1], {"sentences": answers})
        if split == "dev":
            return []
        path = posixpath.join(folder, "test_scores.json")
        gfile.remove_if_exists(path)  # An earlier run's would not match these predictions.
        report = [f"Predictions: {', '.join(written)} ({len(tags)} sentences)"]
        if not evaluated.scores:
            return report
        json_objects.write_object(path, {**self.metadata("test"), **evaluated.scores})
        return [*report, f"{self.summary('test', evaluated.scores)} ({path})"]

    def describe(self, split: str, evaluated: Evaluated) -> str:
        """Returns the scores of each type, confusions and the worst sentences; see `Task`."""
        file, tags = self.splits[split], evaluated.answers
        if file.tags is None:
            return ""
        title = f"{split}, {sum(map(len, tags)):,} words in {len(tags):,} sentences:"
        return tagging_report.describe(title, file.words, file.tags, tags, bool(file.notation))

    def plot(self, folder: str, split: str, evaluated: Evaluated) -> List[str]:
        """Draws the confusion matrix of words' types; see `Task`."""
        file = self.splits[split]
        if file.tags is None:
            return []
        path = posixpath.join(folder, "dev_" * (split == "dev") + "confusion.png")
        arguments = file.tags, evaluated.answers, bool(file.notation)
        return [tagging_report.plot(path, f"{self.name} {split}", *arguments)]

    def _answers(self, file: Split, tags: Sequence[List[str]]) -> List[Dict[str, Any]]:
        answers = []
        for words, tags_of_words in zip(file.words, tags):
            text = " ".join(words)
            offsets = tagging.join_words(words)
            answer = tagging.tagged(text, offsets, tags_of_words, bool(file.notation))
            answers.append({"text": text, **answer})
        return answers

    def summary(self, stage: str, scores: Dict[str, Any]) -> str:
        """Returns a stage's scores on one line, F1 first."""
        shown = evaluations.scalars(scores, stage + "_")
        names = [
            name for name in ("f1", "precision", "recall", "accuracy", "loss") if name in shown
        ]
        parts = [f"{name} {shown[name]:.4f}" for name in names]
        return f"{self.name} {'dev' if stage == 'eval' else stage}: {', '.join(parts)}"
