"""Task-specific parameters of the graph of `onnx_encoder`.

They are inputs of the graph (`input_parameters`, for a bank), constants (`constant_parameters`, for
a single task) or rows gathered from tables in the graph (`gathered_parameters`, for several tasks).

Axes in shape comments: G groups, D hidden size, V vectors, K positions of adapters, 2 in each
layer, m size of an adapter (1 where a position has none), L outputs.
"""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from adapter_bert.formats import task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.inference.compatibility import HEAD, architecture_of, table_name
from adapter_bert.serving.inference.onnx_graph import Graph, Tensors


class TaskArrays(NamedTuple):
    """A task's parameters in the layout of the graph, float arrays; m differs between adapters.

    Attributes:
      vectors: [V, D]: gamma and beta of the embeddings' LayerNorm, and of that after each of the K
        positions; the pooler's bias.
      adapters: see `adapter_arrays`; None if the task has no adapters.
      pooler: [D, D].
      head, head_bias: [D, L] and [1, L].
    """

    vectors: np.ndarray
    adapters: Optional[Tensors]
    pooler: np.ndarray
    head: np.ndarray
    head_bias: np.ndarray


def task_arrays(
    config: configs.BertConfig,
    backbone: Tensors,
    adapter: task_adapter.TaskAdapter,
    dtype: Any = np.float32,
) -> TaskArrays:
    """Returns the `TaskArrays` of a task adapter.

    Args:
      config: `configs.BertConfig`.
      backbone: dict of the backbone's tensors, for those that the task did not train.
      adapter: `task_adapter.TaskAdapter`.
      dtype: of the arrays. The backbone's tensors are shared, not copied, if they have this dtype.
    """
    settings = adapter.description.adapter
    trained = {table_name(name): value for name, value in adapter.tensors.items()}
    vectors = [
        trained.get(name, backbone[name])
        for scope in ("bert/embeddings", *_scopes(config))
        for name in (f"{scope}/LayerNorm/gamma", f"{scope}/LayerNorm/beta")
    ]
    kernel, bias = (
        trained.get(name, backbone[name])
        for name in ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
    )
    head, head_bias = (trained[name] for name in HEAD)
    adapters = None
    if settings:
        adapters = adapter_arrays(config, architecture_of(settings), adapter.tensors, dtype)
    return TaskArrays(
        np.stack([*vectors, bias]).astype(dtype),
        adapters,
        kernel.astype(dtype, copy=False),
        np.ascontiguousarray(head.T, dtype),
        head_bias[np.newaxis].astype(dtype),
    )


def adapter_arrays(
    config: configs.BertConfig,
    architecture: configs.AdapterConfig,
    tensors: Tensors,
    dtype: Any = np.float32,
) -> Tensors:
    """Returns the adapters' variables of `AdapterConfig.variables` in the layout of the graph.

    Args:
      config: `configs.BertConfig`.
      architecture: the adapters' architecture.
      tensors: the task adapter's. Where they have no adapter, the arrays are 0, of size 1.
      dtype: of the arrays.

    Returns:
      A dict: "adapter_vectors" [rows, D] has a row for each variable that `_is_vector`, at each of
      the K positions; "<variable>_<position>" is any other, a matrix.
    """
    sizes = {"D": config.hidden_size, "m": 1, "1": 1}
    vectors, arrays = [], {}
    for index, scope in enumerate(_scopes(config)):
        for name, variable in architecture.variables().items():
            value = tensors.get(f"{scope}/adapters/{name}")
            if value is None:
                value = np.zeros([sizes[axis] for axis in variable.axes])
            if _is_vector(variable):
                vectors.append(np.broadcast_to(value, [1, config.hidden_size]))
            else:
                arrays[f"{name}_{index}"] = np.array(value, dtype, order="C", ndmin=2)
    return {"adapter_vectors": np.concatenate(vectors).astype(dtype), **arrays}


def _is_vector(variable: configs.AdapterVariable) -> bool:
    """Returns whether a variable is a number for each unit of D, or one number."""
    return set(variable.axes[:-1]) <= {"1"} and variable.axes[-1] in ("D", "1")


def _scopes(config: configs.BertConfig) -> List[str]:
    """Returns the scopes of the projections before adapters, in the order of `TaskArrays`."""
    layers, sites = range(config.num_hidden_layers), configs.SITES["both"]
    return [f"bert/encoder/layer_{index}/{site}" for index in layers for site in sites]


class GroupParameters(NamedTuple):
    """The `TaskArrays` of each group, as names of Tensors.

    Attributes:
      num_groups: int64 [1], G.
      vectors: V of [G, 1, D].
      adapters: K dicts from the names of an adapter's variables to Tensors [G, rows, columns],
        vectors [G, 1, D]; empty where no task has an adapter.
      pooler: [G, D, D], or [1, D, D] if shared.
      head, head_bias: [G, D, L] and [G, 1, L].
      is_constant: whether there is one group and all of these are constants, without the axis G.
    """

    num_groups: str
    vectors: Sequence[str]
    adapters: Sequence[Dict[str, str]]
    pooler: str
    head: str
    head_bias: str
    is_constant: bool = False


