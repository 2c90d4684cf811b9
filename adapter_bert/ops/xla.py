"""Stretches of arithmetic that XLA compiles into one pass, where there is XLA and it may be used.

`fused` marks one. Inside a program that XLA compiles whole, as a TPU's is, marks mean nothing.
"""

import contextlib
import contextvars
import functools
import os
from typing import Callable

import tensorflow.compat.v1 as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util

try:
    from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_optimization_barrier
except ImportError:

    def xla_optimization_barrier(tensors):
        """TensorFlow 1 has no barrier: saved tensors may be larger, and nothing is recomputed."""
        return tensors


from adapter_bert.common import devices

_GRAPH_DICTS = "_adapter_bert_dicts"
_portable = contextvars.ContextVar("portable", default=False)


def graph_dict(graph: tf.Graph, owner: str) -> dict:
    """Returns the owner's dict, which lives as long as the graph."""
    if not hasattr(graph, _GRAPH_DICTS):
        setattr(graph, _GRAPH_DICTS, {})
    return getattr(graph, _GRAPH_DICTS).setdefault(owner, {})


def fused(function: Callable) -> Callable:
    """Has XLA compile a function of Tensors, element-wise but for sums over rows, into one pass.

    Compiled anew for every shape, in 10 to 50 ms. Keywords are settings, which can be hashed.
    """

    @functools.wraps(function)
    def call_fused(*tensors, **settings):
        if not fuses():
            return function(*tensors, **settings)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype.base_dtype) for tensor in tensors]
        whole_graph = _whole_graph()
        compiled = graph_dict(whole_graph, __name__)
        key = (function, *sorted(settings.items()), *specs)
        if key not in compiled:
            run = functools.partial(function, **settings)
            with whole_graph.as_default():
                compiled[key] = tf.function(
                    run, jit_compile=True, autograph=False
                ).get_concrete_function(*specs)
        return compiled[key](*tensors)

    return call_fused


def _whole_graph() -> tf.Graph:
    """The graph of which the default one is a function's or loop's."""
    graph = tf.get_default_graph()
    while isinstance(graph, FuncGraph):
        graph = graph.outer_graph
    return graph


def fuses() -> bool:
    """Whether XLA compiles single functions of what is built here."""
    return not _portable.get() and not is_in_xla() and can_fuse()


@contextlib.contextmanager
def portable():
    """While entered, what is built needs no XLA where it runs: nothing is `fused`."""
    token = _portable.set(True)
    try:
        yield
    finally:
        _portable.reset(token)


@functools.lru_cache(maxsize=None)
def can_fuse() -> bool:
    """Whether XLA compiles single functions here: on CPU, and not with TensorFlow 1.

    On GPUs it has not been measured. A TPU's whole program is compiled, these functions with it.
    """
    if tf.__version__.startswith("1.") or devices.has_gpu():
        return False
    # In this version these take a third longer to compile, and their code is no faster. Others die
    # of a flag that they do not know.
    if tf.__version__.startswith("2.21."):
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
    _compile_silently()
    return True


def is_in_xla() -> bool:
    """Whether what is built here is part of a program that XLA compiles whole, as a TPU's is."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.get_default_graph())


def saved_for_backward(tensor):
    """Returns a tensor that the forward pass saves for the backward pass, in its own dtype.

    XLA takes a cast to bfloat16 and back for none. It would keep the float32 from which the tensor
    was cast, twice as large.
    """
    return xla_optimization_barrier([tensor])[0] if is_in_xla() else tensor


def recompute(dependency, *tensors):
    """Returns the tensors from which a backward pass recomputes what was not saved.

    XLA takes them for others than before. Else it would find the same computation twice and keep
    the first. They are there as soon as `dependency` is, a gradient of the backward pass.
    """
    return (
        list(xla_optimization_barrier([dependency, *tensors]))[1:] if is_in_xla() else list(tensors)
    )


def _compile_silently():
    """XLA reports a process's first compilation on stderr, past every setting of the log.

    So the first one is of next to nothing, while stderr leads nowhere.
    """
    with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
        x = tf.placeholder(tf.float32, [])
        doubled = tf.function(lambda value: 2.0 * value, jit_compile=True, autograph=False)(x)
        stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(devnull, 2)
            session.run(doubled, {x: 0.0})
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            os.close(devnull)
