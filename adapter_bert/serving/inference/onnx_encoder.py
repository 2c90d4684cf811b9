"""Builds the encoder for batches that mix tasks as an ONNX graph.

The backbone's tensors are constants of the graph. The task-specific `GroupParameters` are inputs
(`input_parameters`, for a bank), constants (`constant_parameters`, for a single task) or rows
gathered from tables in the graph (`gathered_parameters`, for several tasks).

A batch of B rows consists of G groups of equal size, each of one task. Each group is one matrix in
a batched product, so a batch of one task (G = 1) needs plain matrix products only.

Axes in shape comments: B batch, G groups, R positions of a group's rows, S positions, F positions
of the last layer, D hidden size, V vectors, K positions of adapters, 2 in each layer, m size of an
adapter (1 where a position has none), L outputs.
"""

import functools
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from adapter_bert.formats import task_adapter
from adapter_bert.formats.onnx_backbone import IR_VERSION, OPSET
from adapter_bert.model import configs
from adapter_bert.serving.inference.compatibility import HEAD, architecture_of, table_name
from adapter_bert.shell.errors import UserError

INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
Tensors = Dict[str, np.ndarray]

_MICROSOFT = "com.microsoft"  # ONNX Runtime's own operators.
_EPSILON, _BATCH_NORM_EPSILON = 1e-12, 1e-6  # As in `ops.layers`.
_MAX_SMALL_SIZE = 1024  # Smaller constants, such as shapes, are deduplicated.


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


