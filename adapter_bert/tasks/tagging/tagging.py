"""Sequence labelling: each word of a sentence has a tag (Devlin et al. 2018, section 5.3)."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from adapter_bert import tokenization
from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.tagging import tag_schemes, tagging_data, tagging_features

_BASIC = tokenization.BasicTokenizer(do_lower_case=False)


class Word(NamedTuple):
    """A word and its characters [start, end) in the text."""

    text: str
    start: int
    end: int


class Tagging(task_kinds.TaskKind):
    """A softmax over the tags of each word, read at its first WordPiece.

    Labels of named entities and chunks are in IOB2. `TaskKind` documents the methods.
    """

    name = "tagging"
    reads_tokens = True
    head_scope = "cls/tagging/"
    score = "f1"
    example = {"text": "Angela Merkel met the president of France in Berlin on Monday."}
    words_field = "tokens"
    answer_types = {"tokens": "DT_STRING", "tags": "DT_STRING", "entities": "DT_VARIANT"}
    predicted = "tags"
    script = "run_tagger.py"
    sets_rows_apart = True
    result_files = (
        *("predictions.json", "predictions.jsonl", "predictions.txt"),
        *("dev_predictions.json", "dev_predictions.jsonl", "dev_predictions.txt"),
        *("confusion.png", "dev_confusion.png"),
    )
    pipeline_tag = "token-classification"
    adapterhub_head = "tagging"

    def decode(self, logits: Any) -> task_kinds.Outputs:
        """Returns tag_ids [S], the most probable tag at each position."""
        return {"tag_ids": np.argmax(logits, axis=-1).astype(np.int32)}

    def answer(self, outputs: task_kinds.Outputs, labels: Sequence[str]) -> Dict[str, Any]:
        """Returns the tag at each position, as ids alone do not tell where words begin."""
        return {"tags": [labels[index] for index in outputs["tag_ids"]]}

    def request_reader(self, description: Any, tokenizer: Any, where: str) -> Callable:
        """Returns a function that encodes a text, or a list of words, as windows."""
        pieces = tagging_features.WordPieces(tokenizer, description.max_seq_length)
        cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
        scheme = task_kinds.recorded_answer(description.training, "tag_scheme", "auto")
        has_spans = scheme != "none" and tag_schemes.mark_chunks(description.labels)

        def read(text: Union[str, Sequence[str]]) -> Tuple[List[task_kinds.Ids], Callable]:
            words = split_text(text) if isinstance(text, str) else join_words(text)
            text = text if isinstance(text, str) else " ".join(text)
            if not words:
                raise UserError("found no words to tag")
            texts = [word.text for word in words]
            rows = list(tagging_features.rows_of(texts, None, pieces))
            ids = [[cls_id, *row.ids, sep_id] for row in rows]

            def answer(outputs: List[task_kinds.Outputs]) -> Dict[str, Any]:
                tags = []
                for row, output in zip(rows, outputs):
                    positions = 1 + np.flatnonzero(row.labels)
                    tags += [description.labels[i] for i in output["tag_ids"][positions]]
                return tagged(text, words, tags, has_spans)

            return [(row, [0] * len(row)) for row in ids], answer

        return read

    def data_paths(self, values: Dict[str, Optional[str]]) -> Dict[str, List[str]]:
        """Returns the files named by flags or found in --data_dir."""
        return tagging_data.find_files(values)

    def export(self, logits: Any, labels: Any, is_label: Any) -> Dict[str, Any]:
        """Returns the tags, string [B, S]."""
        import tensorflow.compat.v1 as tf

        logits = logits[:, :, : labels.shape[1]]
        excluded = tf.fill(tf.shape(logits), -np.inf)
        is_tag = tf.broadcast_to(is_label[:, tf.newaxis, :], tf.shape(logits))
        best = tf.argmax(tf.where(is_tag, logits, excluded), -1, output_type=tf.int32)
        return {"tags": tf.gather(labels, best, batch_dims=1)}


KIND = Tagging()


def split_text(text: str) -> List[Word]:
    """Returns the words of a text.

    Words are separated by white space. Punctuation at either end of a word is a word of its own, as
    is every ideograph: "U.S. (1985)" has the words U.S, ., (, 1985 and ).
    """
    pieces = _basic_pieces(text)
    is_mark = [not any(char.isalnum() for char in piece.text) for piece in pieces]
    is_ideograph = [tokenization.is_ideograph(piece.text[0]) for piece in pieces]
    words: List[Word] = []
    index = 0
    while index < len(pieces):
        last = index
        while not is_mark[index] and not is_ideograph[last]:  # Joins pieces such as "U . S".
            end = last + 1
            while end < len(pieces) and is_mark[end]:
                end += 1
            between = pieces[last : end + 1]
            touch = all(a.end == b.start for a, b in zip(between, between[1:]))
            if end == last + 1 or end >= len(pieces) or is_ideograph[end] or not touch:
                break
            last = end
        start, end = pieces[index].start, pieces[last].end
        words.append(Word(text[start:end], start, end))
        index = last + 1
    return words


def _basic_pieces(text: str) -> List[Word]:
    """Returns the pieces of BERT's basic tokenizer, before WordPiece."""
    pieces, end = [], 0
    for piece in _BASIC.tokenize(text):
        start = end = text.index(piece[0], end)
        for char in piece:  # The text may have control characters between them.
            end = text.index(char, end) + 1
        pieces.append(Word(piece, start, end))
    return pieces


def join_words(words: Sequence[str]) -> List[Word]:
    """Returns words with their offsets in the text that joins them by spaces."""
    joined, start = [], 0
    for word in words:
        joined.append(Word(word, start, start + len(word)))
        start += len(word) + 1
    return joined


def tagged(
    text: str, words: Sequence[Word], tags: Sequence[str], has_spans: bool
) -> Dict[str, Any]:
    """Returns the JSON answer to a text.

    Args:
      text: str.
      words: `Word`s of the text.
      tags: a label for each word.
      has_spans: bool; whether tags mark chunks.

    Returns:
      A dict with "tokens" and "tags". For chunk tags also "entities", each with text, label, and
      start and end in characters. The label is "" if tags have no types.
    """
    answer: Dict[str, Any] = {"tokens": [word.text for word in words], "tags": list(tags)}
    if has_spans:
        chunks = tag_schemes.chunks(tags)
        answer["tags"] = tag_schemes.IOB2.tags_of(chunks, len(words))
        answer["entities"] = [_entity(text, words, chunk) for chunk in chunks]
    return answer


def _entity(text: str, words: Sequence[Word], chunk: "tag_schemes.Chunk") -> Dict[str, Any]:
    start, end = words[chunk.start].start, words[chunk.end - 1].end
    return {"text": text[start:end], "label": chunk.label, "start": start, "end": end}
