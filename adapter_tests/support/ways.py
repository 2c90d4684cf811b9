"""Contexts that compute the same with XLA, without it, and as part of a larger XLA program."""

import contextlib
from unittest import mock

from adapter_bert.ops import xla


def both_ways():
    """Returns a context for each way to compute: with XLA, if available, and without."""
    for can_fuse in sorted({xla.can_fuse(), False}):
        yield mock.patch.object(xla, "can_fuse", lambda value=can_fuse: value)


@contextlib.contextmanager
def as_for_a_tpu():
    """Builds what XLA would compile as a whole on a TPU, without barriers, which only XLA knows."""
    barriers = mock.patch.object(xla, "xla_optimization_barrier", tuple)
    with barriers, mock.patch.object(xla, "is_in_xla", lambda: True):
        yield