class Graph:
    """Builds an ONNX graph. Tensors are strings, their names.

    Args:
      dtype: np.float32 or np.float16, of constants and hidden states. Outputs are float32.
      keeps_constants_apart: bool; leave large constants out of the model and in `external`, from
        which the session gets them.

    Attributes:
      dtype: see above.
      external: dict from the names of the constants that were left out to arrays.
    """

    def __init__(self, dtype: Any = np.float32, *, keeps_constants_apart: bool = False):
        self.dtype, self._keeps_constants_apart = dtype, keeps_constants_apart
        self.external: Tensors = {}
        self.type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._nodes: List[Any] = []
        self._constants: Dict[Any, str] = {}
        self._initializers: List[Any] = []
        self._inputs: List[Any] = []
        self._outputs: List[Any] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operator with one output; returns the output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, num_outputs: int, *inputs: str, **attributes: Any) -> List[str]:
        """Adds an operator; returns its outputs."""
        name = f"{kind}_{len(self._nodes)}"
        outputs = [f"{name}:{index}" for index in range(num_outputs)]
        self._nodes.append(helper.make_node(kind, inputs, outputs, name, **attributes))
        return outputs

    def own_op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operator of ONNX Runtime's domain; returns its output."""
        return self.op(kind, *inputs, domain=_MICROSOFT, **attributes)

    def split(self, tensor: str, count: int) -> List[str]:
        """Returns the [G, 1, D] of [G, count, D]."""
        return self.ops("Split", count, tensor, self.ints(*[1] * count), axis=1)

    def constant(self, value: np.ndarray) -> str:
        """Adds a constant; floats are cast to the graph's dtype."""
        if np.issubdtype(value.dtype, np.floating):
            value = value.astype(self.dtype, copy=False)
        value = np.asarray(value, order="C")
        is_small = value.size <= _MAX_SMALL_SIZE
        content = value.tobytes() if is_small else len(self._constants)
        key = value.dtype.str, value.shape, content
        if key not in self._constants:
            name = self._constants[key] = f"constant_{len(self._constants)}"
            if is_small or not self._keeps_constants_apart:
                tensor = numpy_helper.from_array(value, name)
            else:
                self.external[name], tensor = value, _external(value, name)
            self._initializers.append(tensor)
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """Adds a constant int64 [n]."""
        return self.constant(np.array(values, np.int64))

    def input(self, name: str, shape: Sequence[Any], dtype: Optional[int] = None) -> str:
        """Adds an input; a string in its shape stands for any size."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype or self.type, shape))
        return name

    def output(self, name: str, tensor: str, shape: Sequence[Any]) -> None:
        """Adds a float32 output; a string in its shape stands for any size."""
        self._nodes.append(helper.make_node("Cast", [tensor], [name], name, to=FLOAT))
        self._outputs.append(helper.make_tensor_value_info(name, FLOAT, shape))

    def model(self, metadata: Optional[Dict[str, str]] = None) -> Any:
        """Returns the `onnx.ModelProto`."""
        graph = helper.make_graph(
            self._nodes, "bert", self._inputs, self._outputs, self._initializers
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(_MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="adapter-bert")
        model.ir_version = IR_VERSION
        helper.set_model_props(model, metadata or {})
        return model


def _external(value: np.ndarray, name: str) -> Any:
    """Returns the `onnx.TensorProto` of a constant outside the model."""
    tensor = TensorProto(name=name, dims=value.shape, data_location=TensorProto.EXTERNAL)
    tensor.data_type = helper.np_dtype_to_tensor_dtype(value.dtype)
    tensor.external_data.add(key="location", value="memory")
    return tensor


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
    width, num_vectors = config.hidden_size, 2 * len(_scopes(config)) + 3
    vectors = graph.input("vectors", ["G", num_vectors, width])
    return GroupParameters(
        graph.op("Shape", vectors, start=0, end=1),
        graph.split(vectors, num_vectors),
        _adapters(
            config,
            architecture,
            lambda name, shape: graph.input(name, ["G", *shape]),
            graph.split,
        ),
        graph.input("pooler", ["P", width, width]),
        graph.input("head", ["G", width, "L"]),
        graph.input("head_bias", ["G", 1, "L"]),
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
    buffer, start = np.zeros(sum(map(math.prod, shapes.values())), result["pooler"].dtype), 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        result[name], start = buffer[start:end].reshape(shape), end
        for row, array in zip(result[name], columns[name]):
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
    num_groups: str,
) -> GroupParameters:
    """Adds several tasks' arrays as tables, from which each row gathers its task's parameters.

    Args:
      graph: `Graph`.
      config: `configs.BertConfig`.
      architecture: the adapters' architecture.
      tasks: list of at least two `TaskArrays`.
      task_ids: integer Tensor [B], indices of `tasks`; each row is a group.
      num_groups: int64 Tensor [1], B.
    """
    inputs = feeds(tasks, adapter_arrays(config, architecture, {}))

    def gather(name: str) -> str:
        return graph.op("Gather", graph.constant(inputs[name]), task_ids, axis=0)

    is_shared = len(inputs["pooler"]) == 1
    return GroupParameters(
        num_groups,
        graph.split(gather("vectors"), inputs["vectors"].shape[1]),
        _adapters(config, architecture, lambda name, _: gather(name), graph.split),
        graph.constant(inputs["pooler"]) if is_shared else gather("pooler"),
        gather("head"),
        gather("head_bias"),
    )


class InputNames(NamedTuple):
    """Names of a batch's integer Tensors [B, S]; see `modeling.BertModel`."""

    input_ids: str
    input_mask: str
    segment_ids: str


def inputs(graph: Graph, dtype: int = TensorProto.INT32) -> InputNames:
    """Adds `InputNames` of an integer type as inputs of the graph; `encode` needs an int32 mask."""
    return InputNames(*(graph.input(name, ["B", "S"], dtype) for name in InputNames._fields))


class LogitNames(NamedTuple):
    """Names of Tensors: logits [G, B / G, L], and token_logits [G, R, L] of B * F positions."""

    logits: str
    token_logits: str


