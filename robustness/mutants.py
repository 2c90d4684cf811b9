"""Mutation testing: small changes of a module, which its tests should notice.

    .venv/bin/python robustness/mutants.py tuning [--sample=70] [--slow] [--only=3,14]

`mutant_list.py` says, by cosmic-ray, which changes there are. TensorFlow takes seconds to import:
one process that has imported it, and run nothing, forks a child for each mutant, which runs the
module's tests, the fastest first, until one fails. That is in a copy of the project.
"""

import argparse
import compileall
import contextlib
import difflib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest  # noqa: E402

HOUSE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LISTER = [os.path.join(HOUSE, ".venv-mutants/bin/python"), "robustness/mutant_list.py"]
_SEED = 0
_OUTCOMES = {True: "survived", False: "killed", None: "killed, by time"}

# Module → which of its tests run with --slow alone.
SLOW = {
    "adapter_bert/ops/adapters": "combination or gradients or identity or bfloat16"
    " or recomputed or pooled",
    "adapter_bert/formats/checkpoints": "",
    "adapter_bert/common/metrics": "",
    "optimization": "replicas_step_as_one or Golden",
    "tuning": "",
}


def is_zero(function, seconds):
    """Whether a function returns 0 in a child; None if that takes more seconds of the CPU."""
    child = os.fork()
    if not child:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            signal.alarm(20 * seconds)  # What waits forever takes none.
            code = function()
        finally:
            os._exit(code)  # Whatever happened, this process goes no further.
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM):
        return None
    return status == 0


class Tests:
    """The tests of a module, run by pytest in a child; a plugin of it that times and sorts them.

    Attributes:
      seconds: dict from the tests to what they took in `first_run`.
      limit: of the CPU, int seconds; loops may never end.
    """

    def __init__(self, module, slow):
        tests = "adapter_tests/" + module.replace("adapter_bert/", "", 1)
        self.arguments = [f"{tests}_test.py", "-xq", "--assert=plain"]
        self.arguments += ["-p", "no:cacheprovider"]
        self.arguments += [] if slow or not SLOW[module] else ["-k", f"not ({SLOW[module]})"]
        self.seconds, self.limit = {}, 1800

    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.seconds.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def run(self):
        """pytest's exit code; what it says is in the file log."""
        with open("log", "w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            code = pytest.main(self.arguments, [self])
            sys.stdout.flush()
        return int(code)

    def first_run(self):
        """Of the module as it is: exits if they fail. Then this process has what they import."""

        def run_and_note():
            code = self.run()
            with open("noted", "w") as writer:
                limit = 30 + 4 * int(time.process_time())
                json.dump([list(sys.modules), self.seconds, limit], writer)
            return code

        if not is_zero(run_and_note, self.limit):
            with open("log") as log:
                sys.exit(log.read())
        with open("noted") as reader:
            names, self.seconds, self.limit = json.load(reader)
        folders = (".", "benchmarks", "robustness")
        own = {file.split(".")[0] for folder in folders for file in os.listdir(folder)}
        for name in names:
            if name.split(".")[0] not in own | {"__main__"}:
                with contextlib.suppress(ImportError):  # Some were never imported, but put there.
                    importlib.import_module(name)


def mutants_of(source, sample, only):
    """A list of (number, operator, mutated source)."""
    listed = subprocess.check_output(LISTER, cwd=HOUSE, input=source, universal_newlines=True)
    mutants = [(number, *mutant) for number, mutant in enumerate(json.loads(listed))]
    if only:
        return [mutants[number] for number in only]
    random.Random(_SEED).shuffle(mutants)
    return mutants[:sample]


def survivors_of(module, mutants, tests):
    """Yields those of `mutants_of` that no test noticed; the folder is a copy of the project."""
    file = module + ".py"
    # A mutant as long as another, in the same second, would pass for it.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    compileall.compile_dir(".", quiet=1, rx=re.compile(rf"[.]/{file}$"))
    tests.first_run()
    for number, operator, mutated in mutants:
        with open(file, "w", encoding="utf-8") as writer:
            writer.write(mutated)
        survives = is_zero(tests.run, tests.limit)
        print(number, operator, _OUTCOMES[survives], flush=True)
        if survives:
            yield number, operator, mutated


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("module", choices=sorted(SLOW))
    parser.add_argument("--sample", type=int, help="how many mutants, drawn at random; all")
    parser.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--slow", action="store_true", help="the module's slow tests, too")
    given = parser.parse_args()
    if not os.access(LISTER[0], os.X_OK):
        parser.error(f"there is no {LISTER[0]}; `make .venv-mutants/installed` makes one.")
    with open(os.path.join(HOUSE, given.module + ".py"), encoding="utf-8") as reader:
        source = reader.read()
    mutants = mutants_of(source, given.sample, given.only)
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns(".*", "output", "demo", "results")
        shutil.copytree(HOUSE, os.path.join(folder, "house"), ignore=ignored)
        os.chdir(os.path.join(folder, "house"))
        survivors = list(survivors_of(given.module, mutants, Tests(given.module, given.slow)))
    for number, operator, mutated in survivors:
        print(f"\n{number} {operator}")
        changes = difflib.unified_diff(source.splitlines(), mutated.splitlines(), lineterm="", n=0)
        print("\n".join(list(changes)[2:]))
    print(f"\n{given.module}: {len(mutants)} mutants, {len(survivors)} survived")


if __name__ == "__main__":
    main()
