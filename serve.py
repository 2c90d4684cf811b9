"""Serves any number of tasks over one BERT by HTTP, with TensorFlow Serving's REST conventions.

    python serve.py --adapters='output/*/adapter'
    curl -d '{"instances": [{"text": "..."}]}' http://127.0.0.1:8501/v1/models/sms_spam:predict

Requests of all tasks share batches. http://127.0.0.1:8501/ is a page to try the tasks, and
http://127.0.0.1:8501/openapi.json describes the endpoints.
"""

from adapter_bert.shell import environment, extras

if __name__ == "__main__":
    environment.prepare(environment.SERVING)

    from adapter_bert.serving.inference import memory

    memory.prepare("serve.py")  # A process with too little would end in the imports.

import contextlib
import dataclasses
import gc
import os
import queue
import re
import threading
import time
from concurrent import futures
from typing import Any, List, Optional, Tuple

from absl import logging

from adapter_bert.files import gfile
from adapter_bert.formats import adapter_folders
from adapter_bert.model import configs
from adapter_bert.serving.http import admission, registry, served_tasks, task_folders
from adapter_bert.serving.inference import bank, batcher, memory, request_texts
from adapter_bert.shell import cli, control_groups
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import flag
from adapter_bert.training import pretrained
from adapter_bert.training.config import PretrainedConfig

TOKEN_VARIABLE = "ADAPTER_BERT_TOKEN"
_MAX_POLLING = 0.05  # The share of the time that looks at folders may take.
_STOP_SECONDS = 5.0  # To close connections after the last answer.
_MIN_REQUESTS_BYTES = 64 << 20  # Memory for requests and their answers.
_MAX_UNSENT_BYTES = 256 << 20  # Answers that wait for slow clients.
# Memory of a waiting row: its ids, or its part of a body, whose parsed JSON takes most.
_ROW_BYTES = 160 << 10


@dataclasses.dataclass(frozen=True)
class ServerConfig(PretrainedConfig):
    """The settings of this script."""

    adapters: Tuple[str, ...] = flag((), adapter_folders.FLAG_HELP, "Tasks")
    adapter_dir: Optional[str] = flag(
        None,
        "Folder of task adapters: <task>, <task>/adapter or <task>/<number>. The server serves all"
        " of them, and saves uploads there.",
        "Tasks",
    )
    poll_seconds: float = flag(
        10.0,
        "Seconds between two looks at the folders of adapters, to load, replace and remove tasks;"
        " 0 looks only at SIGHUP. Looking takes at most a twentieth of the time.",
        "Tasks",
        lower=0,
    )
    keep_versions: int = flag(
        2,
        "Number of uploads of each task that stay on disk. Those that this server uses also stay.",
        "Tasks",
        lower=1,
    )
    most_in_memory: Optional[int] = flag(
        None,
        "Maximum number of tasks in memory. A task is read at its first request, and the least"
        " recently used one is evicted. Default: no limit.",
        "Tasks",
        lower=1,
    )
    precision: str = flag(
        "float32",
        "Precision. int8 is faster and rounds BERT's weights. float16 needs a GPU.",
        "Devices",
        choices=configs.ANSWER_PRECISIONS,
    )
    num_threads: Optional[int] = flag(
        None,
        "CPU threads of a batch. Default: one for each core that this process may use, by its"
        " affinity and its container's limit.",
        "Devices",
        lower=1,
    )
    host: str = flag("127.0.0.1", "Address to listen on; 0.0.0.0 means all.", "Network")
    port: int = flag(
        8501, "Port to listen on; 0 picks a free one.", "Network", lower=0, upper=65535
    )
    cors_origins: Tuple[str, ...] = flag(
        (),
        "Origins of web pages that may call the server, such as https://example.org; * for all.",
        "Network",
    )
    drain_seconds: float = flag(
        0.0,
        "Seconds from SIGTERM, when /readyz becomes 503, until connections are refused.",
        "Network",
        lower=0,
    )
    access_log: Optional[str] = flag(
        None,
        "Write a line for each request to stdout, as text or as JSON.",
        "Network",
        choices=("text", "json"),
    )
    token: Optional[str] = flag(
        None,
        "Token that requests must send as Authorization: Bearer <token>. Default:"
        f" ${TOKEN_VARIABLE}, which other users of the machine cannot see.",
        "Network",
    )
    max_queue_size: int = flag(
        1024, "Maximum number of waiting rows; further ones get status 503.", "Limits", lower=1
    )
    max_instances: int = flag(128, "Maximum number of instances in a request.", "Limits", lower=1)
    max_text_length: int = flag(100000, "Maximum characters of a text.", "Limits", lower=1)
    max_body_mb: int = flag(1, "Maximum megabytes of a request's body.", "Limits", lower=1)
    max_upload_mb: int = flag(256, "Maximum megabytes of an uploaded adapter.", "Limits", lower=1)
    max_task_metrics: int = flag(
        1000,
        "Maximum number of tasks for which /metrics has lines of each task; above it, it has none.",
        "Limits",
        lower=0,
    )
    max_connections: int = flag(4096, "Maximum number of open connections.", "Limits", lower=1)
    max_batch_size: int = flag(
        batcher.BATCH_SIZE,
        f"Maximum number of rows in a batch, at most {batcher.BATCH_SIZE}.",
        "Limits",
        lower=1,
        upper=batcher.BATCH_SIZE,
    )
    read_timeout: float = flag(
        10.0,
        "Seconds in which a request must arrive; an upload has more, by its size (1 Mbit/s)."
        " Connections idle for as long are closed.",
        "Limits",
        lower=0.01,
    )
    answer_timeout: float = flag(
        30.0, "Seconds in which a request must be answered.", "Limits", lower=0.01
    )