def encode(
    graph: Graph,
    config: configs.BertConfig,
    backbone: Tensors,
    architecture: configs.AdapterConfig,
    parameters: GroupParameters,
    batch: InputNames,
    num_positions: Optional[str],
    *,
    precision: str = "float32",
    broadcasts_layer_norm: bool = False,
) -> LogitNames:
    """Adds the encoder and the heads.

    Args:
      graph: `Graph`, of float16 if that is the precision.
      config: `configs.BertConfig`.
      backbone: dict of its tensors, see `model_variables.encoder_shapes`.
      architecture: the adapters' architecture.
      parameters: `GroupParameters`.
      batch: `InputNames`.
      num_positions: int64 [1], F: the last layer is computed at the first F positions only. 1 if
        every task reads the pooled output; None for all positions.
      precision: one of `configs.ANSWER_PRECISIONS`; int8 quantizes the backbone's products only.
      broadcasts_layer_norm: bool; pass each group's gamma and beta to LayerNormalization, which
        ONNX Runtime supports since 1.21 and which saves a pass over the hidden states.

    Returns:
      `LogitNames`.
    """
    encoder = _Encoder(
        graph,
        config,
        backbone,
        architecture,
        parameters,
        batch,
        precision == "int8",
        broadcasts_layer_norm or parameters.is_constant,
    )
    hidden = encoder.embed()
    for index in range(config.num_hidden_layers):
        is_last = index == config.num_hidden_layers - 1
        hidden = encoder.layer(index, hidden, num_positions if is_last else None)
    return encoder.heads(hidden)


