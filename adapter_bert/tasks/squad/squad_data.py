"""Reads questions about paragraphs from SQuAD's files (Rajpurkar et al. 2016, 2018).

Names, positional arguments and results are those of BERT's run_squad.py; the flags that its
functions read are keyword arguments.
"""

import bisect
import dataclasses
import functools
import json
import re
import unicodedata
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import ijson
from absl import logging

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError

_NESTING = '{"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ...}]}]}]}'
_HINT = "for SQuAD 2.0, set --version_2_with_negative"
_MAX_DEPTH = 50  # SQuAD's nesting is 9 levels deep.
_PART_LENGTH = 1 << 16  # Bytes, as in ijson.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_MAX_ORDINARY_LENGTH = 30  # As "leftist/communist/nationalist" in SQuAD.


@dataclasses.dataclass(eq=False)
class SquadExample:
    """A question about a paragraph.

    Attributes:
      qas_id: str, the question's id in the file.
      question_text: str.
      doc_tokens: list of str, the paragraph's words, split at white space.
      orig_answer_text: str, "" for no answer; None if unknown.
      start_position, end_position: int, indices of the answer's first and last word; -1 for no
        answer; None if unknown.
      start_offset, end_offset: int, the answer's first character in its first word, and the end of
        the answer in its last word; None if they are to be found in the words.
      is_impossible: bool, whether the paragraph does not answer the question (SQuAD 2.0).
    """

    qas_id: str
    question_text: str
    doc_tokens: List[str]
    orig_answer_text: Optional[str] = None
    start_position: Optional[int] = None
    end_position: Optional[int] = None
    is_impossible: bool = False
    start_offset: Optional[int] = None
    end_offset: Optional[int] = None


def read_squad_examples(
    input_file: str,
    is_training: bool,
    *,
    version_2_with_negative: bool = False,
    report: Optional[Callable[[str], None]] = None,
    lazily: bool = False,
) -> Iterable[SquadExample]:
    """Returns the `SquadExample`s of a file.

    Args:
      input_file: path of SQuAD's JSON.
      is_training: bool; whether to read answers. Questions whose answer is not at its answer_start
        are skipped.
      version_2_with_negative: bool; questions may have no answer.
      report: function that gets a text about the number of skipped questions, called at the end if
        there are any. By default the text is logged.
      lazily: bool; returns an iterator, which holds one article in memory at a time, and raises the
        errors; otherwise a list.

    Raises:
      UserError: the file is missing, is not SQuAD's JSON, has no questions or has an id twice; or,
        in training, a question does not have exactly one answer, or all questions are skipped.
    """
    examples = _examples(input_file, is_training, version_2_with_negative, report)
    return examples if lazily else list(examples)


def _examples(
    input_file: str,
    is_training: bool,
    version_2_with_negative: bool,
    report: Optional[Callable[[str], None]],
) -> Iterator[SquadExample]:
    number, left_out = 0, []
    for context, questions in _paragraphs(input_file):
        starts, doc_tokens = words_of(context)
        for qas_id, qa in questions.items():
            where = f"question {qas_id}"
            question = _field(qa, "question", str, input_file, where)
            located: Optional[Dict[str, Any]] = {}
            if is_training:
                answer = _answer(qa, input_file, where, version_2_with_negative)
                located = _locate(answer, context, starts, doc_tokens)
            number += 1
            if located is None:
                left_out.append(qas_id)
            else:
                yield SquadExample(qas_id, question, doc_tokens, **located)
    if not left_out:
        return
    text = (
        f"skipped {len(left_out)} of {number} questions whose answer is not at its answer_start"
        f" (such as {', '.join(left_out[:3])})"
    )
    if len(left_out) == number:
        raise UserError(f"{input_file}: {text}, so none remains.")
    report = report or functools.partial(logging.warning, "%s: %s.", input_file)
    report(text)


def words_of(context: str) -> Tuple[List[int], List[str]]:
    """Returns a paragraph's words, split as in BERT: (list of their offsets, list of str)."""
    words = list(_WORD.finditer(context))
    return [match.start() for match in words], [match.group() for match in words]


def is_ordinary(word: str) -> bool:
    """Returns whether a word is short, without letters of a script that has no case.

    Scripts without case are Chinese, Thai and Korean, among others: their "words" may be sentences
    or end in particles. BERT's rules for an answer that is not at its offset, or not the text of
    its tokens, use whole words. For ordinary words, so do we, for equal labels and predictions.
    """
    if len(word) > _MAX_ORDINARY_LENGTH:
        return False
    return word.isascii() or all(unicodedata.category(char) != "Lo" for char in word)


