"""Thousands of bad inputs for every way in: what is read, what is refused, and what goes wrong.

    python robustness/bad_inputs.py [--readers=MRPC,vocab.txt] [--inputs=300] [--keep=folder]

Each input is a valid one, changed from a fixed seed. A process of its own reads them, as the
program does, and this one watches it. An input is *read*, or *refused*: `errors.UserError`, whose
one sentence names the file. Anything else is a fault: another exception, a sentence of several
lines or without a name, more than 20 seconds or 1 GB, or the end of the process.
"""

import argparse
import collections
import contextlib
import io
import json
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import house  # First: it finds the project.
import mutations

_SEED = 20260722
SECONDS = 20.0
_START_SECONDS = 120.0
_MEMORY = 1 << 30
_ADDRESS_SPACE = 6 << 30  # Of which TensorFlow takes 2 GB before it does anything.
_LONGEST_SENTENCE = 2000
READ, REFUSED, FAULT = "read", "refused", "FAULT"


def readers():
    """Every `house.Reader`, by name."""
    import data_readers
    import flag_readers
    import model_readers
    import server_readers

    modules = (data_readers, model_readers, flag_readers, server_readers)
    found = [reader for module in modules for reader in module.all_readers()]
    return {reader.name: reader for reader in found}


def outcome_of(reader, files):
    """(READ, REFUSED or FAULT, what was said) of one input."""
    from adapter_bert.common.errors import UserError

    folder = tempfile.mkdtemp(dir=house.root())
    try:
        _write(folder, files)
        before = _peak_memory()
        with _silent():
            reader.read(folder)
        if _peak_memory() - before > _MEMORY:
            return FAULT, f"took {(_peak_memory() - before) >> 20} MB"
        return READ, ""
    except UserError as error:
        sentence = str(error)
        names = reader.names(files) if callable(reader.names) else reader.names
        problem = _problem(sentence, names or tuple(files))
        return (FAULT, f"{problem}: {sentence[:300]!r}") if problem else (REFUSED, sentence)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if os.path.dirname(f.filename) == _PROJECT] or frames
        place = f"{os.path.basename(own[-1].filename)}:{own[-1].lineno} {own[-1].name}"
        return FAULT, f"{type(error).__name__} at {place}: {str(error)[:200]}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _problem(sentence, names):
    """What is wrong with a refusal's sentence; None for nothing."""
    if "\n" in sentence or "\r" in sentence:
        return "several lines"
    if not any(name in sentence for name in names):
        return "no name of the file"
    if len(sentence) > _LONGEST_SENTENCE:
        return f"{len(sentence)} characters"
    if not sentence.isprintable():
        return "control characters"
    return None


def _write(folder, files):
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if content == mutations.FOLDER:
            os.makedirs(path)
        elif content != mutations.MISSING:
            with open(path, "wb") as writer:
                writer.write(content)


@contextlib.contextmanager
def _silent():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def bad_input(reader, index):
    """The index-th bad input of a reader."""
    return reader.mutate(random.Random(f"{_SEED} {reader.name} {index}"), reader.valid())


# ---- The process that reads


def work(spans, report):
    """Tries inputs, and reports each before and after.

    Args:
      spans: list of (reader's name, first index, last index + 1).
      report: function of a JSON value.
    """
    from absl import logging

    from adapter_bert.common import environment

    known = readers()
    environment.silence_tensorflow()
    logging.set_verbosity(logging.FATAL)
    report(["ready"])
    for name, first, last in spans:
        reader = known[name]
        kind, said = outcome_of(reader, reader.valid())
        if kind != READ:
            raise SystemExit(f"{name}: the valid input is {kind}: {said}")
        for index in range(first, last):
            report(["begun", name, index])
            report(["ended", name, index, *outcome_of(reader, bad_input(reader, index))])


def _work_from_stdin():
    own, sink = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)  # What C++ prints is no report.
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, hard))
    with os.fdopen(own, "w") as writer:

        def report(value):
            writer.write(json.dumps(value) + "\n")
            writer.flush()

        work(json.load(sys.stdin), report)


# ---- The process that watches


