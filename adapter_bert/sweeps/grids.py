"""Expands grids of flags into the trials of a sweep.

A grid file is JSON:

    {"common": {"task_name": ["MRPC", "CoLA"], "random_seed": [1, 2, 3]},
     "grids": [{"adapter_size": [8, 64, 256], "learning_rate": [3e-4, 1e-3]},
               {"tuning": "full", "learning_rate": 5e-5}]}

Each grid, merged with "common", has flags of run_classifier.py, or of the script in "script". A
trial is one combination of the flags' values.
"""

import contextlib
import difflib
import hashlib
import importlib
import itertools
import json
import numbers
import os
import posixpath
import re
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

from absl import flags

from adapter_bert.files import json_objects
from adapter_bert.model import configs, task_kinds
from adapter_bert.shell import environment
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import records

# The flags that locate data.
DATA_FLAGS = ("data_dir", "train_file", "predict_file", "dev_file", "test_file")
SPLIT_FLAGS = ("split", "dev_share", "test_share")  # How rows are set apart from training rows.
_VARIABLE = re.compile(r"\$(\w+)")


def scripts() -> Dict[str, Any]:
    """Returns the training scripts, a dict from their names to the kind of task they train."""
    return {kind.script: kind for kind in reversed(task_kinds.kinds())}