def answer_texts(input_file: str, version_2_with_negative: bool = False) -> Dict[str, List[str]]:
    """Returns the correct answers of each question, a dict from ids to lists of texts.

    Args:
      input_file: path of SQuAD's JSON.
      version_2_with_negative: bool; questions may have no answer.

    Raises:
      UserError: as in `read_squad_examples`; or a question has no answers to score by.
    """
    texts = {}
    for _, questions in _paragraphs(input_file):
        for qas_id, qa in questions.items():
            where = f"question {qas_id}"
            answers = _answers(qa, input_file, where)
            if answers is None or not (answers or version_2_with_negative):
                hint = "--do_predict does not need them" if answers is None else _HINT
                raise UserError(f"{input_file}: {where} has no answers to score by ({hint}).")
            texts[qas_id] = [
                _field(answer, "text", str, input_file, "an answer of " + where)
                for answer in answers
            ]
    return texts


def _paragraphs(input_file: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Yields the paragraphs of a file: (text, dict from ids to questions)."""
    seen: Set[str] = set()
    for i, article in enumerate(_articles(input_file), 1):
        paragraphs = _field(article, "paragraphs", list, input_file, f"article {i}")
        for j, paragraph in enumerate(paragraphs, 1):
            where = f"paragraph {j} of article {i}"
            context = _field(paragraph, "context", str, input_file, where)
            questions = {}
            for k, qa in enumerate(_field(paragraph, "qas", list, input_file, where), 1):
                question_label = f"question {k} of {where}"
                qas_id = str(_field(qa, "id", (str, int), input_file, question_label))
                if qas_id in seen:
                    raise UserError(f"{input_file}: question {qas_id} occurs twice.")
                seen.add(qas_id)
                questions[qas_id] = qa
            yield context, questions
    if not seen:
        raise UserError(f"{input_file}: found no questions, expected SQuAD's JSON: {_NESTING}.")


def _articles(input_file: str) -> Iterator[Any]:
    """Yields the articles of a file."""
    has_articles = False
    try:
        with gfile.convert_read_errors(input_file), gfile.open_file(input_file, "rb") as reader:
            if reader.read(3) != b"\xef\xbb\xbf":  # A byte order mark.
                reader.seek(0)
            for article in _items_of_data(reader):
                has_articles = True
                yield article
    except json_objects.DuplicateKeyError as error:
        raise UserError(f"{input_file}: {error}; expected each key once.") from error
    except (ijson.JSONError, UnicodeDecodeError) as error:
        raise UserError(f"{input_file}{_describe_position(input_file, error)}.") from error
    if not has_articles:
        raise UserError(f"{input_file}: found no articles, expected SQuAD's JSON: {_NESTING}.")


def _items_of_data(reader: Any) -> Iterator[Any]:
    """Yields the items of the list "data" in a JSON object, each as soon as it is complete."""
    depth, key, in_data, builder = 0, None, False, None
    keys: List[Set[str]] = []  # Of each open object, the outermost first.
    for event, value in _json_events(reader):
        if event.startswith("start"):
            depth += 1
            if depth > _MAX_DEPTH:
                raise ijson.JSONError("nested too deep")
            if depth == 2 and key == "data" and event == "start_array":
                in_data = True
                continue
        elif event.startswith("end"):
            depth -= 1
            in_data = in_data and depth > 1
        elif event == "map_key" and depth == 1:
            key = value
        _check_keys(keys, event, value)
        if in_data:
            builder = builder or ijson.ObjectBuilder()
            builder.event(event, value)
            if depth == 2:
                yield builder.value
                builder = None


def _json_events(reader: Any) -> Iterator[Tuple[str, Any]]:
    """Yields the events of a JSON file in time linear in its length.

    ijson reads a text again from its start whenever it gets the next part of it. So the parts
    double in length until the text ends.
    """
    events = ijson.sendable_list()
    # Without use_float, ijson crashes the process on a number of thousands of digits.
    parser = ijson.basic_parse_coro(events, use_float=True)
    length = _PART_LENGTH
    content = True
    while content:
        content = reader.read(length)
        if content:
            parser.send(content)
        else:
            parser.close()
        yield from events
        length = _PART_LENGTH if events else 2 * length
        del events[:]


def _check_keys(keys: List[Set[str]], event: str, value: Any) -> None:
    """Records the keys of open JSON objects; raises `DuplicateKeyError` for a repeat."""
    if event == "map_key":
        if value in keys[-1]:
            raise json_objects.DuplicateKeyError(value)
        keys[-1].add(value)
    elif event == "start_map":
        keys.append(set())
    elif event == "end_map":
        keys.pop()


def _describe_position(input_file: str, reason: Exception) -> str:
    """Returns an error's text about invalid JSON, with the line number that ijson does not give.

    Python's parser accepts some files that ijson refuses, with NaN or numbers of 20 digits; for
    these the text has ijson's reason.
    """
    with gfile.open_file(input_file, "rb") as reader:
        content = reader.read()
    try:
        json_objects.parse_json(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        return f", line {error.lineno}: is not valid JSON ({error.msg})"
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return f", line {line}: found bytes that are not UTF-8 ({error.reason})"
    except ValueError:  # For a number of thousands of digits, too.
        pass
    return f": is not SQuAD's JSON ({gfile.reason(reason)})"


def _field(record: Any, name: str, kind: Any, input_file: str, where: str) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        shown = "nothing" if value is None else json.dumps(value, default=str)[:40]
        raise UserError(
            f"{input_file}: found {shown} as {name} of {where}, expected SQuAD's JSON: {_NESTING}."
        )
    return value


def _answers(qa: Dict[str, Any], input_file: str, where: str) -> Optional[List[Any]]:
    """Returns the answers of a question; None if it has no list of them."""
    return _field(qa, "answers", list, input_file, where) if "answers" in qa else None


def _answer(
    qa: Dict[str, Any], input_file: str, where: str, version_2_with_negative: bool
) -> Optional[Tuple[str, int]]:
    """Returns the one answer of a question as (text, offset); None if it has none."""
    answers = _answers(qa, input_file, where)
    if version_2_with_negative:
        record = {"is_impossible": answers == [], **qa}
        if _field(record, "is_impossible", bool, input_file, where):
            return None
    hint = f" ({_HINT})" if answers == [] and not version_2_with_negative else ""
    answers = answers or []
    if len(answers) != 1:
        raise UserError(
            f"{input_file}: {where} has {len(answers)} answers; training needs exactly one{hint}."
        )
    text = _field(answers[0], "text", str, input_file, "an answer of " + where)
    start = _field(answers[0], "answer_start", int, input_file, "an answer of " + where)
    return text, start


def _locate(
    answer: Optional[Tuple[str, int]], context: str, starts: List[int], doc_tokens: List[str]
) -> Optional[Dict[str, Any]]:
    """Returns the fields of a `SquadExample` for an answer; None if it is not at its offset.

    As in BERT, it may be elsewhere in the words at its offset if they are ordinary.

    Args:
      answer: (text, offset of its first character in the paragraph), or None for no answer.
      context: str, the paragraph.
      starts: list of the offsets of the paragraph's words.
      doc_tokens: list of these words.
    """
    if answer is None:
        no_position = {"orig_answer_text": "", "start_position": -1, "end_position": -1}
        return {**no_position, "is_impossible": True}
    text, offset = answer
    if not 0 <= offset < len(context) or not text.strip():
        return None
    characters = _characters_at(offset, text, context)
    start, end = characters or (offset, offset + len(text))
    first, last = (bisect.bisect_right(starts, where) - 1 for where in (start, end - 1))
    words = doc_tokens[first : last + 1]
    place: Optional[Tuple[int, int, int, int]] = None
    if characters:
        place = 0, last - first, start - starts[first], end - starts[last]
    elif first >= 0 and all(map(is_ordinary, words)):
        place = find_in_words(text, words, offset - starts[first])
    if place is None:
        return None
    names = ("start_position", "end_position", "start_offset", "end_offset")
    values = (first + place[0], first + place[1], *place[2:])
    return {"orig_answer_text": text, **dict(zip(names, values))}


def _characters_at(offset: int, text: str, context: str) -> Optional[Tuple[int, int]]:
    """Returns the characters of an answer without its outer spaces; None if it is not at `offset`.

    Its spaces may differ in kind and number from those of the context.
    """
    end = offset + len(text)
    if not context.startswith(text, offset):
        spaces = r"\s*" if text[0].isspace() else ""
        pattern = spaces + r"\s+".join(map(re.escape, text.split()))
        match = re.compile(pattern).match(context, offset)
        if not match:
            return None
        end = match.end()
    found = context[offset:end]
    return end - len(found.lstrip()), offset + len(found.rstrip())


def find_in_words(
    text: str, words: List[str], expected: int
) -> Optional[Tuple[int, int, int, int]]:
    """Returns an answer's first and last word, its start in the first and its end in the last.

    As in BERT, words are compared instead of characters, so that spacing does not matter. An answer
    that contains other white space, such as U+00A0, is not found.

    Args:
      text: str, the answer.
      words: list of str.
      expected: int, the answer's index in the words joined by spaces. If it is not there, the
        nearest occurrence counts.

    Returns:
      Four ints; None if the words do not contain the answer.
    """
    answer, joined = " ".join(text.split()), " ".join(words)
    before = joined.rfind(answer, 0, max(0, expected + len(answer)))
    after = joined.find(answer, max(0, expected))
    starts = [index for index in (before, after) if index >= 0]
    if not answer or not starts:
        return None
    start = min(starts, key=lambda index: abs(index - expected))
    end = start + len(answer)
    first, last = (joined.count(" ", 0, index) for index in (start, end))
    starts_of_words = [joined.rfind(" ", 0, index) + 1 for index in (start, end)]
    return first, last, start - starts_of_words[0], end - starts_of_words[1]
