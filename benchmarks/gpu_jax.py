"""Contestant: a program of gpu_program.py on the XLA of JAX, on a GPU if there is one.

python benchmarks/gpu_jax.py --program=DIR/NAME --tf32
"""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # Contestants share the memory.

import argparse
import json

import jax
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import worker
import workload

_LOSSES = 3


def compile_program(serialized, device, tf32):
    """Returns the executable of a serialized HloModuleProto; float32 products are exact or TF32."""
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(serialized))
        operations = []
        module.operation.walk(lambda op: operations.append(op) or ir.WalkResult.ADVANCE)
        for operation in operations:
            if operation.name == "mhlo.copy":  # JAX does not know it.
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()
            elif operation.name in ("stablehlo.dot_general", "stablehlo.dot") and not tf32:
                highest = stablehlo.PrecisionAttr.get("HIGHEST")
                operation.attributes["precision_config"] = ir.ArrayAttr.get([highest] * 2)
        devices = _jax.DeviceList((device,))
        options = xla_client.CompileOptions()
        return device.client.compile_and_load(module, devices, options)


class Program:
    """A compiled program with its arguments on the device.

    Args:
      path: of the files of gpu_program.py, without ending.
      tf32: bool; round the factors of float32 products.
    """

    def __init__(self, path, tf32=False):
        with open(path + ".json", encoding="utf-8") as reader:
            self.facts = json.load(reader)
        with open(path + ".hlo", "rb") as reader:
            serialized = reader.read()
        self.device = jax.devices()[0]
        jax.config.update("jax_enable_x64", True)  # The global step is int64.
        self.work = workload.work_of(os.path.basename(path))
        features = workload.gpu_features(self.work, self.facts["sizes"]["vocab_size"])
        given = [features[name] for name in sorted(features)]
        given += [workload.initial(*variable) for variable in self.facts["variables"]]
        self._arguments = [jax.device_put(value, self.device) for value in given]
        self._executable = compile_program(serialized, self.device, tf32)

    def step(self):
        """Runs the program once, and returns its first result, without waiting for it."""
        results = self._executable.execute_sharded(self._arguments)
        first, *values = (arrays[0] for arrays in results.disassemble_into_single_device_arrays())
        for index, value in zip(self.facts["updated"], values):
            self._arguments[index] = value
        return first

    def peak_bytes(self):
        """Returns the peak of the device's memory; 0 if the device does not count."""
        return (self.device.memory_stats() or {}).get("peak_bytes_in_use", 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--steps", type=int, default=workload.GPU_STEPS)
    arguments = parser.parse_args()
    program = Program(arguments.program, arguments.tf32)
    losses = [program.step() for _ in range(_LOSSES)] if program.work.kind == "step" else []

    def run():
        for _ in range(arguments.steps):
            result = program.step()
        return result.block_until_ready()

    facts = {
        "version": "JAX " + jax.__version__,
        "losses": [float(loss) for loss in losses],
        "expected": program.facts["losses"],
        "device": program.device.device_kind,
    }
    worker.serve(run, facts=facts, memory=program.peak_bytes)


if __name__ == "__main__":
    main()
