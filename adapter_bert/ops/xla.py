"""Decides which functions XLA compiles into one pass, and what it recomputes.

`fused` marks such a function. It has no effect in a program that XLA compiles as a whole, such as a
TPU's.
"""

import contextlib
import contextvars
import functools
import os
from typing import Any, Callable, Iterator, List

import tensorflow.compat.v1 as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util

try:
    from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_optimization_barrier
except ImportError:

    def xla_optimization_barrier(tensors: list) -> list:
        """Returns the tensors: without a barrier, XLA may keep larger ones and not recompute."""
        return tensors


from adapter_bert.ops import devices

_GRAPH_DICTS = "_adapter_bert_dicts"
_portable = contextvars.ContextVar("portable", default=False)


def graph_dict(graph: tf.Graph, owner: str) -> dict:
    """Returns the owner's dict in a graph, which lives as long as the graph."""
    if not hasattr(graph, _GRAPH_DICTS):
        setattr(graph, _GRAPH_DICTS, {})
    return getattr(graph, _GRAPH_DICTS).setdefault(owner, {})


def fused(function: Callable) -> Callable:
    """Compiles a function of Tensors into one pass by XLA, where possible.

    The function may contain element-wise operations and sums over rows. It is recompiled for each
    shape, in 10 to 50 ms. Its keyword arguments must be hashable.
    """

    @functools.wraps(function)
    def call_fused(*tensors: tf.Tensor, **settings: Any) -> Any:
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
    """Returns the outermost graph, if the default one is that of a function or loop."""
    graph = tf.get_default_graph()
    while isinstance(graph, FuncGraph):
        graph = graph.outer_graph
    return graph


def fuses() -> bool:
    """Returns whether `fused` compiles functions in the current context."""
    return not _portable.get() and not is_in_xla() and can_fuse()


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Disables `fused` in its context, so that the graph also runs without XLA."""
    token = _portable.set(True)
    try:
        yield
    finally:
        _portable.reset(token)


def in_current_mode(function: Callable) -> Callable:
    """Returns the function. If `portable` is entered now, later calls enter it, too."""
    return portable()(function) if _portable.get() else function


@functools.lru_cache(maxsize=None)
def can_fuse() -> bool:
    """Returns whether XLA can compile single functions here: on CPUs, with TensorFlow 2.

    GPUs are excluded, because they have not been measured. A TPU's program is compiled as a whole.
    """
    if tf.__version__.startswith("1.") or devices.has_gpu():
        return False
    # In this version, fusion emitters compile a third slower, and their code is no faster. A
    # version that does not know the flag would crash.
    if tf.__version__.startswith("2.21."):
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
    _compile_silently()
    return True


def is_in_xla() -> bool:
    """Returns whether XLA compiles the whole program that is built here, as for a TPU."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.get_default_graph())


def saved_for_backward(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor, marked so that XLA saves it for backward in its dtype.

    XLA removes a cast to bfloat16 and back to float32. It would keep the float32 tensor before the
    cast, which is twice as large.
    """
    return xla_optimization_barrier([tensor])[0] if is_in_xla() else tensor


def recompute(dependency: tf.Tensor, *tensors: tf.Tensor) -> List[tf.Tensor]:
    """Returns copies of saved tensors, from which a backward pass recomputes the forward pass.

    XLA cannot tell that the copies are equal to the tensors. Otherwise it would merge the two
    computations and keep the result of the first. The copies become available with `dependency`, a
    gradient of the backward pass.
    """
    return (
        list(xla_optimization_barrier([dependency, *tensors]))[1:] if is_in_xla() else list(tensors)
    )


def _compile_silently() -> None:
    """Compiles a trivial function with stderr redirected to /dev/null.

    XLA reports a process's first compilation on stderr, and no log setting prevents it.
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
