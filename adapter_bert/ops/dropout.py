"""Reproducible dropout: gradients, resumed runs and recomputed layers draw the same masks."""

import zlib
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.ops import xla
from adapter_bert.ops.gradients import apply


class DropoutKey(NamedTuple):
    """Determines a run's dropout masks, together with the variable scope of each dropout.

    Attributes:
      seed: Python int, the run's --random_seed.
      step: scalar integer Tensor, the global step.
      micro_step: int or scalar integer Tensor, index of the part in an accumulated batch.
      replica: int or scalar integer Tensor, index of the replica.
    """

    seed: int
    step: Any
    micro_step: Any = 0
    replica: Any = 0

    def site(self) -> int:
        """Returns a 32-bit hash of the seed and the current variable scope."""
        return zlib.crc32(f"{self.seed}/{tf.get_variable_scope().name}".encode())


def dropout(
    input_tensor: tf.Tensor, dropout_prob: Optional[float], *, key: Optional[DropoutKey] = None
) -> tf.Tensor:
    """Sets a fraction `dropout_prob` of the elements to zero and scales up the others.

    With a `key`, the mask depends only on (seed, step, micro-step, replica, variable scope), not on
    restarts or the order in which the graph is built. Two calls in one variable scope draw the same
    mask. Programs that XLA compiles as a whole draw different masks than others. Each element is
    decided by one random byte, which rounds the fraction to n / 256: 0.1 becomes 26 / 256.

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


def dropout_forward(
    x: tf.Tensor, random: tf.Tensor, *, dropout_prob: float
) -> Tuple[tf.Tensor, Any]:
    """Returns (x after dropout, saved for backward); `random` is a `random_source`."""
    return drop(x, random, dropout_prob=dropout_prob), (random, dropout_prob)


def dropout_backward(saved: Any, d_output: tf.Tensor) -> Tuple[tf.Tensor, None]:
    """Returns the gradient of x, and None for the random source."""
    random, dropout_prob = saved
    return drop(d_output, random, dropout_prob=dropout_prob), None


@xla.fused
def drop(x: tf.Tensor, random: tf.Tensor, *, dropout_prob: float) -> tf.Tensor:
    """Applies dropout to x: zeros each element whose random byte is below a threshold.

    `random` is either the bytes or a key from which they are hashed. Hashing is faster than
    TensorFlow's generator, which takes more time than the rest of dropout.
    """
    threshold = min(255, max(1, round(256 * dropout_prob)))
    random_bytes = random if random.dtype == tf.uint8 else _hash_bytes(tf.shape(x), random)
    keep = tf.cast(tf.cast(random_bytes, tf.int32) >= threshold, tf.float32)
    return tf.cast(tf.cast(x, tf.float32) * keep * (256 / (256 - threshold)), x.dtype)


def random_source(key: DropoutKey, shape: tf.Tensor) -> tf.Tensor:
    """Returns the argument `random` of `drop`, for a Tensor of that shape in the current scope."""
    site = key.site()
    if xla.is_in_xla():
        return _mix_key(site, key)
    replica, step, micro_step = (
        tf.cast(part, tf.int64) for part in (key.replica, key.step, key.micro_step)
    )
    seed = tf.stack([site + 2**32 * replica, step + 2**32 * micro_step])
    return _hash_key(seed) if xla.can_fuse() else _random_bytes(shape, seed)


def _random_bytes(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws a uint8 Tensor of that shape by TensorFlow's generator."""
    count = tf.reduce_prod(shape)
    # All int64 values except the largest: TensorFlow 1 cannot draw from the full range.
    words = tf.random.stateless_uniform(
        tf.expand_dims((count + 7) // 8, 0), seed, -(2**63), 2**63 - 1, tf.int64
    )
    return tf.reshape(tf.reshape(tf.bitcast(words, tf.uint8), [-1])[:count], shape)


def _hash_key(seed: tf.Tensor) -> tf.Tensor:
    """Draws the key of a mask, an int32 Tensor [2], by TensorFlow's generator."""
    return tf.random.stateless_uniform([2], seed, -(2**31), 2**31 - 1, tf.int32)


def _mix_key(site: int, key: DropoutKey) -> tf.Tensor:
    """Hashes a `DropoutKey` and a site to the key of a mask, an int32 Tensor [2].

    In a TPU program, TensorFlow's generator consists of hundreds of scalar operations, which take
    longer than the dropout itself.
    """
    sites = np.array([site, site ^ 0x9E3779B9])  # The constant is arbitrary.
    mixed = _mix(tf.constant(sites.astype(np.int32)))
    for part in (key.step, key.micro_step, key.replica):
        mixed = _mix(tf.bitwise.bitwise_xor(mixed, tf.cast(part, tf.int32)))
    return mixed


def _hash_bytes(shape: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Hashes the index of each element to a byte; returns int32 values 0 to 255 in that shape.

    The hash is two rounds of multiply and xorshift with the constants of "lowbias32": each input
    bit flips each output bit with a probability near 1/2 (Wellons, nullprogram.com, 2018).
    """
    first, second = tf.unstack(key)
    *outer, width = tf.unstack(shape)
    # Indices start at the key. XLA would compile constant indices into a constant of the tensor's
    # size, which is slower than hashing.
    rows = first + width * tf.range(tf.reduce_prod([1, *outer]))
    bits = tf.reshape(tf.expand_dims(rows, 1) + tf.range(width), shape)
    bits = _mix(tf.bitwise.bitwise_xor(_mix(bits), second))
    return _shift_right(bits, 24)


def _mix(bits: tf.Tensor) -> tf.Tensor:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        bits = factor * tf.bitwise.bitwise_xor(bits, _shift_right(bits, shift))
    return bits


def _shift_right(bits: tf.Tensor, shift: int) -> tf.Tensor:
    """Shifts int32 right as if it were unsigned: zeros fill the upper bits."""
    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, shift), 2 ** (32 - shift) - 1)