_COMMAND = (sys.executable, os.path.abspath(__file__), "--work")


class Campaign:
    """Inputs for readers, and what came of them.

    Args:
      command: of the process that reads, as `--work` does.

    Attributes:
      counts: reader's name → Counter of READ, REFUSED and FAULT.
      faults: list of (reader's name, index, what happened).
    """

    def __init__(self, command=_COMMAND):
        self._command = command
        self.counts = collections.OrderedDict()
        self.faults = []
        self.seconds = 0.0

    def run(self, spans):
        """Tries inputs, see `work`; goes on after each crash and hang."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for name, _, _ in spans:
            self.counts[name] = collections.Counter()
        while spans:
            spans = self._run_once(spans)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _run_once(self, spans):
        """One process, to its end; returns what is left."""
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
            process.stdin.write(json.dumps(spans).encode())
            process.stdin.close()
            begun, why = None, None
            for message in _messages(process):
                if message is None:
                    why = f"no end after {SECONDS:g} seconds"
                    break
                begun = message if message[0] == "begun" else None
                if message[0] == "ended":
                    self._note(*message[1:])
            if why:
                process.kill()
            code = process.wait()
            process.stdout.close()
            errors.seek(0)
            said = errors.read()[-1500:]
        if begun is None:
            if code:
                raise SystemExit(f"The reading process ended: {said}")
            return []
        _, name, index = begun
        self._note(name, index, FAULT, why or f"the process ended with {code}: {said}")
        at = [place[0] for place in spans].index(name)
        return [(name, index + 1, spans[at][2]), *spans[at + 1 :]]

    def _note(self, name, index, kind, text):
        self.counts[name][kind] += 1
        if kind == FAULT:
            self.faults.append((name, index, text))
            print(f"FAULT {name} {index}: {text}", file=sys.stderr, flush=True)


def _messages(process):
    """Yields what a process reports; None where it is silent for too long, as the last."""
    buffered, patience = b"", _START_SECONDS
    while True:
        readable, _, _ = select.select([process.stdout], [], [], patience)
        if not readable:
            yield None
            return
        received = os.read(process.stdout.fileno(), 1 << 16)
        if not received:
            return
        *lines, buffered = (buffered + received).split(b"\n")
        for line in lines:
            message = json.loads(line.decode())
            patience = SECONDS if message[0] == "begun" else _START_SECONDS
            yield message


def table(campaign):
    """Lines of Markdown: a row for each reader, and the sums."""
    rows, total = [], collections.Counter()
    for name, counts in campaign.counts.items():
        rows.append([name, sum(counts.values()), *(counts[k] for k in (READ, REFUSED, FAULT))])
        total.update(counts)
    rows.append(["all", sum(total.values()), *(total[k] for k in (READ, REFUSED, FAULT))])
    lines = ["| reader | inputs | read | refused | faults |", "|---|--:|--:|--:|--:|"]
    return lines + ["| {} | {:,} | {:,} | {:,} | {:,} |".format(*row) for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--readers", type=house.names, help="names; all")
    parser.add_argument("--inputs", type=int, default=300, help="of each reader")
    parser.add_argument("--first", type=int, default=0, help="index of the first")
    parser.add_argument("--keep", help="folder for the inputs of faults")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        _work_from_stdin()
        return
    known = readers()
    names = arguments.readers or list(known)
    house.check_names(parser, "readers", names, known)
    last = arguments.first + arguments.inputs
    campaign, begun = Campaign(), time.monotonic()
    campaign.run([(name, arguments.first, last) for name in names])
    print("\n".join(table(campaign)))
    seconds = f"{campaign.seconds:.0f} CPU seconds, {time.monotonic() - begun:.0f} seconds"
    print(f"\n{house.provenance()} {seconds}")
    for name, index, _ in campaign.faults if arguments.keep else ():
        folder = os.path.join(arguments.keep, f"{name.replace('/', '_')} {index}")
        os.makedirs(folder, exist_ok=True)
        _write(folder, bad_input(known[name], index))
    sys.exit(bool(campaign.faults))


if __name__ == "__main__":
    main()
