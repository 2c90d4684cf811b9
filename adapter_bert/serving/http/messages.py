"""TensorFlow Serving's JSON formats and errors: reads requests, and describes tasks and answers."""

import datetime
import json
from typing import Any, Callable, Dict, Generator, List, Set, Tuple

from adapter_bert.files import json_objects
from adapter_bert.formats import task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.serving.http import served_tasks
from adapter_bert.serving.inference import presentations
from adapter_bert.shell.errors import UserError

UNEXPECTED = "internal error; see the server's log"

# Returns a label's `served_tasks.ServedTask`, in steps for `admission.Readers`.
GetTask = Callable[[str], Generator[Any, None, served_tasks.ServedTask]]


class Refused(Exception):
    """Ends a request with an HTTP status and an error message."""

    def __init__(self, status: int, sentence: str, closes_connection: bool = False):
        super().__init__(sentence)
        self.status, self.closes_connection = status, closes_connection


def disconnected() -> Refused:
    """Returns the error of a client that disconnected."""
    return Refused(400, "the client disconnected", closes_connection=True)


def check_outputs(outputs: List[Any]) -> None:
    """Raises `Refused` if one of the bank's outputs is an error."""
    for output in outputs:
        if isinstance(output, UserError):  # Its text may name folders.
            raise Refused(500, "the task's adapter failed; the server's log has the reason")
        if isinstance(output, Exception):
            raise Refused(500, UNEXPECTED)


def parse_object(body: bytes, names: Set[str], expected: str) -> Dict[str, Any]:
    """Returns the JSON object in a body; raises UserError if it has other names."""
    try:
        value = json_objects.parse_json(body.decode("utf-8-sig"), _reject_constant)
    except ValueError as error:
        raise UserError(f"the body is not valid JSON ({error})") from None
    if not isinstance(value, dict) or set(value) - names:
        raise UserError(f"expected {expected}")
    return value


def _reject_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def parse_instances(body: bytes) -> Tuple[list, bool]:
    """Returns (instances, whether they are columnar) of a body in TensorFlow Serving's formats."""
    expected = '{"instances": [...]} or {"inputs": {...}}'
    value = parse_object(body, {"instances", "inputs", "signature_name"}, expected)
    signature = value.pop("signature_name", "serving_default")
    if signature != "serving_default":
        raise UserError("signature_name: expected serving_default")
    if len(value) != 1:
        raise UserError(f"expected either {expected}")
    ((key, payload),) = value.items()
    if key == "instances" or isinstance(payload, list):
        if not isinstance(payload, list):
            raise UserError("instances: expected a list")
        return payload, key == "inputs"
    lists = list(payload.values()) if isinstance(payload, dict) else []
    if not lists or not all(isinstance(each, list) for each in lists):
        raise UserError("inputs: expected an object of lists")
    if len(set(map(len, lists))) > 1:
        raise UserError("inputs: the lists have different lengths")
    return [dict(zip(payload, row)) for row in zip(*lists)], True


def split_task(instance: Any) -> Tuple[str, Dict[str, Any]]:
    """Returns (task's name, instance without it), for a request that mixes tasks."""
    if not isinstance(instance, dict) or not isinstance(instance.get("task"), str):
        raise UserError('expected an object with "task", a task name')
    return instance["task"], {name: v for name, v in instance.items() if name != "task"}


def columns(answers: List[Any]) -> Any:
    """Returns the predictions of a columnar request: a list, or a dict of lists."""
    if not isinstance(answers[0], dict):
        return answers
    if any(set(answer) != set(answers[0]) for answer in answers):
        raise UserError("inputs: expected either texts or token ids, not both")
    return {name: [a[name] for a in answers] for name in answers[0]}


def summary(task: served_tasks.ServedTask) -> Dict[str, Any]:
    """Returns a task's summary for the page, a dict of JSON values."""
    description = task.description
    presentation, num_required = presentations.of(description)
    return {
        "version": str(task.version),
        "task": description.task,
        "kind": description.kind,
        "labels": list(description.labels),
        "label_descriptions": presentation.label_descriptions,
        "fields": list(presentation.fields),
        "num_required_fields": num_required,
        "example": presentation.example,
        "examples": list(presentation.examples),
        "max_seq_length": description.max_seq_length,
        "do_lower_case": description.do_lower_case,
        "scores": task_adapter.finite_scores(description),
        "digest": task.digest,
        "steps": description.global_step,
        "date": f"{datetime.datetime.fromtimestamp(task.modified, datetime.timezone.utc):%FT%TZ}",
        "size": task.num_bytes,
        "package": description.versions.get("adapter_bert"),
    }


def signature(task: served_tasks.ServedTask) -> Dict[str, Any]:
    """Returns a task's inputs and outputs in TensorFlow Serving's format."""

    def tensor(name: str, kind: str) -> Dict[str, Any]:
        shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
        return {"dtype": kind, "tensor_shape": shape, "name": name}

    outputs = task_kinds.get(task.description.kind).answer_types
    signature = {
        "inputs": {name: tensor(name, "DT_STRING") for name in task.texts.fields},
        "outputs": {name: tensor(name, kind) for name, kind in outputs.items()},
        "method_name": "tensorflow/serving/predict",
    }
    return {"signature_def": {"serving_default": signature}}


def dump_json(value: Any) -> bytes:
    """Returns a value as JSON without blanks."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