class _Encoder:
    """Builds the parts of the encoder; hidden states are [G, R, D]."""

    def __init__(
        self,
        graph: Graph,
        config: configs.BertConfig,
        backbone: Tensors,
        architecture: configs.AdapterConfig,
        parameters: GroupParameters,
        batch: InputNames,
        is_int8: bool,
        broadcasts_layer_norm: bool,
    ):
        if callable(config.hidden_act):
            raise UserError("hidden_act must be the activation's name for ONNX, but is a function.")
        unknown = sorted(architecture.variant().keys() - _VARIANTS)
        if architecture.fn not in _FUNCTIONS:
            raise _not_computed(f"--adapter_fn={architecture.fn}")
        if unknown:
            raise _not_computed(f"--adapter_{unknown[0]}")
        self._graph, self._config, self._backbone = graph, config, backbone
        self._architecture, self._parameters, self._batch = architecture, parameters, batch
        self._is_int8, self._broadcasts_layer_norm = is_int8, broadcasts_layer_norm
        width = graph.ints(config.hidden_size)
        self._grouped = graph.op("Concat", parameters.num_groups, graph.ints(-1), width, axis=0)
        sizes = graph.op("Shape", batch.input_ids)
        self._batched = graph.op("Concat", sizes, width, axis=0)
        self._num_rows = graph.op("Shape", batch.input_ids, start=0, end=1)

    def embed(self) -> str:
        """Returns the embeddings after LayerNorm."""
        graph = self._graph

        def table(name: str) -> str:
            return graph.constant(self._backbone[f"bert/embeddings/{name}_embeddings"])

        words = graph.op("Gather", table("word"), self._batch.input_ids)
        segments = graph.op("Gather", table("token_type"), self._batch.segment_ids)
        length = graph.op("Shape", self._batch.input_ids, start=1, end=2)
        positions = graph.op("Slice", table("position"), graph.ints(0), length, graph.ints(0))
        summed = graph.op("Add", graph.op("Add", words, segments), positions)
        return self._layer_norm(graph.op("Reshape", summed, self._grouped), 0)

    def layer(self, index: int, hidden: str, num_positions: Optional[str]) -> str:
        """Returns a Transformer layer's output, at the first `num_positions` positions or all."""
        graph, scope = self._graph, f"bert/encoder/layer_{index}"
        rows = graph.op("Reshape", hidden, self._batched)
        if num_positions is None:
            context = self._attention(rows, f"{scope}/attention/self")
        else:
            queries = graph.op("Slice", rows, graph.ints(0), num_positions, graph.ints(1))
            context = self._cross_attention(queries, rows, f"{scope}/attention/self")
            hidden = graph.op("Reshape", queries, self._grouped)
        context = graph.op("Reshape", context, self._grouped)
        output = self._dense(context, f"{scope}/attention/output/dense")
        hidden = self._add_and_norm(output, hidden, 2 * index)
        intermediate = self._dense(hidden, f"{scope}/intermediate/dense", self._config.hidden_act)
        output = self._dense(intermediate, f"{scope}/output/dense")
        return self._add_and_norm(output, hidden, 2 * index + 1)

    def heads(self, hidden: str) -> LogitNames:
        """Returns the heads' `LogitNames`: of the pooled output, and of all computed positions."""
        graph, parameters = self._graph, self._parameters
        shape = graph.op("Concat", self._num_rows, graph.ints(-1, self._config.hidden_size), axis=0)
        rows = graph.op("Reshape", hidden, shape)
        first = graph.op("Slice", rows, graph.ints(0), graph.ints(1), graph.ints(1))
        first = graph.op("Reshape", first, self._grouped)
        pooled = graph.op("MatMul", first, parameters.pooler)
        pooled = graph.op("Tanh", graph.op("Add", pooled, parameters.vectors[-1]))
        return LogitNames(self._head(pooled), self._head(hidden))

    def _head(self, rows: str) -> str:
        graph, parameters = self._graph, self._parameters
        return graph.op("Add", graph.op("MatMul", rows, parameters.head), parameters.head_bias)

    def _attention(self, rows: str, scope: str) -> str:
        """Returns self-attention at all positions: [B, S, D] → [B, S, D]."""
        graph, heads = self._graph, self._config.num_attention_heads
        kernels, biases = self._projections(scope)
        kernel, bias = np.concatenate(kernels, 1), graph.constant(np.concatenate(biases))
        mask = self._batch.input_mask
        if not self._is_int8:
            kernel_constant = graph.constant(kernel)
            return graph.own_op("Attention", rows, kernel_constant, bias, mask, num_heads=heads)
        quantized, scale, zero = graph.ops("DynamicQuantizeLinear", 3, rows)
        weights, weights_scale = map(graph.constant, _quantize(kernel))
        return graph.own_op(
            "QAttention",
            *(quantized, weights, bias, scale, weights_scale, mask, zero),
            num_heads=heads,
        )

    def _cross_attention(self, queries: str, rows: str, scope: str) -> str:
        """Returns attention of queries [B, F, D] to rows [B, S, D]: [B, F, D].

        ONNX Runtime's MultiHeadAttention has a bug up to 1.20: if F is not S, the mask is wrong.
        """
        graph, heads = self._graph, self._config.num_attention_heads
        size = self._config.hidden_size // heads
        query, key, value = (
            graph.op(
                "Transpose",
                graph.op(
                    "Reshape", self._product(source, kernel, bias), graph.ints(0, -1, heads, size)
                ),
                perm=order,
            )
            for source, kernel, bias, order in zip(
                (queries, rows, rows),
                *self._projections(scope),
                ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]),
            )
        )
        scores = graph.op(
            "Mul", graph.op("MatMul", query, key), graph.constant(np.array(size**-0.5))
        )
        probabilities = graph.op("Softmax", graph.op("Add", scores, self._mask_bias()), axis=-1)
        context = graph.op("MatMul", probabilities, value)
        context = graph.op("Transpose", context, perm=[0, 2, 1, 3])
        return graph.op("Reshape", context, graph.ints(0, -1, heads * size))

    def _mask_bias(self) -> str:
        """Returns the mask to add to scores, [B, 1, 1, S]: -10000 at padding, as in `modeling`."""
        graph = self._graph
        mask = graph.op("Unsqueeze", self._batch.input_mask, graph.ints(1, 2))
        is_padding = graph.op("Sub", graph.constant(np.array(1, np.int32)), mask)
        is_padding = graph.op("Cast", is_padding, to=graph.type)
        return graph.op("Mul", is_padding, graph.constant(np.array(-10000.0)))

    @functools.cached_property
    def _unit_scale(self) -> str:
        return self._graph.constant(np.ones(self._config.hidden_size))

    def _projections(self, scope: str) -> Tuple[List[np.ndarray], List[np.ndarray]]:
        names = [f"{scope}/{name}" for name in ("query", "key", "value")]
        kernels, biases = (
            [self._backbone[f"{name}/{part}"] for name in names] for part in ("kernel", "bias")
        )
        return kernels, biases

    def _dense(self, rows: str, scope: str, activation: Optional[str] = None) -> str:
        """Returns a dense layer of the backbone: [G, R, in] → [G, R, out]."""
        graph = self._graph
        kernel, bias = (self._backbone[f"{scope}/{name}"] for name in ("kernel", "bias"))
        if activation in _GELU_WITH_BIAS and not self._is_int8:
            product = graph.op("MatMul", rows, graph.constant(kernel))
            return graph.own_op(_GELU_WITH_BIAS[activation], product, graph.constant(bias))
        return _activate(graph, self._product(rows, kernel, bias), activation)

    def _product(self, rows: str, kernel: np.ndarray, bias: np.ndarray) -> str:
        graph = self._graph
        if self._is_int8:
            weights, scale = map(graph.constant, _quantize(kernel))
            arguments = rows, weights, scale, "", graph.constant(bias)
            return graph.own_op("DynamicQuantizeMatMul", *arguments)
        product = graph.op("MatMul", rows, graph.constant(kernel))
        return graph.op("Add", product, graph.constant(bias))

    def _add_and_norm(self, output: str, residual: str, index: int) -> str:
        """Returns LayerNorm(adapter(output) + residual); see `ops.adapters.Adapter`."""
        graph, architecture = self._graph, self._architecture
        weights = dict(self._parameters.adapters[index])
        summed = graph.op("Add", output, residual)
        if weights:
            source = {
                "sequential": lambda: output,
                "parallel": lambda: residual,
                "normalized": lambda: self._layer_norm(summed, 2 + 2 * index),
            }[architecture.placement]()
            change = _FUNCTIONS[architecture.fn](self, source, weights)
            if weights:
                raise _not_computed(f"An adapter's {', '.join(weights)}")
            update = {
                "add": lambda: change,
                "multiply": lambda: graph.op("Mul", output, change),
            }[architecture.interaction]()
            summed = graph.op("Add", summed, update)
        return self._layer_norm(summed, 2 + 2 * index)

    def _feedforward_adapter(self, rows: str, weights: Dict[str, str]) -> str:
        """Returns f(rows), [G, R, D], as `modeling.feedforward_adapter`; takes its weights."""
        graph, architecture = self._graph, self._architecture

        def project(rows: str, name: str) -> str:
            product = graph.op("MatMul", rows, weights.pop("weights" + name))
            return graph.op("Add", product, weights.pop("biases" + name))

        hidden = project(rows, "1")
        hidden = _NORMALIZATIONS[architecture.normalization](graph, hidden, weights)
        hidden = _activate(graph, hidden, architecture.activation)
        for index in range(2, architecture.depth + 1):
            hidden = project(hidden, f"_hidden{index}")
            hidden = _activate(graph, hidden, architecture.activation)
        change = project(hidden, "2")
        if architecture.scaling == 1.0:
            return change
        scaling = graph.constant(np.array(architecture.scaling, graph.dtype))
        return graph.op("Mul", change, scaling)

    def _layer_norm(self, rows: str, index: int) -> str:
        graph, (gamma, beta) = self._graph, self._parameters.vectors[index : index + 2]
        options = {"axis": -1, "epsilon": _EPSILON}
        if self._broadcasts_layer_norm:
            return graph.op("LayerNormalization", rows, gamma, beta, **options)
        normalized = graph.op("LayerNormalization", rows, self._unit_scale, **options)
        return graph.op("Add", graph.op("Mul", normalized, gamma), beta)


