"""TensorFlow Serving's predictions, for one task or for several.

POST /v1/models/<task>:predict    {"instances": [...]} or {"inputs": {...}}
POST /v1/models:predict           {"instances": [{"task": ..., ...}, ...]}
"""

from typing import Any, Generator, List, NamedTuple, Optional, Tuple

from adapter_bert.serving.http import messages, served_tasks
from adapter_bert.serving.http.messages import Refused
from adapter_bert.serving.inference import bank, memory, request_texts
from adapter_bert.shell.errors import UserError

_MAX_LABELS = 100_000  # Of all instances of a request together: an answer of about 3 MB.


class EncodedInstances(NamedTuple):
    """A request's instances, encoded.

    Attributes:
      tasks: the `served_tasks.ServedTask` of each instance.
      requests: the `request_texts.EncodedRequest` of each instance.
      is_columnar: bool; whether the answer has a list for each output.
    """

    tasks: List[served_tasks.ServedTask]
    requests: List[request_texts.EncodedRequest]
    is_columnar: bool

    def rows(self) -> List[bank.Row]:
        """Returns the rows to compute."""
        pairs = zip(self.tasks, self.requests)
        return [row for task, request in pairs for row in task.rows(request)]

    def answer(
        self, outputs: List[Any]
    ) -> Generator[None, None, Tuple[bytes, List[served_tasks.ServedTask]]]:
        """Returns (response's body, task of each instance that did not fail), in steps."""
        remaining, answers, answered, failures = iter(outputs), [], [], []
        for task, request in zip(self.tasks, self.requests):
            yield
            own = [next(remaining) for _ in request.rows]
            try:
                messages.check_outputs(own)
                answers.append(request.decode(own))
                answered.append(task)
            except Refused as failure:
                answers.append({"error": str(failure)})
                failures.append(failure)
        if failures and (self.is_columnar or not answered):
            raise failures[0]
        if self.is_columnar:
            return messages.dump_json({"outputs": messages.columns(answers)}), answered
        return messages.dump_json({"predictions": answers}), answered


def encode(
    body: bytes,
    get_task: messages.GetTask,
    label: Optional[str],
    max_instances: int,
    max_rows: int,
) -> Generator[Any, None, EncodedInstances]:
    """Returns a request's `EncodedInstances`, in steps for `admission.Readers`.

    Without a task's label, each instance names its task.

    Raises:
      UserError: the request is invalid.
      Refused: it has too many labels or rows.
    """
    instances, is_columnar = messages.parse_instances(body)
    if is_columnar and label is None:
        raise UserError('a request of several tasks needs {"instances": [...]}')
    if not 0 < len(instances) <= max_instances:
        raise UserError(f"found {len(instances)} instances; expected 1 to {max_instances}")
    tasks, requests, num_rows, num_labels = [], [], 0, 0
    for index, instance in enumerate(instances):
        yield
        try:
            name = label
            if name is None:
                name, instance = messages.split_task(instance)
            task = yield from get_task(name)
            tasks.append(task)
            requests.append(task.texts.encode(instance))
        except (served_tasks.TaskNotServed, memory.Exhausted):
            raise
        except UserError as error:
            raise UserError(f"instances[{index}]: {error}") from None
        num_labels += len(task.description.labels)
        if num_labels > _MAX_LABELS:
            raise Refused(413, f"the answer has over {_MAX_LABELS:,} labels")
        num_rows += len(requests[-1].rows)
        if num_rows > max_rows:
            raise Refused(413, f"the request has over {max_rows} rows (a long text has several)")
    return EncodedInstances(tasks, requests, is_columnar)
