"""Injects machine faults into trainings: full disks, lost power, SIGKILL, clock jumps.

    python tools/faults.py [--faults full_disk clock] [--libfaketime=/path/to/libfaketimeMT.so.1]

Each fault hits real trainings of a tiny BERT and is then removed. The same command must then resume
to the task adapter of an undisturbed training, bit for bit. Prints a Markdown table. Full and
read-only disks are mounted, which requires root.
"""

import argparse
import contextlib
import ctypes
import datetime
import functools
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PROJECT = os.path.dirname(_FOLDER)
sys.path += [_PROJECT, os.path.join(_PROJECT, "benchmarks")]

import harness
from adapter_tests.support import tiny
from adapter_tests.support.mutations import files_in

_FAULTS = {}
_MOUNTING = ("full_disk", "full_disk_when_all_is_finished", "read_only")


def fault(function):
    """Registers a generator of (fault, result of the run, verdict)."""
    _FAULTS[function.__name__] = function
    return function


@functools.lru_cache(maxsize=None)
def _temporary():
    return tempfile.TemporaryDirectory()


def _root():
    """Returns a folder that is deleted when the process ends."""
    return _temporary().name


@functools.lru_cache(maxsize=None)
def _bert():
    return tiny.write_bert(os.path.join(_root(), "bert"), initializer_range=0.4)


class Training:
    """A training of a few seconds with its own output_dir."""

    def __init__(self, name, *flags):
        self.folder = os.path.join(_root(), name)
        data = os.path.join(_root(), "MRPC")
        if not os.path.exists(data):
            tiny.write_mrpc(data, rows=64)
        bert = _bert()
        self._command = [
            *(sys.executable, os.path.join(_PROJECT, "run_classifier.py"), "--task_name=MRPC"),
            *(f"--data_dir={data}", f"--bert_config_file={bert}/bert_config.json"),
            *(f"--vocab_file={bert}/vocab.txt", f"--init_checkpoint={bert}/bert_model.ckpt"),
            *("--max_seq_length=16", "--train_batch_size=8", "--num_train_epochs=10"),
            *("--save_checkpoints_steps=4", f"--output_dir={self.folder}"),
            "--precision=float32",  # "auto" measures, so a restart might choose differently.
            *("--do_train", "--do_eval", "--do_predict", "--feature_cache_dir=none", *flags),
        ]

    def start(self, *flags, **options):
        """Returns the started process, whose stderr is a pipe."""
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self._command, *flags], **pipes, **options)

    def run(self, *flags, **options):
        """Runs the command; returns (exit code, last line of stderr)."""
        return ended(self.start(*flags, **options))

    def adapter(self):
        """Returns the content of the task adapter's files by name, {} without an adapter."""
        return files_in(os.path.join(self.folder, "adapter"))

    def step(self):
        """Returns the step of the last checkpoint, 0 before the first."""
        record = os.path.join(self.folder, "checkpoint")
        if not os.path.exists(record):
            return 0
        with open(record) as reader:
            found = re.search(r"ckpt-(\d+)", reader.read())
        return int(found.group(1)) if found else 0


def ended(process):
    """Waits for a process; returns (exit code, last line of stderr)."""
    _, output = process.communicate(timeout=300)
    lines = [line for line in re.split(r"[\r\n]+", output.decode(errors="replace")) if line.strip()]
    return process.returncode, (lines or [""])[-1]


def undisturbed():
    """Returns the task adapter of an undisturbed training."""
    training = Training("undisturbed")
    if not training.adapter():
        code, output = training.run()
        assert code == 0, output
    return training.adapter()


def verdict(training):
    """Returns the result of the same command after the fault is removed."""
    step = training.step()
    code, output = training.run()
    if code:
        return f"DOES NOT RESUME: {output}"
    return f"{compared(training)}, from step {step}"


def compared(training):
    """Returns whether a training's task adapter is that of an undisturbed one."""
    return "the same result" if training.adapter() == undisturbed() else "ANOTHER RESULT"


def killed(training, seconds=0.0, **options):
    """Starts a training, and kills it some seconds after its next checkpoint; returns its end."""
    process = training.start(**options)
    _wait_for_step(training, process)
    time.sleep(seconds)
    process.kill()
    return ended(process)