class Trial(NamedTuple):
    """Describes one run of a sweep.

    Attributes:
      script: one of `scripts`.
      flags: (name, value) pairs, sorted by name; values are str, bool, int and float. "$NAME" in a
        str stands for an environment variable.
    """

    script: str
    flags: Tuple[Tuple[str, object], ...]

    @property
    def task(self) -> str:
        """The task's name; for a custom task --name, or the name of its data's folder."""
        flags = dict(self.flags)
        name = str(flags.get("task_name", self.script[len("run_") : -len(".py")]))
        files = (os.path.abspath(str(flags[flag])) for flag in DATA_FLAGS[1:] if flag in flags)
        folder = flags.get("data_dir", next(map(os.path.dirname, files), None))
        return task_label(name, flags.get("name", folder))

    def with_flags(self, flags: Dict[str, Any]) -> "Trial":
        """Returns the trial with further flags, a dict."""
        if not flags:
            return self
        return Trial(self.script, tuple(sorted({**dict(self.flags), **flags}.items())))

    @property
    def method(self) -> str:
        """The tuning method."""
        return str(dict(self.flags).get("tuning", "adapters"))

    def key(self, backbone: Any, data: Any = None) -> str:
        """Returns the trial's key, a digest of script, flags, backbone and data.

        Args:
          backbone: what identifies the BERT, a str or a list of them.
          data: dict of digests, see `data_digests.DataDigests`; None if unknown.
        """
        identity = [self.script, self.flags, backbone, *([data] if data else [])]
        text = json.dumps(identity, separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def command(self, output_dir: str, is_expanded: bool = True) -> List[str]:
        """Returns script and flags as a list, by default with environment variables expanded.

        Raises:
          UserError: an environment variable is not set.
        """
        expand = expand_variables if is_expanded else lambda name, value: value
        flags = [f"--{name}={expand(name, value)}" for name, value in self.flags]
        return [self.script, *flags, f"--output_dir={output_dir}"]


def task_label(name: str, data_dir: Any) -> str:
    """Returns a task's name in records; for a custom task, the name of its data's folder.

    Args:
      name: the task's.
      data_dir: path of the data's folder, or None.
    """
    if name.lower() != "custom":
        return name
    return posixpath.basename(str(data_dir or name).rstrip("/"))


def expand_variables(name: str, value: object) -> str:
    """Returns a flag's value as a text, with $NAME replaced by that environment variable.

    Raises:
      UserError: the variable is not set.
    """

    def read(match: Any) -> str:
        if match.group(1) not in os.environ:
            raise UserError(f"--{name}={value}: ${match.group(1)} is not set.")
        return os.environ[match.group(1)]

    return _VARIABLE.sub(read, str(value))


def variables(trials: Iterable[Trial]) -> Set[str]:
    """Returns the names of the environment variables in the flags of trials."""
    texts = {str(value) for trial in trials for _, value in trial.flags}
    return {name for text in texts for name in _VARIABLE.findall(text)}


def hide_values(text: str, names: Iterable[str]) -> str:
    """Returns a text with $NAME instead of the values of environment variables.

    The values may be secret. Numbers and texts of less than four characters stay.
    """
    # The longest first: one may contain others.
    for value, name in sorted(_secrets(names), key=lambda pair: (-len(pair[0]), pair)):
        text = text.replace(value, f"${name}")
    return text


def _secrets(names: Iterable[str]) -> List[Tuple[str, str]]:
    """Returns (value, name) of the environment variables to hide."""
    pairs = [(os.environ.get(name, ""), name) for name in names]
    return [pair for pair in pairs if len(pair[0]) >= 4 and isinstance(_parse_value(pair[0]), str)]


def hide_values_in_file(file: BinaryIO, names: Iterable[str]) -> None:
    """Applies `hide_values` to a binary file that is open to read and append."""
    if not _secrets(names):
        return
    file.seek(0)
    text = os.fsdecode(file.read())
    hidden = hide_values(text, names)
    if hidden != text:
        file.truncate(0)
        file.write(os.fsencode(hidden))
        file.flush()


@contextlib.contextmanager
def hide_values_in_errors(names: Iterable[str]) -> Iterator[None]:
    """Applies `hide_values` to the messages of `UserError`s, while entered."""
    try:
        yield
    except UserError as error:
        raise UserError(hide_values(str(error), names)) from None


def _flags_of(script: str) -> flags.FlagValues:
    """Returns a script's own flags, without those of absl."""
    values = flags.FlagValues()
    with environment.deferred_imports():  # Flags need no TensorFlow.
        module = importlib.import_module(f"adapter_bert.{script[: -len('.py')]}")
        module.define_flags(values)
    return values


def check_flags(trials: Iterable[Trial]) -> None:
    """Raises UserError if a script does not accept a flag of its trials, or the flag's value.

    absl's own flags are refused, as some read and run files, such as --flagfile.
    """
    given = {(trial.script, name, value) for trial in trials for name, value in trial.flags}
    flags_by_script = {script: _flags_of(script) for script in {script for script, _, _ in given}}
    for script, name, value in sorted(given, key=str):
        known = flags_by_script[script]
        if name not in known:
            close = difflib.get_close_matches(name, list(known), 1)
            advice = f" Did you mean --{close[0]}?" if close else ""
            raise UserError(f"{script} does not accept the trials' flag --{name}.{advice}")
        with hide_values_in_errors(_VARIABLE.findall(str(value))):
            try:
                known([script, f"--{name}={expand_variables(name, value)}"])
            except (flags.Error, ValueError) as error:
                raise UserError(f"{script} does not accept the trials' flags: {error}.") from None


def read_grids(path: str) -> List[Dict[str, Any]]:
    """Returns the grids in a file, a list of dicts; see `expand_grids`.

    Raises:
      UserError: the file is missing, or is not a grid file.
    """
    expected = "an object with grids and, optionally, common"
    document = json_objects.read_object(path, f"--grid={path}", expected)
    if not {"grids"} <= set(document) <= {"common", "grids"}:
        raise UserError(f"--grid={path}: expected {expected}.")
    common, grid_list = document.get("common", {}), document["grids"]
    if not isinstance(grid_list, list) or not all(
        isinstance(grid, dict) for grid in [common, *grid_list]
    ):
        raise UserError(f"--grid={path}: expected common to be an object, grids a list of objects.")
    return [{**common, **grid} for grid in grid_list]


def parse_setting(text: str, flag: str) -> Tuple[str, List[Any]]:
    """Returns (name, list of values) of the text name=value[,value...].

    Args:
      text: a flag's value.
      flag: the flag's name, for errors.

    Raises:
      UserError: the text has another format, or a value is invalid.
    """
    name, equals, values = text.partition("=")
    if not (equals and name and values):
        raise UserError(f"{flag}={text}: expected a flag and its values, as in adapter_size=8,64.")
    name = name.lstrip("-")
    if name == "script":
        raise UserError(f"{flag}={text}: script is not a flag; change it in the grid.")
    return name, [read_value(name, value, f"{flag}={text}") for value in values.split(",")]


def _parse_value(text: str) -> Any:
    """Returns a flag's text as a bool or a number if it is one, or else unchanged."""
    try:
        value = json_objects.parse_json(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text


def override_flags(
    grids: List[Dict[str, Any]], overrides: Dict[str, List[Any]]
) -> List[Dict[str, Any]]:
    """Returns grids with replaced values of flags.

    Args:
      grids: list of dicts.
      overrides: dict from flags to lists of values. They replace a flag's values in the grids that
        have the flag; if none has it, all grids get it for whose tuning method it has an effect.
        All grids get seeds.

    Raises:
      UserError: a flag has no effect in any grid.
    """
    for name, values in overrides.items():
        matching = [grid for grid in grids if name in grid or name == "random_seed"]
        matching = matching or [grid for grid in grids if _has_effect(name, grid)]
        if not matching:
            raise UserError(f"--set={name}: it has no effect on the tuning methods of the grids.")
        grids = [{**grid, name: values} if grid in matching else grid for grid in grids]
    return grids


def _has_effect(name: str, grid: Dict[str, Any]) -> bool:
    """Returns whether a flag changes the trials of a grid with one of its tuning methods."""
    methods = grid.get("tuning", "adapters")
    methods = methods if isinstance(methods, list) else [methods]
    if name == "train_pooler":  # The other methods always train it.
        return any(method not in configs.BERT_METHODS for method in methods)
    if name == "num_top_layers":
        return "top_layers" in methods
    return "adapters" in methods or not name.startswith(("adapter_", "layer_norms"))


def expand_grids(
    grids: Iterable[Dict[str, Any]],
    only: Sequence[Tuple[str, List[Any]]] = (),
    source: str = "grid",
) -> List[Trial]:
    """Returns the trials of grids, without duplicates, in the order of the grids.

    Args:
      grids: list of dicts from flags to a value or a list of values; "script" is not a flag.
      only: (name, values) pairs: drops trials with another value of a flag. A missing "tuning"
        counts as adapters.
      source: the grids' name in errors, such as "--grid=file.json".

    Raises:
      UserError: a value is invalid, the sweep itself sets a flag, a script is unknown, or there are
        no trials.
    """
    products = [_axes(grid, only, source) for grid in grids]
    trials = dict.fromkeys(
        Trial(script, tuple(zip(axes, values)))
        for script, axes in products
        for values in itertools.product(*axes.values())
    )
    if not trials:
        raise UserError(f"{source}: no trial is left.")
    return list(trials)


def _axes(
    grid: Dict[str, Any], only: Sequence[Tuple[str, List[Any]]], source: str
) -> Tuple[str, Dict[str, List[Any]]]:
    """Returns (script, dict from each flag, sorted, to its values that `only` allows)."""
    script, known = grid.get("script", "run_classifier.py"), sorted(scripts())
    if script not in known:
        raise UserError(f"{source}: script {script!r}: expected one of {', '.join(known)}.")
    flags = {"do_train": True, "do_eval": True, **grid}
    flags.pop("script", None)
    axes = {name: _read_values(name, flags[name], source) for name in sorted(flags)}
    for name, allowed in only:
        values = axes.get(name, ["adapters" if name == "tuning" else None])
        remaining = [value for value in values if value in allowed]
        if name in axes or not remaining:
            axes[name] = remaining
    return script, axes


def _read_values(name: str, values: Any, source: str) -> List[Any]:
    """Returns a flag's values as a list."""
    values = values if isinstance(values, list) else [values]
    if not values:
        raise UserError(f"{source}: {name}: expected at least one value; found an empty list.")
    return [read_value(name, value, f"{source}: {name}") for value in values]


def read_value(name: str, value: Any, where: str) -> Any:
    """Returns a flag's canonical value: 3.0 and "3" become 3, so that equal trials have one key.

    Args:
      name: the flag's.
      value: from JSON or a command line.
      where: begins the error message.

    Raises:
      UserError: the value is invalid, or the sweep itself sets the flag.
    """
    # The name of a column, folder or file may look like a number.
    if name.endswith(("_column", "_dir", "_file")):
        value = str(value) if type(value) is int else value
    elif isinstance(value, str):
        value = _parse_value(value)
    if isinstance(value, str) and name in records.NUMBERS and "$" not in value:
        try:
            value = float(value)  # As flags do: ".001" is not valid JSON.
        except ValueError as error:
            raise UserError(f"{where}: expected a number; found {value}.") from error
    if not isinstance(value, (str, numbers.Real)):
        raise UserError(f"{where}: expected texts, numbers, true or false; found {value!r}.")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if name in ("output_dir", "overwrite_output_dir"):
        raise UserError(f"{where}: the sweep sets each trial's output_dir.")
    if name == "folds" and value:
        raise UserError(f"{where}: trials are compared on one dev set, without cross-validation.")
    if name in ("do_train", "do_eval") and value is not True:
        raise UserError(f"{where}: every trial trains and evaluates; found {value}.")
    return value