# The fields of `configs.VARIANTS` that this module computes; another one must not be left out.
_VARIANTS = {"normalization", "depth", "placement", "interaction", "scaling"}


def _not_computed(what: str) -> UserError:
    return UserError(
        f"{what} cannot be computed by ONNX Runtime yet: predict with the script, export a"
        " SavedModel, or add it to serving/inference/onnx_encoder.py."
    )


# The functions of `configs.FUNCTIONS`. Each returns f(rows), and takes all weights that it reads.
_FUNCTIONS = {configs.FEEDFORWARD_ADAPTER: _Encoder._feedforward_adapter}


def _layer_normalize(graph: Graph, rows: str, weights: Dict[str, str]) -> str:
    """Normalizes each row of the bottleneck, [G, R, m], as `ops.layers.layer_norm`."""
    gamma, beta = (weights.pop(f"LayerNorm/{name}") for name in ("gamma", "beta"))
    size = graph.op("Shape", gamma, start=-1)
    ones = graph.op("Expand", graph.constant(np.ones(1)), size)
    normalized = graph.op("LayerNormalization", rows, ones, axis=-1, epsilon=_EPSILON)
    return graph.op("Add", graph.op("Mul", normalized, gamma), beta)


def _batch_normalize(graph: Graph, rows: str, weights: Dict[str, str]) -> str:
    """Normalizes the bottleneck, [G, R, m], as `ops.layers.batch_norm` by moving statistics."""
    names = "gamma", "beta", "moving_mean", "moving_variance"
    gamma, beta, mean, variance = (weights.pop(f"BatchNorm/{name}") for name in names)
    variance = graph.op("Add", variance, graph.constant(np.array(_BATCH_NORM_EPSILON)))
    scale = graph.op("Div", gamma, graph.op("Sqrt", variance))
    return graph.op("Add", graph.op("Mul", graph.op("Sub", rows, mean), scale), beta)


