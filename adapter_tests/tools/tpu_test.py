"""Tests of tools/tpu_*.py and hlo_text.py: programs for a TPU, and analysis of their text."""

import os
import re
import subprocess
import sys
import unittest

import pytest
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.files import paths
from adapter_bert.training import model_fn
from adapter_tests.support import own_models, tiny

FOLDER = os.path.join(paths.PROJECT, "tools")
sys.path.append(FOLDER)  # The scripts there import each other by name.

if tf.__version__.startswith("1."):
    raise unittest.SkipTest("TensorFlow 1 shows no XLA program.")

import hlo_text  # noqa: E402
import tpu_ahead_of_time  # noqa: E402
import tpu_program  # noqa: E402

SIZES = {**tiny.SIZES, "num_hidden_layers": 1}


class HloTextTest(tf.test.TestCase):
    TEXT = """
HloModule m, entry_computation_layout={(f32[8,4]{1,0})->f32[]}
ENTRY %main (p: f32[8,4]) -> f32[] {
  %p = f32[8,4]{1,0:T(8,128)} parameter(0)
  %ar = f32[8,4]{1,0:T(8,128)} all-reduce(f32[8,4]{1,0} %p), replica_groups={{0,1}}, to_apply=%s
  %as = (f32[2,3]{1,0:T(8,128)S(1)}, bf16[5]{0}) all-reduce-start(%a, %b), to_apply=%s
  %ad = (f32[2,3]{1,0}, bf16[5]{0}) all-reduce-done(%as)
  ROOT %g = f32[16,4]{1,0} all-gather(f32[8,4]{1,0} %ar), dimensions={0}
}
"""

    def test_collectives_are_listed_with_their_bytes(self):
        found = hlo_text.collectives(self.TEXT)
        expected = [("all-reduce", 128), ("all-reduce", 34), ("all-gather", 256)]
        self.assertEqual([tuple(collective) for collective in found], expected)
        self.assertEqual(hlo_text.collectives("%a = f32[2]{0} add(%b, %all-reduce.1)"), [])

    def test_bytes_of_shapes_are_computed(self):
        for shape, size in (("f32[]", 4), ("(s64[2,3]{1,0}, pred[7])", 55), ("token[]", 0)):
            self.assertEqual(hlo_text.bytes_of(shape), size)

    def test_memory_traffic_counts_main_memory_transfers(self):
        # An array of 8 x 4 float32 has 128 bytes. %p is read (128), and so is a slice of two of
        # its rows (32). %far is written (128), read once by the fusion that has it twice (128), and
        # copied in (128). All else stays in the core's own memory, or moves no array.
        text = """
%small (q: f32[64,64]) -> f32[64,64] {
  ROOT %r = f32[64,64]{1,0:T(8,128)} negate(%q)
}

%body (p: f32[8,4]) -> f32[] {
  %p = f32[8,4]{1,0:T(8,128)} parameter(0)
  %near = f32[8,4]{1,0:T(8,128)S(1)} fusion(%p), kind=kLoop, calls=%small
  %s = ((f32[8,4]{1,0}), f32[2,4]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%p), slice={[0:2]}
  %sd = f32[2,4]{1,0:T(8,128)S(1)} slice-done(%s), control-predecessors={%p}
  %far = f32[8,4]{1,0:T(8,128)} fusion(%near, %sd), kind=kLoop, calls=%small
  %both = f32[]{:T(128)S(1)} fusion(%far, %far), kind=kLoop, calls=%small
  %c = (f32[8,4]{1,0:S(1)}, f32[8,4]{1,0}, u32[]{:S(2)}) copy-start(%far)
  %cd = f32[8,4]{1,0:S(1)} copy-done(%c)
  ROOT %t = (f32[8,4]{1,0}, f32[]{:S(1)}) tuple(%far, %both)
}
"""
        self.assertEqual(hlo_text.memory_traffic(text), 128 + 32 + 128 + 128 + 128)

    def test_dynamic_shapes_are_detected(self):
        self.assertEqual(hlo_text.dynamic_shapes(self.TEXT), [])
        for text in (
            "%a = f32[<=128,4]{1,0} add(%b, %c)",
            "%a = f32[2,<=4]{1,0} add(%b, %c)",
            "%a = s32[] get-dimension-size(%b), dimensions={0}",
            "%a = f32[4] set-dimension-size(%b, %c), dimensions={0}",
            '%a = f32[4] custom-call(%b), custom_call_target="PadToStatic"',
        ):
            self.assertNotEmpty(hlo_text.dynamic_shapes(self.TEXT + text), text)
        self.assertEqual(hlo_text.dynamic_shapes("compare(f32[2] %a), direction=LE"), [])


@pytest.mark.slow
class TpuProgramTest(tf.test.TestCase):
    def lower(self, work, **more):
        settings = model_fn.ModelSettings(
            bert_config=modeling.BertConfig(**SIZES),
            num_train_steps=10,
            num_warmup_steps=1,
            use_tpu=True,
            random_seed=1,
            precision="bfloat16",
            **more,
        )
        build = own_models.builder("classification", 2)
        return tpu_program.lower(settings, build, work, 8, 16, 4)

    def test_programs_are_static_and_keep_frozen_variables(self):
        for work in tpu_program.WORKS:
            program = self.lower(work)
            self.assertEqual(hlo_text.dynamic_shapes(program.text), [])
            self.assertIn("s32[8,2,16]", program.text)  # Steps, a replica's batch, tokens.
            self.assertEqual(program.trained_bytes > 0, work == "train")
            sums = len(re.findall(r"= (\S+) custom-call\(", program.text))
            self.assertEqual(sums > 0, work == "train")
            # Every replica draws its own dropout.
            self.assertEqual("replica-id()" in program.text, work == "train")

    def test_trained_embeddings_use_one_hot_lookup(self):
        setting = tpu_ahead_of_time.Setting("base", "train", "adapters", "1x1", 8, 16, 4)
        for method, by_product in (("adapters", False), ("full", True)):
            model = tpu_ahead_of_time._model(setting._replace(tuning=method))
            self.assertEqual(model.use_one_hot_embeddings, by_product, method)

    def test_programs_of_adapter_variants_are_static(self):
        for work, variant in (
            ("train", dict(normalization="layer", depth=2, placement="parallel")),
            ("train", dict(activation="swish", sites="attention", interaction="multiply")),
            ("predict", dict(normalization="batch", sites="feed_forward")),
        ):
            adapter = modeling.AdapterConfig(4, **variant)
            program = self.lower(work, adapter_fn=adapter)
            self.assertEqual(hlo_text.dynamic_shapes(program.text), [], variant)
        with self.assertRaisesRegex(ValueError, "one device"):
            self.lower("train", adapter_fn=adapter)

    def test_missing_python_and_indivisible_batch_are_refused(self):
        script = os.path.join(FOLDER, "tpu_ahead_of_time.py")
        command = [sys.executable, script, "--jax_python=/nowhere/python"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--jax_python: there is no /nowhere/python", done.stderr)
        setting = tpu_ahead_of_time.Setting("base", "train", "full", "2x2", 6, 128, 64)
        with self.assertRaisesRegex(SystemExit, "--batch_size=6 is no multiple of 4 cores."):
            tpu_ahead_of_time.compile_step(setting, "unused")