@contextlib.contextmanager
def mounted(folder, size):
    """Mounts a disk of `size` kilobytes at a folder while entered."""
    os.makedirs(folder, exist_ok=True)
    subprocess.check_call(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", folder])
    try:
        yield
    finally:
        subprocess.check_call(["umount", folder])


def remount(folder, options):
    subprocess.check_call(["mount", "-o", "remount," + options, folder])


def fill(folder):
    """Leaves a mounted disk no free space."""
    used = int(subprocess.check_output(["du", "-sk", folder]).split()[0])
    remount(folder, f"size={used}k")


@fault
def kill():
    """SIGKILL at a random moment after each start's first checkpoint."""
    training, randomly, codes = Training("killed"), random.Random(3), []
    for _ in range(5):
        code, _ = killed(training, randomly.uniform(0, 0.5))
        codes.append(f"{code} at step {training.step()}")
    yield "SIGKILL, 5 times", ", ".join(codes), verdict(training)


@fault
def full_disk():
    """Disks of several sizes, all too small."""
    whole = sum(map(len, files_in(Training("undisturbed").folder).values())) >> 10
    for share in (0.02, 0.1):
        training = Training(f"full{share}")
        with mounted(training.folder, max(4, int(share * whole))):
            code, output = training.run()
            remount(training.folder, "size=100m")
            yield (
                f"disk of {share:.0%} of the required size",
                f"{code}: {output}",
                verdict(training),
            )


@fault
def full_disk_when_all_is_finished():
    """Finished results on a disk without free space."""
    training = Training("finished on a full disk")
    with mounted(training.folder, 1 << 20):
        training.run()
        before = files_in(training.folder)
        fill(training.folder)
        code, output = training.run()
        after = files_in(training.folder)
        lost = [n for n in before if n not in after or len(after[n]) < len(before[n]) // 2]
        yield "a full disk, all finished", f"{code}: {output}", f"lost: {lost or 'nothing'}"


@fault
def read_only():
    """A folder that is read-only from the start, or without free space later."""
    training = Training("read-only")
    with mounted(training.folder, 1 << 20):
        remount(training.folder, "ro")
        code, output = training.run()
        remount(training.folder, "rw")
        yield "read-only from the start", f"{code}: {output}", verdict(training)
    training = Training("read-only later")
    with mounted(training.folder, 1 << 20):
        process = training.start()
        _wait_for_step(training, process)
        # A disk with an open file (TensorBoard's) cannot become read-only: remove its free space.
        fill(training.folder)
        code, output = ended(process)
        remount(training.folder, "size=100m")
        yield "disk full in the middle", f"{code}: {output}", verdict(training)


def _wait_for_step(training, process, seconds=120):
    """Waits for a process's next checkpoint, or for its end."""
    before, deadline = training.step(), time.monotonic() + seconds
    while training.step() == before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)


@fault
def clock():
    """A clock that jumps by years during training, or before a restart."""
    if not _ARGUMENTS.libfaketime:
        yield "clock jumps", "not tried: --libfaketime is not given", ""
        return
    for name, jumps in (("back", ("-3650d",)), ("forward and back", ("+3650d", "+0"))):
        training = Training("clock " + name)
        clock_file = os.path.join(_root(), "time")
        environment = {
            **os.environ,
            "LD_PRELOAD": _ARGUMENTS.libfaketime,
            "FAKETIME_TIMESTAMP_FILE": clock_file,
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        _write(clock_file, "+0")
        process = training.start(env=environment)
        _wait_for_step(training, process)
        for jump in jumps:
            _write(clock_file, jump)
            time.sleep(0.5)
        code, output = ended(process)
        yield f"clock jumps {name} by 10 years", f"{code}: {output}", compared(training)
    training = Training("clock at restart")
    killed(training)
    _write(clock_file, "-3650d")
    code, output = training.run(env=environment)
    yield "restart with a clock 10 years back", f"{code}: {output}", compared(training)


def _write(path, text):
    with open(path, "w") as writer:
        writer.write(text)


@fault
def two_runs():
    """Two simultaneous runs in one output_dir."""
    training = Training("two")
    first = training.start()
    _wait_for_step(training, first)
    results = [ended(process) for process in (first, training.start())]
    output = " / ".join(f"{code}: {line}" for code, line in results)
    yield "a second run at the same time", output, verdict(training)


@fault
def memory():
    """Address spaces that are too small."""
    for megabytes in (1000, 2000):
        training = Training(f"memory {megabytes}")
        limit = megabytes << 20

        def limited(limit=limit):
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        code, output = training.run(preexec_fn=limited)
        yield f"RLIMIT_AS of {megabytes} MB", f"{code}: {output}", verdict(training)


class Disk:
    """A folder on a simulated disk that keeps only synced files when power is lost.

    Attributes:
      environment: variables for processes that write to the folder.
    """

    def __init__(self, folder):
        self._folder = folder
        library = os.path.join(_root(), "power_loss.so")
        source = os.path.join(_FOLDER, "power_loss.c")
        command = ["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"]
        subprocess.check_call(command)
        self._key_of = ctypes.CDLL(library).power_loss_key
        self._store = folder + ".synced"
        self.environment = {
            **os.environ,
            "LD_PRELOAD": library,
            "POWER_LOSS_DISK": folder,
            "POWER_LOSS_STORE": self._store,
        }
        os.makedirs(folder)
        self._begin()

    def _begin(self):
        """Syncs all present files."""
        shutil.rmtree(self._store, ignore_errors=True)
        os.makedirs(self._store)
        code = "import os, sys\nfor path in sys.argv[1:]: os.fsync(os.open(path, os.O_RDONLY))"
        paths = [self._folder]
        for folder, folders, names in os.walk(self._folder):
            paths += [os.path.join(folder, name) for name in [*folders, *names]]
        subprocess.check_call([sys.executable, "-c", code, *paths], env=self.environment)

    def lose_power(self, keeps_names):
        """Drops unsynced files; with keeps_names, they remain as empty files."""
        left = self._folder + ".left"
        self._rebuild(self._folder if keeps_names else None, self._key(self._folder), left)
        shutil.rmtree(self._folder)
        os.rename(left, self._folder)
        self._begin()

    def _rebuild(self, now, key, path):
        """Writes the synced content of a folder's key, with the names in `now` if given."""
        os.makedirs(path)
        if now:
            entries = [(self._key(os.path.join(now, name)), name) for name in os.listdir(now)]
        else:
            lines = self._synced(key).decode().splitlines()
            entries = [line.split(" ", 1) for line in lines]
        for inner, name in entries:
            target = os.path.join(path, name)
            if inner.startswith("d"):
                self._rebuild(now and os.path.join(now, name), inner, target)
                continue
            with open(target, "wb") as writer:
                writer.write(self._synced(inner))

    def _synced(self, key):
        path = os.path.join(self._store, key)
        if not os.path.exists(path):
            return b""
        with open(path, "rb") as reader:
            return reader.read()

    def _key(self, path):
        key = ctypes.create_string_buffer(80)
        assert not self._key_of(-100, path.encode(), key, ctypes.c_size_t(80)), path
        return key.value.decode()


@fault
def power_loss():
    """Power loss at a random moment of each of five starts, and after the end of a run."""
    for keeps_names in (False, True):
        what = "content" if keeps_names else "content and names"
        name = f"disk {int(keeps_names)}"
        disk = Disk(os.path.join(_root(), name))
        training, randomly, steps = Training(name + "/training"), random.Random(3), []
        for _ in range(5):
            killed(training, randomly.uniform(0, 0.5), env=disk.environment)
            steps.append(str(training.step()))
            disk.lose_power(keeps_names)
            steps[-1] += f" → {training.step()}"
        output = "steps " + ", ".join(steps)
        yield f"power lost 5 times, with {what} not synced", output, verdict(training)
        code, output = training.run("--overwrite_output_dir", env=disk.environment)
        before = files_in(training.folder)
        disk.lose_power(keeps_names)
        after = files_in(training.folder)
        lost = sorted(n for n in before if after.get(n) != before[n] and "tfevents" not in n)
        result = f"{compared(training)}; lost: {', '.join(lost) or 'nothing'}"
        yield f"power lost at the end, with {what} not synced", f"{code}: {output}", result


_ARGUMENTS = None


def main():
    global _ARGUMENTS
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", nargs="+", choices=list(_FAULTS), default=list(_FAULTS))
    parser.add_argument("--libfaketime", help="path of libfaketimeMT.so.1")
    _ARGUMENTS = parser.parse_args()
    others = [name for name in _ARGUMENTS.faults if name not in _MOUNTING]
    if os.geteuid() and others != _ARGUMENTS.faults:
        parser.error(f"mounting disks requires root; without it: --faults {' '.join(others)}")
    print("| fault | exit code and last line | then |\n|---|---|---|", flush=True)
    undisturbed()
    for name in _ARGUMENTS.faults:
        for row in _FAULTS[name]():
            text = " | ".join(row).replace(_root(), "").replace(_PROJECT + "/", "")
            print(f"| {text} |", flush=True)
    print(f"\n{datetime.date.today()}, revision {harness.revision()}.")


if __name__ == "__main__":
    main()
