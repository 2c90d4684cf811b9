"""Measures contestants, which are processes that take turns, and reports their times.

A benchmark is a script that defines contestants, measures them in turns (A B C A B C ...) and
passes the result to `publish`. A contestant is either a worker, which builds its model once and
then works on request (`take_turns`; the other side is worker.py), or a process that runs completely
each time (`take_turns_whole`).
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import worker

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(FOLDER)
RESULTS = os.path.join(FOLDER, "RESULTS.md")

# Importing this module makes the project's modules importable, from any working directory.
sys.path.append(ROOT)

_HEADING = """# Results

Written by the scripts of this folder. "Ours takes 0.56×": our time divided by this row's. "First
call" includes compilation. MiniLM is the demo's BERT.
"""
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


class Contestant(NamedTuple):
    """A named command line, in which `{scratch}` stands for a new folder at each run."""

    name: str
    command: list


class Timing(NamedTuple):
    """A contestant's measurements.

    Attributes:
      name: the contestant's.
      first: seconds of the first call.
      seconds: list of float, the seconds of the counted calls.
      bytes: peak memory.
      facts: dict that the contestant reported.
    """

    name: str
    first: float
    seconds: list
    bytes: int
    facts: dict

    @property
    def median(self):
        return statistics.median(self.seconds)


class Target(NamedTuple):
    """A target: ours takes at most `share` of the time of a peer.

    Attributes:
      peer: what the names of its contestants begin with; the fastest of them counts.
      share: float.
    """

    peer: str
    share: float


def arguments(description, peers=True, repeats=True):
    """Returns the parser that all benchmarks share; False omits the flag of that name."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--results", default=RESULTS, help="Markdown file to write to; empty for none"
    )
    if repeats:
        parser.add_argument("--repeats", type=int, default=5, help="counted calls of each")
    if peers:
        python = os.path.join(ROOT, ".venv-peers", "bin", "python")
        parser.add_argument("--peers", default=python, help="Python with requirements-peers.txt")
    return parser


def data_arguments(parser):
    """Adds --glue_dir, by default $GLUE_DIR, and `bert_argument`."""
    default = os.environ.get("GLUE_DIR") or None
    parser.add_argument("--glue_dir", type=os.path.abspath, default=default, help="holds MRPC")
    bert_argument(parser)


def bert_argument(parser):
    """Adds --bert_dir, by default $BERT_BASE_DIR or the BERT of `make demo`."""
    default = os.environ.get("BERT_BASE_DIR") or os.path.join(ROOT, "demo", "bert")
    text = "holds bert_model.ckpt, bert_config.json and vocab.txt"
    parser.add_argument("--bert_dir", type=os.path.abspath, default=default, help=text)


def parse(parser, needs_mrpc=True):
    """Parses the command line, and measures how busy the machine is without the benchmark.

    A missing path is an error; if not `needs_mrpc`, the script itself checks --glue_dir.
    """
    values = parser.parse_args()
    values.busy = busy_share()
    for name in ("peers", "openvino"):
        python = getattr(values, name, sys.executable)
        if not os.access(python, os.X_OK):
            parser.error(f"--{name}: there is no {python}; run `make .venv-{name}/installed`.")
    if needs_mrpc and "glue_dir" in values:
        check_folder(parser, "glue_dir", values.glue_dir, "MRPC/train.tsv")
    if "bert_dir" in values:
        check_folder(parser, "bert_dir", values.bert_dir, "vocab.txt")
    return values


def check_folder(parser, flag, folder, needed):
    """Ends with an error of the parser unless the flag's folder has a file or folder in it."""
    if folder is None:
        parser.error(f"set --{flag} or ${flag.upper()}.")
    if not os.path.exists(os.path.join(folder, needed)):
        parser.error(f"--{flag}={folder}: there is no {needed} in it.")


def busy_share(seconds=1.0):
    """Returns the share of the cores' time that is used during the next `seconds`."""
    start, busy = time.monotonic(), busy_seconds()
    time.sleep(seconds)
    return (busy_seconds() - busy) / (time.monotonic() - start) / os.cpu_count()


