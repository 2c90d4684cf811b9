"""Ways to compute the same: by XLA, without it, and within a program that it compiles whole."""

import contextlib
from unittest import mock

from adapter_bert.ops import xla


def both_ways():
    """A context for each way of computing a stretch: by XLA, where it is there, and without."""
    for can_fuse in sorted({xla.can_fuse(), False}):
        yield mock.patch.object(xla, "can_fuse", lambda value=can_fuse: value)


@contextlib.contextmanager
def as_for_a_tpu():
    """What is built is what XLA compiles whole, but for barriers, which it alone knows."""
    barriers = mock.patch.object(xla, "xla_optimization_barrier", tuple)
    with barriers, mock.patch.object(xla, "is_in_xla", lambda: True):
        yield