def _adapters(
    config: configs.BertConfig,
    architecture: configs.AdapterConfig,
    tensor: Callable[[str, List[Any]], Any],
    split: Callable[[Any, int], Sequence[Any]],
) -> List[Dict[str, Any]]:
    """Returns `GroupParameters.adapters`.

    Args:
      config: `configs.BertConfig`.
      architecture: the adapters' architecture.
      tensor: function of a name in `adapter_arrays` and its shape that adds this Tensor.
      split: function of a Tensor and the number of its rows that returns these.
    """
    variables, num_positions = architecture.variables(), len(_scopes(config))
    num_vectors = num_positions * sum(map(_is_vector, variables.values()))
    vectors = iter(split(tensor("adapter_vectors", [num_vectors, config.hidden_size]), num_vectors))
    result: List[Dict[str, Any]] = [{} for _ in range(num_positions)]
    for index, tensors in enumerate(result):
        sizes = {"D": config.hidden_size, "m": f"m{index}", "1": 1}
        for name, variable in variables.items():
            if _is_vector(variable):
                tensors[name] = next(vectors)
            else:
                shape = [1, *(sizes[axis] for axis in variable.axes)][-2:]  # As `adapter_arrays`.
                tensors[name] = tensor(f"{name}_{index}", shape)
    return result


def input_parameters(
    graph: Graph, config: configs.BertConfig, architecture: configs.AdapterConfig
) -> GroupParameters:
    """Adds `GroupParameters` as inputs; `feeds` returns their values."""

    def tensor(name: str, shape: List[Any]) -> str:
        return graph.input(name, ["P" if name == "pooler" else "G", *shape])

    return _parameters_of_groups(graph, config, architecture, tensor)


def _parameters_of_groups(
    graph: Graph,
    config: configs.BertConfig,
    architecture: configs.AdapterConfig,
    tensor: Callable[[str, List[Any]], str],
    num_groups: Optional[str] = None,
) -> GroupParameters:
    """Returns `GroupParameters`, given a function of a name and a group's shape that adds them."""
    width, num_vectors = config.hidden_size, 2 * len(_scopes(config)) + 3
    vectors = tensor("vectors", [num_vectors, width])
    return GroupParameters(
        num_groups or graph.op("Shape", vectors, start=0, end=1),
        graph.split(vectors, num_vectors),
        _adapters(config, architecture, tensor, graph.split),
        tensor("pooler", [width, width]),
        tensor("head", [width, "L"]),
        tensor("head_bias", [1, "L"]),
    )


def feeds(groups: Sequence[TaskArrays], no_adapters: Tensors) -> Dict[str, np.ndarray]:
    """Returns the values of `input_parameters`; a single group's are not copied.

    Args:
      groups: each group's `TaskArrays`, of the same BERT.
      no_adapters: `adapter_arrays` without adapters, for groups without them.
    """
    poolers = [each.pooler for each in groups]
    is_shared = all(pooler is poolers[0] for pooler in poolers)
    columns = {"pooler": poolers[:1] if is_shared else poolers}
    for name in ("vectors", "head", "head_bias"):
        columns[name] = [getattr(each, name) for each in groups]
    adapters = [each.adapters or no_adapters for each in groups]
    for name in no_adapters:
        columns[name] = [each[name] for each in adapters]
    return _stack(columns)


def _stack(columns: Dict[str, List[np.ndarray]]) -> Dict[str, np.ndarray]:
    """Stacks each column's arrays, padded with zeros to its largest sizes; one alone is not copied.

    The stacks share a buffer: buffers of their own would cost more page faults.
    """
    result = {name: arrays[0][np.newaxis] for name, arrays in columns.items()}
    shapes = {
        name: (len(arrays), *map(max, zip(*(array.shape for array in arrays))))
        for name, arrays in columns.items()
        if len(arrays) > 1
    }
    buffer, start = np.empty(sum(map(math.prod, shapes.values())), result["pooler"].dtype), 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        result[name], start = buffer[start:end].reshape(shape), end
        for row, array in zip(result[name], columns[name]):
            if array.shape != row.shape:
                row.fill(0)
            row[tuple(map(slice, array.shape))] = array
    return result


def constant_parameters(
    graph: Graph,
    config: configs.BertConfig,
    architecture: configs.AdapterConfig,
    arrays: TaskArrays,
) -> GroupParameters:
    """Adds a single task's arrays as constants, without adapters that are 0."""
    adapters: List[Dict[str, Any]] = [{} for _ in _scopes(config)]
    if arrays.adapters:
        values = arrays.adapters
        adapters = _adapters(config, architecture, lambda name, _: values[name], lambda v, _: v)
    return GroupParameters(
        graph.ints(1),
        list(map(graph.constant, arrays.vectors)),
        [
            {name: graph.constant(value) for name, value in each.items()}
            if any(value.any() for value in each.values())
            else {}
            for each in adapters
        ],
        graph.constant(arrays.pooler),
        graph.constant(arrays.head),
        graph.constant(arrays.head_bias[0]),
        is_constant=True,
    )


def gathered_parameters(
    graph: Graph,
    config: configs.BertConfig,
    architecture: configs.AdapterConfig,
    tasks: Sequence[TaskArrays],
    task_ids: str,
    num_rows: str,
) -> GroupParameters:
    """Adds several tasks' arrays as tables, from which each row gathers its task's parameters.

    Args:
      graph: `Graph`.
      config: `configs.BertConfig`.
      architecture: the adapters' architecture.
      tasks: list of at least two `TaskArrays`.
      task_ids: integer Tensor [B], indices of `tasks`; each row is a group.
      num_rows: int64 Tensor [1], B; other task_ids are an error.
    """
    inputs = feeds(tasks, adapter_arrays(config, architecture, {}))

    def tensor(name: str, _: List[Any]) -> str:
        table = graph.constant(inputs[name])
        is_shared = len(inputs[name]) == 1  # As a pooler may be.
        return table if is_shared else graph.op("Gather", table, task_ids, axis=0)

    return _parameters_of_groups(graph, config, architecture, tensor, num_rows)
