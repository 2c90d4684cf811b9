"""Limits of this process's control groups on Linux, such as those of its container."""

import glob
import os
from typing import Iterator, List, Sequence

_QUOTA = ("cpu.cfs_quota_us", "cpu.cfs_period_us")


def num_processors(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Returns how many of the machine's processors this process may use.

    The limits are its affinity and the quotas of its control groups, such as a container's.

    Args:
      groups, root: the files of the control groups, version 1 or 2.
    """
    counts = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):  # Linux has it.
        counts.append(len(os.sched_getaffinity(0)))
    for quota, period in limits("cpu", _QUOTA, groups, root):
        counts.append(max(1, quota // period))
    return min(counts)


def num_compute_threads() -> int:
    """Returns how many threads compute fastest: one for each core that this process may use.

    A core of two processors (hyper-threads) is one; limits count processors.
    """
    siblings = glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
    num_cores = len(set(map(read, siblings))) or os.cpu_count() or 1
    return min(num_cores, num_processors())


def limits(
    controller: str,
    old_names: Sequence[str],
    groups: str = "/proc/self/cgroup",
    root: str = "/sys/fs/cgroup",
) -> Iterator[List[int]]:
    """Yields the numbers of each limit on the process's groups and the groups above them.

    Args:
      controller: such as "memory".
      old_names: the files of the limit in version 1; version 2 has `controller`.max.
      groups, root: the list of the process's groups, and the folder of all groups.
    """
    for line in read(groups).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:  # Version 2.
            top, names = root, [f"{controller}.max"]
        elif controller in controllers.split(","):
            top, names = f"{root}/{controller}", list(old_names)
        else:
            continue
        parts = group.rstrip("/").split("/")  # Of the host's path, in some containers.
        for end in range(len(parts)):
            folder = "/".join([top, *parts[1 : end + 1]])
            words = " ".join(read(f"{folder}/{name}") for name in names).split()
            if words and all(word.isdecimal() for word in words):  # Not "max" or -1.
                yield list(map(int, words))


def read(path: str) -> str:
    """Returns the text of a file, "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as reader:
            return reader.read()
    except OSError:
        return ""
