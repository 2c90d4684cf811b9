"""JSON objects in files: written atomically, validated when they are read."""

import itertools
import json
import re
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from adapter_bert.files import atomic, gfile
from adapter_bert.shell.errors import UserError

MAX_NUMBER = 2**63  # Of settings and scores in JSON.
MAX_JSON_BYTES = 4 << 20  # Parsed JSON can take 30 times its memory.
_MAX_DEPTH = 100  # Python's parser, and all code that walks through values, recurse per level.


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice; Python's parser would silently drop the first value."""

    def __init__(self, key: str):
        super().__init__(f"an object has the key {json.dumps(key)} twice")


def write_object(path: str, content: Dict[str, Any]) -> None:
    """Writes a dict as JSON, atomically; NumPy's numbers become floats.

    Raises:
      UserError: the file cannot be written; the old file stays.
    """
    text = json.dumps(content, indent=2, sort_keys=True, default=float) + "\n"
    atomic.write_atomically(path, text)


def parse_json(text: str, parse_constant: Optional[Callable[[str], Any]] = None) -> Any:
    """Returns parsed JSON, in which every object has each key once.

    Args:
      text: the JSON.
      parse_constant: function of NaN, Infinity or -Infinity; by default they are floats.

    Raises:
      DuplicateKeyError: an object has a key twice.
      ValueError: the text is not JSON, or has over 100 levels.
    """
    if _depth(text) > _MAX_DEPTH:
        raise ValueError(f"it has more than {_MAX_DEPTH} levels of lists and objects")
    return json.loads(
        text, object_pairs_hook=_object_without_duplicates, parse_constant=parse_constant
    )


def _depth(text: str) -> int:
    """Returns the number of levels of lists and objects in JSON, without recursion."""
    if text.count("[") + text.count("{") <= _MAX_DEPTH:  # Saves the time.
        return 0
    without_escapes = text.replace("\\\\", "").replace('\\"', "")
    brackets = re.findall(r"[][{}]", "".join(without_escapes.split('"')[::2]))  # Not in strings.
    return max(itertools.accumulate(1 if each in "[{" else -1 for each in brackets), default=0)


def _object_without_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    # Interned, as the parser makes each key again for each of thousands of JSON lines.
    result = {sys.intern(key): value for key, value in pairs}
    if len(result) < len(pairs):
        names = [key for key, _ in pairs]
        raise DuplicateKeyError(next(key for key in names if names.count(key) > 1))
    return result


def read_object(
    path: str,
    where: Optional[str] = None,
    expected: str = "a JSON object",
    max_bytes: int = MAX_JSON_BYTES,
) -> Dict[str, Any]:
    """Returns the JSON object in a file, a dict.

    Args:
      path: of the file.
      where: the file's name in errors; the path by default.
      expected: what the file should hold, for the error if it holds other JSON.
      max_bytes: maximum size of the file.

    Raises:
      UserError: the file cannot be read, is too large, is not a JSON object, or has a key twice.
    """
    where = where or gfile._visible(path)
    try:
        with gfile.convert_read_errors(f"{where}:"):
            check_json_size(gfile.size(path), where, max_bytes)
            with gfile.open_regular(path) as reader:
                content = parse_json(reader.read().decode("utf-8"))
            json.dumps(content, ensure_ascii=False).encode("utf-8")  # Rejects lone surrogates.
    except UserError:  # It is a ValueError, too.
        raise
    except ValueError as error:
        raise UserError(f"{where}: is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected {expected}, found another value.")
    return content


def check_json_size(num_bytes: int, where: str, max_bytes: int = MAX_JSON_BYTES) -> None:
    """Raises UserError if JSON is larger than 4 MB, or than `max_bytes`."""
    if num_bytes > max_bytes:
        raise UserError(f"{where} has {num_bytes:,} bytes; expected at most {max_bytes:,}.")


def read_as(
    path: str,
    flag: str,
    kind: str,
    convert: Callable[[Dict[str, Any]], Any],
    max_bytes: int = MAX_JSON_BYTES,
) -> Any:
    """Returns the JSON object in a file, converted by a function.

    Args:
      path: of the file.
      flag: the flag that names the file.
      kind: the expected content, such as "search.json".
      convert: function of the dict; may raise KeyError, TypeError or ValueError.
      max_bytes: maximum size of the file.

    Raises:
      UserError: the file cannot be read or converted.
    """
    content = read_object(path, f"{flag}: {path}", max_bytes=max_bytes)
    try:
        return convert(content)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{flag}: {path} is no {kind} ({problem}).") from error


def require_type(value: Any, kind: type) -> Any:
    """Returns a JSON value after checking its type.

    Args:
      value: the parsed value.
      kind: str, bool, int, dict, list, or float for any number.

    Raises:
      ValueError: the value has another type, or does not fit into 64 bits.
    """
    kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds or type(value) is int and abs(value) >= 1 << 63:
        raise ValueError(f"expected {kind.__name__}, found {json.dumps(value)[:50]}")
    return value


def require_finite(value: Any, kind: type) -> Any:
    """Returns a JSON value after `require_type`; raises ValueError for NaN, Inf and 1e308, too."""
    value = require_type(value, kind)
    if kind is float and not abs(value) < MAX_NUMBER:
        raise ValueError(f"expected a finite number below 2^63, found {value}")
    return value