_NORMALIZATIONS = {
    "none": lambda graph, rows, weights: rows,
    "layer": _layer_normalize,
    "batch": _batch_normalize,
}


def _quantize(kernel: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns symmetric quantization per column: int8 [in, out] and a float32 scale [out]."""
    scale = np.maximum(np.abs(kernel).max(0), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(kernel / scale).astype(np.int8), scale.astype(np.float32)


def _activate(graph: Graph, tensor: str, activation: Optional[str]) -> str:
    """Returns an activation's output; its name is in `configs.ACTIVATIONS`, "" or None."""
    name = (activation or "linear").lower()
    return _ACTIVATIONS[name](graph, tensor)


def _relu6(graph: Graph, tensor: str) -> str:
    return graph.op(
        "Clip", tensor, *(graph.constant(np.array(value, np.float32)) for value in (0, 6))
    )


_GELU_WITH_BIAS = {"gelu": "FastGelu", "gelu_erf": "BiasGelu"}
# The slope of leaky_relu is that of `ops.layers`. FastGelu is gelu's tanh approximation.
_ACTIVATIONS = {
    "elu": lambda graph, x: graph.op("Elu", x),
    "gelu": lambda graph, x: graph.own_op("FastGelu", x),
    "gelu_erf": lambda graph, x: graph.own_op("Gelu", x),
    "leaky_relu": lambda graph, x: graph.op("LeakyRelu", x, alpha=0.01),
    "linear": lambda graph, x: x,
    "relu": lambda graph, x: graph.op("Relu", x),
    "relu6": _relu6,
    "sigmoid": lambda graph, x: graph.op("Sigmoid", x),
    "swish": lambda graph, x: graph.op("Mul", x, graph.op("Sigmoid", x)),
    "tanh": lambda graph, x: graph.op("Tanh", x),
}
