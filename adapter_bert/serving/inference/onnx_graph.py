"""Builds ONNX graphs, with ONNX Runtime's own operators."""

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from adapter_bert.formats.onnx_backbone import IR_VERSION, OPSET

INT32, INT64, FLOAT = TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT
Tensors = Dict[str, np.ndarray]

_MICROSOFT = "com.microsoft"  # ONNX Runtime's own operators.
_MAX_SMALL_SIZE = 1024  # Smaller constants, such as shapes, stay in the model.


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
        name = f"constant_{len(self._initializers)}"
        if self._keeps_constants_apart and value.size > _MAX_SMALL_SIZE:
            self.external[name], tensor = value, _external(value, name)
        else:
            tensor = numpy_helper.from_array(value, name)
        self._initializers.append(tensor)
        return name

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