def busy_seconds():
    """Returns the CPU time that all processes used, and other virtual machines took."""
    with open("/proc/stat", encoding="ascii") as reader:
        user, nice, system, _, _, *others = map(int, reader.readline().split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def project_script(name, script, *options):
    """Returns a contestant in this environment: a script of this folder."""
    return peer(name, sys.executable, script, *options)


def peer(name, python, script, *options):
    """Returns a contestant in a Python's environment: a script of this folder."""
    return Contestant(name, [python, os.path.join(FOLDER, script), *options])


def _environment(**more):
    # The root for our modules; offline, so that peers' libraries do not contact their hub; and
    # modules are compiled once, as for users, not at each start.
    fixed = {"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, "PYTHONPATH": ROOT, **fixed, **more}


class Worker:
    """A contestant's process, which waits for requests on its stdin."""

    def __init__(self, contestant):
        self.name = contestant.name
        # A separate pipe for answers, because libraries print to stdout.
        read, write = os.pipe()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  See `close`.
        self._process = subprocess.Popen(
            contestant.command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            env=_environment(**{worker.REPLIES: str(write)}),
            text=True,
        )
        os.close(write)
        self._replies = os.fdopen(read)
        self.facts = self._answer()

    def ask(self, question):
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self._replies.readline()
        if not line:
            self._process.wait()
            raise SystemExit(f"{self.name} failed:\n{_end_of(self._log)}")
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._replies.close()
        self._process.wait()
        self._log.close()


def _end_of(log):
    """Returns the last lines of a file that is open for reading."""
    log.seek(0)
    return log.read()[-4000:]


def take_turns(contestants, repeats):
    """Measures workers one call at a time, in turns; an untimed call precedes each call.

    Args:
      contestants: list of `Contestant`, whose programs call `worker.serve`.
      repeats: int, the counted calls of each, after the first one.

    Returns:
      list of `Timing`.
    """
    with contextlib.ExitStack() as stack:
        workers = []
        for contestant in contestants:
            log(f"{contestant.name}: building")
            workers.append(stack.enter_context(contextlib.closing(Worker(contestant))))
        seconds = [[] for _ in workers]
        for question in ["first"] + ["run"] * repeats:
            for process, times in zip(workers, seconds):
                times.append(process.ask(question)["seconds"])
                log(f"{process.name}: {times[-1]:.3f} s ({question})")
        return [
            Timing(
                process.name,
                times[0],
                times[1:],
                process.ask("memory")["bytes"],
                process.facts,
            )
            for process, times in zip(workers, seconds)
        ]


def take_turns_whole(contestants, repeats, warm_up=0):
    """Runs whole processes in turns.

    Returns:
      list of `Timing`, whose facts are "marks", a list of each counted run's marks (dicts with
      "name" and "seconds" since process start), and the reported "version".
    """
    runs = [[] for _ in contestants]
    for turn in range(warm_up + repeats):
        for contestant, measured in zip(contestants, runs):
            measured.append(_run_whole(contestant))
            log(f"{contestant.name}: {measured[-1][0]:.1f} s" + " (warm-up)" * (turn < warm_up))
    return [
        Timing(
            contestant.name,
            measured[0][0],
            [seconds for seconds, _, _ in measured[warm_up:]],
            max(size for _, size, _ in measured),
            {
                "marks": [marks for _, _, marks in measured[warm_up:]],
                "version": next(m["version"] for m in measured[0][2] if "version" in m),
            },
        )
        for contestant, measured in zip(contestants, runs)
    ]


def _run_whole(contestant):
    """Returns (seconds, bytes, marks) of one run: from start to exit, peak at the last mark."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [part.replace("{scratch}", scratch) for part in contestant.command]
        path = os.path.join(scratch, "marks")
        with open(os.path.join(scratch, "log"), "w+") as output:
            start = time.time()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(**{worker.MARKS: path}),
            )
            status = process.wait()
            seconds = time.time() - start
            if status:
                raise SystemExit(f"{contestant.name} failed:\n{_end_of(output)}")
        with open(path, encoding="utf-8") as reader:
            marks = [json.loads(line) for line in reader]
        for mark in marks:
            mark["seconds"] = mark.pop("time") - start
        # `os.wait4` would give the peak of this process, if that is larger: Linux carries it over.
        return seconds, marks[-1]["bytes"], marks


def last_mark(marks, name):
    """Returns the seconds from the start to the last mark `name` of a run."""
    return [mark["seconds"] for mark in marks if mark["name"] == name][-1]


def first_mark(marks, name):
    """Returns the seconds from the start to the first mark `name` of a run."""
    return next(mark["seconds"] for mark in marks if mark["name"] == name)


def table(header, rows):
    """Returns a Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def compare(timings, ours, floors=None):
    """Returns the table of contestants.

    Args:
      timings: list of `Timing`.
      ours: name of the contestant whose time is divided by the others'.
      floors: name → lower bound of this contestant's seconds, or None.

    Returns:
      list of Markdown lines.
    """
    median = {timing.name: timing.median for timing in timings}
    header = ["contestant", "median", "min", "ours takes", "first call", "peak memory"]
    rows = [
        [
            timing.name,
            f"{timing.median:.3g} s",
            f"{min(timing.seconds):.3g} s",
            f"{median[ours] / timing.median:.2f}×",
            f"{timing.first:.3g} s",
            f"{timing.bytes / 1e9:.2f} GB",
        ]
        for timing in timings
    ]
    if floors:
        header.insert(4, "share of the floor's rate")
        for row, timing in zip(rows, timings):
            row.insert(4, f"{floors[timing.name] / timing.median:.0%}")
    return table(header, rows)


def judge(timings, ours, targets):
    """Returns a Markdown line for each `Target` whose peer was measured."""
    median = {timing.name: timing.median for timing in timings}
    lines = []
    for target in targets:
        peers = [name for name in median if name.startswith(target.peer)]
        if not peers:
            continue
        peer = min(peers, key=lambda name: median[name])
        share = median[ours] / median[peer]
        verdict = "reached" if share <= target.share else "missed"
        lines.append(
            f"- {ours} should take at most {target.share:.3g}× the time of {peer}; measured"
            f" {share:.3g}×: {verdict}."
        )
    return lines


def publish(values, section, title, lines, versions=(), how=None):
    """Prints a benchmark's result, and writes it to its section of the results' file.

    Args:
      values: parsed command line of `arguments`.
      section: str, the section's name in its markers.
      title: its heading.
      lines: list of Markdown lines.
      versions: names and versions of the libraries compared.
      how: sentence on what was measured how often; by default, that of `take_turns`.
    """
    how = how or f"{values.repeats} runs of each contestant, in turns; medians."
    how += f" Before the start the cores were {values.busy:.0%} busy with other work."
    text = "\n".join([f"## {title}", "", how, "", *lines, "", *machine(versions)])
    print(text)
    if values.results:
        old = ""
        if os.path.exists(values.results):
            with open(values.results, encoding="utf-8") as reader:
                old = reader.read()
        with open(values.results, "w", encoding="utf-8") as writer:
            writer.write(with_section(old, section, text))


def with_section(document, section, text):
    """Returns the document with the section replaced, or appended if it is new."""
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    block = f"{begin}\n{text}\n{end}"
    document = document or _HEADING
    old = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if old.search(document):
        return old.sub(lambda _: block, document)
    return f"{document.rstrip()}\n\n{block}\n"


def revision():
    """Returns the revision of this project, "-dirty" if other files than RESULTS.md are changed.

    Without git, it is "unknown".
    """
    if not shutil.which("git"):
        return "unknown"

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    name = git("describe", "--always").stdout.strip() or "unknown"
    is_dirty = git("diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/RESULTS.md").returncode == 1
    return f"{name}-dirty" if is_dirty else name


def machine(versions=()):
    """Returns Markdown lines on the machine, the date and the versions."""
    with open("/proc/cpuinfo", encoding="utf-8") as reader:
        cpu = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", reader.read(), re.MULTILINE))
    with open("/proc/meminfo", encoding="ascii") as reader:
        gigabytes = int(re.search(r"MemTotal:\s+(\d+)", reader.read()).group(1)) / 2**20
    present = [flag for flag in _FLAGS if flag in cpu.get("flags", "").split()]
    missing = [flag for flag in _FLAGS if flag not in present]
    return [
        f"{datetime.date.today()}, revision {revision()}."
        f" {cpu.get('model name', platform.machine())},"
        f" {len(os.sched_getaffinity(0))} cores, {gigabytes:.0f} GB; with {', '.join(present)},"
        f" without {', '.join(missing)}. Python {platform.python_version()};"
        f" {', '.join(sorted(set(versions)))}."
    ]


def versions_of(timings):
    """Returns the versions of libraries that workers reported."""
    return [timing.facts["version"] for timing in timings]


def log(message):
    """Prints a benchmark's progress on stderr."""
    print(message, file=sys.stderr, flush=True)
