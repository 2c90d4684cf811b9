"""Dropout whose masks can be drawn again: for a gradient, a resumed run, a recomputed layer."""

import zlib
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.ops import xla
from adapter_bert.ops.gradients import apply


class DropoutKey(NamedTuple):
    """What a run's dropout masks depend on besides their place in the model.

    Attributes:
      seed: Python int, the run's --random_seed.
      step: scalar integer Tensor, the global step: a resumed run draws the same masks.
      micro_step: int or scalar integer Tensor, which part of an accumulated batch this is.
      replica: int or scalar integer Tensor, which of the run's replicas this is.
    """

    seed: int
    step: Any
    micro_step: Any = 0
    replica: Any = 0

    def site(self) -> int:
        """Returns a number of 32 bits for the current variable scope."""
        return zlib.crc32(f"{self.seed}/{tf.get_variable_scope().name}".encode())


def dropout(input_tensor, dropout_prob: Optional[float], *, key: Optional[DropoutKey] = None):
    """Sets a share `dropout_prob` of the elements to zero and scales up the rest.

    With a `key` the mask is a function of (seed, step, micro-step, replica, site) alone, the site
    being the variable scope of the call: neither the order of construction nor a restart changes
    it, but programs that XLA compiles whole draw other masks than the rest. Two calls in one
    variable scope draw the same mask. One random byte decides an element, so that the
    share is the nearest of n / 256: 26 / 256 for 0.1.

    Args:
      input_tensor: float Tensor of any shape.
      dropout_prob: float; 0 or None returns the input.
      key: `DropoutKey`, or None for TensorFlow's own dropout.
    """
    if not dropout_prob:
        return input_tensor
    if key is None:
        return tf.nn.dropout(input_tensor, rate=dropout_prob)
    random = random_source(key, tf.shape(input_tensor))
    return apply(dropout_forward, dropout_backward, input_tensor, random, dropout_prob=dropout_prob)


def dropout_forward(x, random, *, dropout_prob: float):
    """Returns (what dropout leaves of x, saved for backward), for a `random_source`."""
    return drop(x, random, dropout_prob=dropout_prob), (random, dropout_prob)


def dropout_backward(saved, d_output):
    """Returns the gradients of x and of the random source."""
    random, dropout_prob = saved
    return drop(d_output, random, dropout_prob=dropout_prob), None


@xla.fused
def drop(x, random, *, dropout_prob: float):
    """Drops the elements of x whose random bytes are below a threshold.

    `random` is either those bytes or the key from which to hash them: drawn by a generator of
    TensorFlow's, they would take more time than the rest of dropout.
    """
    threshold = min(255, max(1, round(256 * dropout_prob)))
    random_bytes = random if random.dtype == tf.uint8 else _hash_bytes(tf.shape(x), random)
    keep = tf.cast(tf.cast(random_bytes, tf.int32) >= threshold, tf.float32)
    return tf.cast(tf.cast(x, tf.float32) * keep * (256 / (256 - threshold)), x.dtype)


def random_source(key: DropoutKey, shape):
    """Returns the Tensor that decides over elements of that shape in this scope: see `drop`."""
    site = key.site()
    if xla.is_in_xla():
        return _mix_key(site, key)
    replica, step, micro_step = (
        tf.cast(part, tf.int64) for part in (key.replica, key.step, key.micro_step)
    )
    seed = tf.stack([site + 2**32 * replica, step + 2**32 * micro_step])
    return _hash_key(seed) if xla.can_fuse() else _random_bytes(shape, seed)


def _random_bytes(shape, seed):
    """uint8 Tensor of that shape from TensorFlow's generator."""
    count = tf.reduce_prod(shape)
    # All of int64 but its last value, because TensorFlow 1 has no draw from all of it.
    words = tf.random.stateless_uniform(
        tf.expand_dims((count + 7) // 8, 0), seed, -(2**63), 2**63 - 1, tf.int64
    )
    return tf.reshape(tf.reshape(tf.bitcast(words, tf.uint8), [-1])[:count], shape)


def _hash_key(seed):
    """int32 Tensor [2], drawn by TensorFlow's generator."""
    return tf.random.stateless_uniform([2], seed, -(2**31), 2**31 - 1, tf.int32)


def _mix_key(site: int, key: DropoutKey):
    """int32 Tensor [2], mixed of a `DropoutKey` and the site's number.

    Within a program for a TPU TensorFlow's generator is hundreds of operations on single numbers,
    which take longer than the dropout itself.
    """
    sites = np.array([site, site ^ 0x9E3779B9])  # Any other number in the second.
    mixed = _mix(tf.constant(sites.astype(np.int32)))
    for part in (key.step, key.micro_step, key.replica):
        mixed = _mix(tf.bitwise.bitwise_xor(mixed, tf.cast(part, tf.int32)))
    return mixed


def _hash_bytes(shape, key):
    """int32 Tensor of that shape, values 0 to 255: the top bytes of the elements' hashed indices.

    Two rounds of multiply and xorshift with the constants of "lowbias32", whose every input bit
    flips every output bit with a probability near 1/2 (Wellons, nullprogram.com, 2018).
    """
    width = shape[-1]
    # Counted from the key: an index that depends on nothing would be compiled in as a constant of
    # the tensor's size, which takes longer than all the rest.
    rows = key[0] + width * tf.range(tf.reduce_prod(shape[:-1]))
    bits = tf.reshape(rows[:, tf.newaxis] + tf.range(width), shape)
    bits = _mix(tf.bitwise.bitwise_xor(_mix(bits), key[1]))
    return _shift_right(bits, 24)


def _mix(bits):
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        bits = factor * tf.bitwise.bitwise_xor(bits, _shift_right(bits, shift))
    return bits


def _shift_right(bits, shift):
    """Of int32 as if it had no sign: zeros move in."""
    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, shift), 2 ** (32 - shift) - 1)