def run(values: Any) -> List[str]:
    """Serves until Ctrl-C or SIGTERM; returns the report, a list of lines.

    Raises:
      UserError: a flag is wrong, a file is missing, broken or incompatible, or a package is
        missing.
    """
    config = ServerConfig.from_flags(values)
    http_server, request_log, rest_api = _http_modules()
    token = _token(config)
    allows_changes = token is not None or http_server.is_loopback(config.host)
    if not allows_changes:
        logging.warning(
            "=== --host=%s without --token: anybody who reaches this port can send texts. Nobody"
            " can add or remove tasks. ===",
            config.host,
        )
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(http_server.listen(config.host, config.port))
        bert, requests_bytes = _find_bert(config)
        log, entrance = request_log.RequestLog(config.access_log), rest_api.Entrance()
        server = http_server.make_server(
            entrance,
            max_connections=config.max_connections,
            read_seconds=config.read_timeout,
            stop_seconds=config.read_timeout + config.answer_timeout + _STOP_SECONDS,
            max_unsent_bytes=min(_MAX_UNSENT_BYTES, requests_bytes // 2),
            drain_seconds=config.drain_seconds,
            on_drain=entrance.drain,
            on_refusal=lambda: log.add_refusal(503, "a connection beyond --max_connections"),
        )

        def start() -> "registry.Registry":
            tasks, adapter_bank = _load(config, bert)
            for resource in (adapter_bank, tasks):
                stack.enter_context(contextlib.closing(resource))
            limits = _limits(config, requests_bytes // 2)
            rights = token, allows_changes, config.host, config.cors_origins
            api = rest_api.RestApi(tasks, adapter_bank, limits, *rights, log)
            stack.enter_context(contextlib.closing(api))
            entrance.open(api.application())
            num_tasks = len(tasks.served) + tasks.num_loading()
            count = f"{num_tasks} task{'' if num_tasks == 1 else 's'}"
            print(f"Serving {count} at {http_server.url_of(listener)} (Ctrl-C stops)", flush=True)
            gc.freeze()  # Garbage collection need not scan what lives as long as the process.
            return tasks

        started: futures.Future[registry.Registry] = futures.Future()
        hangups: queue.SimpleQueue = queue.SimpleQueue()  # A signal handler may use it.

        def load() -> None:
            try:
                started.set_result(start())
            except BaseException as error:
                started.set_exception(error)
                server.should_exit = True
            else:
                _keep_updating(started.result(), config.poll_seconds, hangups)

        threading.Thread(target=load, name="tasks", daemon=True).start()
        http_server.run(server, listener, lambda: hangups.put(None))
        started.result()  # Raises its error.
        num_requests = server.server_state.total_requests
    return [f"Stopped; {num_requests} requests were answered."]


def _keep_updating(
    tasks: "registry.Registry", poll_seconds: float, hangups: "queue.SimpleQueue"
) -> None:
    """Updates the tasks at once, at each SIGHUP, and every `poll_seconds` unless they are 0."""
    seconds = 0.0  # Of an update that found no change.
    while True:
        start = time.perf_counter()
        if not tasks.update():
            seconds = time.perf_counter() - start
        timeout = max(poll_seconds, seconds / _MAX_POLLING) if poll_seconds else None
        with contextlib.suppress(queue.Empty):
            hangups.get(timeout=timeout)


def _http_modules() -> Tuple[Any, Any, Any]:
    """Returns the modules whose packages only the server needs."""
    try:
        from adapter_bert.serving.http import http_server, request_log, rest_api
    except ImportError as error:
        raise UserError(
            f"serve.py needs more packages ({error}); run {extras.install_command('serve')}."
        ) from None
    return http_server, request_log, rest_api


def _token(config: ServerConfig) -> Optional[str]:
    """Returns the token that requests must send, or None."""
    name, token = "--token", config.token
    if token is None:
        name, token = "$" + TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE)
    # HTTP drops blanks at the ends, and the headers of a request are limited.
    if token is not None and not re.fullmatch("[!-~][ -~]{2,8190}[!-~]", token):
        raise UserError(
            f"{name}: expected 4 to 8,192 printable ASCII characters, with no blank at either end."
        )
    return token


def _limits(config: ServerConfig, queue_bytes: int) -> admission.RequestLimits:
    return admission.RequestLimits(
        max_body_bytes=config.max_body_mb << 20,
        max_upload_bytes=config.max_upload_mb << 20,
        max_instances=config.max_instances,
        max_queue_rows=min(config.max_queue_size, queue_bytes // _ROW_BYTES),
        max_batch_rows=config.max_batch_size,
        read_seconds=config.read_timeout,
        answer_seconds=config.answer_timeout,
        max_task_metrics=config.max_task_metrics,
    )


def _find_bert(config: ServerConfig) -> Tuple[configs.PretrainedBert, int]:
    """Returns (the BERT that the flags name, bytes of memory that are free for requests).

    Raises:
      UserError: no flag names tasks; too little memory is free for the BERT.
    """
    if not config.adapters and config.adapter_dir is None:
        raise UserError(
            "Nothing to serve: set --adapters, as in --adapters='output/*/adapter', or"
            " --adapter_dir."
        )
    if config.adapter_dir is not None and not gfile.isdir(config.adapter_dir):
        raise UserError(f"--adapter_dir={config.adapter_dir} is not a folder.")
    bert = pretrained.find(config, reads_checkpoint=False)
    weights, batch = bank.memory_of(bert.config)
    batches = 2 * batch  # Of `batcher.Lanes`.
    # Measured: reading takes 2.6 times the weights, and 1.6 times stay.
    needed = 1.6 * weights + max(weights, batches + _MIN_REQUESTS_BYTES)
    memory.require(needed, f"Serving {bert.init_checkpoint}")
    num_free = memory.free()[0] - 1.6 * weights - batches
    return bert, int(min(max(_MIN_REQUESTS_BYTES, num_free), 1 << 40))


def _load(
    config: ServerConfig, bert: configs.PretrainedBert
) -> "Tuple[registry.Registry, bank.AdapterBank]":
    """Returns (`registry.Registry`, `bank.AdapterBank`) as the flags say."""
    tokenizers = request_texts.Tokenizers(str(bert.vocab_file), bool(config.spm_model_file))
    adapter_bank = bank.AdapterBank(
        bert.config,
        bert.init_checkpoint,
        precision=config.precision,
        max_in_memory=config.most_in_memory,
        num_threads=config.num_threads,
    )
    threads = config.num_threads or control_groups.num_compute_threads()
    logging.info("CPU threads of a batch: %d.", threads)
    is_lower_cased = bool(config.spm_model_file) or pretrained.is_lower_cased(bert)
    encoding = request_texts.TextEncoding(
        bert.config, tokenizers, config.max_text_length, is_lower_cased
    )
    folders = task_folders.TaskFolders(config.adapter_dir, config.adapters, config.keep_versions)
    tasks = registry.Registry(folders, served_tasks.ServedTasks(adapter_bank, encoding))
    tasks.start()
    return tasks, adapter_bank


define_flags = ServerConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
