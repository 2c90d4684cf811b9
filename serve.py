"""Serves any number of tasks over one BERT by HTTP, with TensorFlow Serving's REST conventions.

    python serve.py --adapters='output/*/adapter'
    curl -d '{"instances": [{"text": "..."}]}' http://127.0.0.1:8501/v1/models/sms_spam:predict

Requests of all tasks share batches. `rest_api` has the endpoints; http://127.0.0.1:8501/ is a page
to try tasks with.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare(environment.MODELS)

import contextlib
import importlib
import itertools
import os

from absl import flags, logging

from adapter_bert.common import cli, configs, devices
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_folders
from adapter_bert.serving import bank, batcher, registry, request_texts
from adapter_bert.training import bert_flags

TOKEN_VARIABLE = "ADAPTER_BERT_TOKEN"
_STOP_SECONDS = 5.0  # For what is left after the last answer.
# What batches are padded to: so few lengths that all are soon compiled, at a sixth more tokens.
_LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    at = section("Tasks", flag_values)
    flags.DEFINE_list(
        "adapters",
        [],
        "Folders of task adapters, or patterns: output/*/adapter. A task is called after the"
        " folder that an adapter lies in.",
        **at,
    )
    flags.DEFINE_string(
        "adapter_dir",
        None,
        "Folder of task adapters, <task>, <task>/adapter or <task>/<number>: all are served, and"
        " others may be added below it while the server runs.",
        **at,
    )
    flags.DEFINE_integer(
        "most_in_memory",
        None,
        "Tasks in memory. One is read when it is first asked for, and makes room for others when"
        " it was asked for longest ago. Default: all that were asked for stay.",
        1,
        **at,
    )
    flags.DEFINE_enum(
        "precision",
        "float32",
        list(configs.PRECISIONS),
        "Precision; auto: bfloat16 where it is measured to be faster.",
        **section("Devices", flag_values),
    )
    _define_network(section("Network", flag_values))
    _define_limits(section("Limits", flag_values))
    bert_flags.define_pretrained(flag_values)


def _define_network(at):
    flags.DEFINE_string("host", "127.0.0.1", "Address to listen at; 0.0.0.0 is any.", **at)
    flags.DEFINE_integer("port", 8501, "Port to listen at; 0 is a free one.", 0, 65535, **at)
    flags.DEFINE_string(
        "token",
        None,
        "What requests must send as Authorization: Bearer <token>. Default:"
        f" ${TOKEN_VARIABLE}, which other users of the machine do not see.",
        **at,
    )


def _define_limits(at):
    for name, default, text in (
        ("max_queue_size", 1024, "Rows that may wait; more are refused with status 503."),
        ("max_instances", 128, "Instances of a request."),
        ("max_text_length", 100000, "Characters of a text."),
        ("max_body_mb", 1, "Megabytes of a request's body."),
        ("max_upload_mb", 256, "Megabytes of an adapter's upload."),
        ("max_connections", 4096, "Connections at a time."),
    ):
        flags.DEFINE_integer(name, default, text, 1, **at)
    most = batcher.BATCH_SIZE
    text = f"Rows that are computed together, {most} at most."
    flags.DEFINE_integer("max_batch_size", most, text, 1, most, **at)
    for name, seconds, text in (
        ("read_timeout", 10.0, "Seconds for a request to arrive; connections idle as long end."),
        ("answer_timeout", 30.0, "Seconds for a request's answer."),
    ):
        flags.DEFINE_float(name, seconds, text, 0.01, **at)


def run(values):
    """Serves until Ctrl-C or SIGTERM.

    Args:
      values: parsed flags of `define_flags`.

    Returns:
      The report that ends the run: a list of lines.

    Raises:
      UserError: a flag is wrong, or what it names is missing, broken or does not fit; this is
        TensorFlow 1, or a package is missing.
    """
    devices.need_tensorflow_2("serve.py")
    http_server, rest_api, serving_metrics = _http_modules()
    token, metrics = _token(values), serving_metrics.Metrics()
    allows_changes = token is not None or http_server.is_loopback(values.host)
    if not allows_changes:
        logging.warning(
            "=== --host=%s without --token: whoever reaches this port may ask; nobody may add or"
            " remove tasks. ===",
            values.host,
        )
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(http_server.listen(values.host, values.port))
        tasks, adapter_bank = _load(values)
        for resource in (adapter_bank, tasks):
            stack.enter_context(contextlib.closing(resource))
        row_batcher = _batcher(values, tasks, adapter_bank, metrics)
        stack.enter_context(contextlib.closing(row_batcher))
        api = rest_api.RestApi(
            tasks, row_batcher, metrics, _limits(values, rest_api), token, allows_changes
        )
        stack.enter_context(contextlib.closing(api))
        server = http_server.make_server(
            api.application(),
            max_connections=values.max_connections,
            read_seconds=values.read_timeout,
            stop_seconds=values.read_timeout + values.answer_timeout + _STOP_SECONDS,
        )
        url = http_server.url_of(listener)
        count = f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"
        print(f"Serving {count} at {url} (Ctrl-C stops)", flush=True)
        http_server.run(server, listener)
        num_requests = server.server_state.total_requests
    return [f"Stopped; {num_requests} requests were answered."]


def _batcher(values, tasks, adapter_bank, metrics):
    """The `batcher.Batcher` of a bank, which tells metrics what it does."""
    warm_ups = tasks.warm_ups(values.max_batch_size, _LENGTHS)
    for warm_up in itertools.islice(warm_ups, 2):  # Builds the models of texts and of spans.
        warm_up()
    row_batcher = batcher.Batcher(
        adapter_bank.predict,
        lambda row: len(row.input_ids),
        max_batch_size=values.max_batch_size,
        max_queue_size=values.max_queue_size,
        observe=metrics.count_batch,
        chores=warm_ups,
    )
    metrics.watch(
        queue_rows=lambda: len(row_batcher),
        tasks=lambda: len(tasks),
        tasks_in_memory=lambda: len(adapter_bank.names_in_memory()),
    )
    return row_batcher


def _http_modules():
    """The modules that stand on packages which nothing else needs."""
    try:
        return [
            importlib.import_module("adapter_bert.serving." + name)
            for name in ("http_server", "rest_api", "prometheus")
        ]
    except ImportError as error:
        raise UserError(
            f"serve.py needs packages of its own ({error}); run `pip install -r"
            " requirements-serving.txt`."
        ) from None


def _token(values):
    """The token that requests must send, or None."""
    token = os.environ.get(TOKEN_VARIABLE) if values.token is None else values.token
    if token is not None and not (token and token.isascii() and token.isprintable()):
        raise UserError("--token: expected ASCII characters, at least one, found none or others.")
    return token


def _limits(values, rest_api):
    return rest_api.Limits(
        max_body_bytes=values.max_body_mb << 20,
        max_upload_bytes=values.max_upload_mb << 20,
        max_instances=values.max_instances,
        read_seconds=values.read_timeout,
        answer_seconds=values.answer_timeout,
    )


def _load(values):
    """(`registry.ServedTasks`, `bank.AdapterBank`) of what the flags name."""
    folders = adapter_folders.named(values.adapters)
    if not folders and values.adapter_dir is None:
        raise UserError(
            "Nothing to serve: give --adapters, as in --adapters='output/*/adapter', or"
            " --adapter_dir."
        )
    below = {} if values.adapter_dir is None else adapter_folders.below(values.adapter_dir)
    bert = bert_flags.find_pretrained(values)
    tokenizers = request_texts.Tokenizers(bert.vocab_file, bool(values.spm_model_file))
    adapter_bank = bank.AdapterBank(
        bert.config,
        bert.init_checkpoint,
        precision=values.precision,
        max_in_memory=values.most_in_memory,
        lengths=_LENGTHS,
    )
    encoding = request_texts.TextEncoding(bert.config, tokenizers, values.max_text_length)
    tasks = registry.ServedTasks(adapter_bank, encoding, values.adapter_dir)
    for name, folder in folders.items():
        tasks.put(name, folder)
    for name, folder in below.items():
        try:
            tasks.put(name, folder)
        except UserError as error:
            logging.warning("Not served: %s", error)
        else:
            if folders.get(name, folder) != folder:
                logging.warning("%r is served from %s, not from %s.", name, folder, folders[name])
    return tasks, adapter_bank


main = cli.main_of(run)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
