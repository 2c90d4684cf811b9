"""Contexts that compute the same with XLA and without it."""

from unittest import mock

from adapter_bert.ops import xla


def both_ways():
    """Returns a context for each way to compute: with XLA, if available, and without."""
    for can_fuse in sorted({xla.can_fuse(), False}):
        yield mock.patch.object(xla, "can_fuse", lambda value=can_fuse: value)
