"""Tests of memory.py against files of Linux written by hand."""

import ctypes
import math
import subprocess
import sys
from unittest import mock

import pytest
from absl.testing import parameterized

from adapter_bert.serving.inference import memory
from adapter_bert.shell import control_groups
from adapter_bert.shell.errors import UserError

pytest.importorskip("resource", reason="Windows has no limits of a process")
import resource

MB = 1 << 20
STATUS = ["Name:\tpython", "VmSize:\t  204800 kB", "VmRSS:\t  102400 kB", "Threads:\t1"]
MACHINE_LIMIT, CONTAINER_LIMIT = "the machine's memory", "the container's limit"
GROUPS, NEW = "/proc/self/cgroup", "/sys/fs/cgroup"
MACHINE = ["MemTotal:       8000000 kB", "MemAvailable:    1048576 kB"]


class MemoryTest(parameterized.TestCase):
    def free(self, files, address_space=resource.RLIM_INFINITY):
        """Returns `memory.free()` on a machine with these files and 2 processors."""
        defaults = {"/proc/self/status": STATUS, "/proc/meminfo": MACHINE}
        contents = {**defaults, **files}
        with mock.patch.object(
            control_groups, "read", lambda path: "\n".join(contents.get(path, []))
        ):
            limits = mock.patch.object(resource, "getrlimit", return_value=(address_space, -1))
            with limits, mock.patch("os.cpu_count", return_value=2):
                return memory.free()

    @parameterized.parameters(
        ({}, None, 1024, MACHINE_LIMIT),
        # 200 MB are taken, and 14 threads need 8 MB each.
        ({}, 500 * MB, 188, "ulimit -v"),
        ({GROUPS: ["0::/"], f"{NEW}/memory.max": [str(300 * MB)]}, None, 200, CONTAINER_LIMIT),
        ({GROUPS: ["0::/"], f"{NEW}/memory.max": ["max"]}, None, 1024, MACHINE_LIMIT),
        # The limit of a parent; a path that the container does not see.
        (
            {
                GROUPS: ["0::/a.slice/b"],
                f"{NEW}/a.slice/b/memory.max": ["max"],
                f"{NEW}/a.slice/memory.max": [str(150 * MB)],
            },
            *(None, 50, CONTAINER_LIMIT),
        ),
        (
            {
                GROUPS: ["5:cpu:/x", "4:memory:/docker/c0", "0::/"],
                f"{NEW}/memory/memory.limit_in_bytes": [str(400 * MB)],
            },
            *(None, 300, CONTAINER_LIMIT),
        ),
    )
    def test_the_tightest_limit_counts(self, files, address_space, megabytes, limit):
        free = self.free(files, address_space or resource.RLIM_INFINITY)
        self.assertEqual(free, (megabytes * MB, limit))

    def test_unknown_memory_is_infinite(self):
        self.assertEqual(self.free({"/proc/self/status": []})[0], math.inf)

    def test_freed_memory_is_free(self):
        """malloc keeps freed blocks of less than 32 MB; a container counts them."""
        num_blocks = 40
        script = f"""
import ctypes
from adapter_bert.serving.inference import memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: it grows to this by itself.
libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
blocks = [libc.malloc(4 << 20) for _ in range({num_blocks})]
for block in blocks:
    ctypes.memset(block, 1, 4 << 20)
last = libc.malloc(100)
for block in blocks:
    libc.free(block)
memory.free()
print(memory._sizes("/proc/self/status")["VmRSS"])
"""
        output = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
        self.assertLess(int(output.stdout), num_blocks * 4 * MB)

    @pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
    def test_all_threads_share_an_arena(self):
        """Several arenas hold the freed blocks of each thread, twice the adapters in memory."""
        script = """
import ctypes, sys, threading
from adapter_bert.serving.inference import memory
libc = ctypes.CDLL(None)
if sys.argv[1] == "prepared":
    memory.prepare("a program")
ready = threading.Barrier(5)
def work():
    libc.malloc(100)
    ready.wait()
for _ in range(4):
    threading.Thread(target=work).start()
ready.wait()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""
        for argument, is_single in (("prepared", True), ("", False)):
            command = [sys.executable, "-c", script, argument]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
            self.assertEqual(output.count("<heap nr=") == 1, is_single, output)

    def test_reservations_add_up_while_they_are_held(self):
        reservations = memory.Reservations()
        with mock.patch.object(memory, "free", return_value=(100, "ulimit -v")):
            with reservations.reserved(60, "one"), reservations.reserved(40, "two"):
                three = reservations.reserved(1, "three")
                self.assertRaisesRegex(memory.Exhausted, "^three: too little", three.__enter__)
            with self.assertRaises(ZeroDivisionError), reservations.reserved(100, "four"):
                raise ZeroDivisionError
            with reservations.reserved(100, "five"):
                pass
            memory.require(100, "it")
            with self.assertRaisesRegex(UserError, "^it needs about 2 MB of memory; 0 MB are free"):
                memory.require(2e6, "it")
