"""Compiles an XLA program for a TPU v5e on a machine without one; requires jax[tpu].

    python tpu_compiler.py program.hlo 4 compiled.txt

The program is a serialized HloModuleProto, run by the given number of replicas. Prints the
compiler's statistics as JSON, in bytes, FLOPs and seconds, and writes the compiled program's text.
"""

import json
import os
import sys
import time

# Describe the hardware, as there is none; read when JAX is imported.
os.environ.update(
    TPU_SKIP_MDS_QUERY="1",
    JAX_PLATFORMS="cpu",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
)

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax.experimental import topologies
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo


def compile_program(serialized, replicas):
    """Returns the executable for the given number of v5e cores."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, 1
    assignment = np.arange(replicas).reshape(replicas, 1)
    options.device_assignment = xla_client.DeviceAssignment.create(assignment)
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(serialized))
        _make_compilable(module, replicas)
        chosen = _jax.DeviceList(tuple(devices[:replicas]))
        return devices[0].client.compile(module, chosen, options)


def _make_compilable(module, replicas):
    """Inserts the all-reduces that tpu_program.py cannot, and removes copies, which JAX lacks."""
    operations = []
    module.operation.walk(lambda op: operations.append(op) or ir.WalkResult.ADVANCE)
    for operation in operations:
        if operation.name == "mhlo.copy":
            replacement = operation.operands[0]
        elif _is_replica_sum(operation):
            replacement = _all_reduce(operation, replicas)
        else:
            continue
        operation.results[0].replace_all_uses_with(replacement)
        operation.erase()


def _is_replica_sum(operation):
    if operation.name != "stablehlo.custom_call":
        return False
    return ir.StringAttr(operation.attributes["call_target_name"]).value == "CrossReplicaSum"


def _all_reduce(operation, replicas):
    """Returns the sum of the operation's operand over all replicas."""
    kind = operation.results[0].type
    groups = np.arange(replicas, dtype=np.int64).reshape(1, replicas)
    with ir.InsertionPoint(operation), operation.location:
        scalar = ir.RankedTensorType.get([], kind.element_type)
        reduce = stablehlo.AllReduceOp(
            [kind], [operation.operands[0]], ir.DenseIntElementsAttr.get(groups)
        )
        block = reduce.computation.blocks.append(scalar, scalar, arg_locs=[operation.location] * 2)
        with ir.InsertionPoint(block):
            stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
    return reduce.results[0]


def main():
    source, replicas, text = sys.argv[1:]
    with open(source, "rb") as reader:
        serialized = reader.read()
    start = time.time()
    compiled = compile_program(serialized, int(replicas))
    seconds = time.time() - start
    with open(text, "w", encoding="utf-8") as writer:
        writer.writelines(module.to_string() for module in compiled.hlo_modules())
    cost, memory = compiled.cost_analysis(), compiled.get_compiled_memory_stats()
    cost = cost[0] if isinstance(cost, list) else cost
    facts = {
        "seconds": seconds,
        "flops": cost["flops"],
        "bytes": cost["bytes accessed"],
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "version": "JAX " + jax.__version__,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
