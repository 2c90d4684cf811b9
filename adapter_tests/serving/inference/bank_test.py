"""Tests of bank.py: compares every row with a model of its task alone."""

import contextlib
import dataclasses
import functools
import gc
import os
import shutil
import tempfile
import threading
import time
import warnings
import weakref
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
import modeling
import tuning
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.inference import (
    engine,
    memory,
    onnx_encoder,
    onnx_parameters,
    onnx_runtime,
)
from adapter_bert.serving.inference.bank import AdapterBank, Features, Row, UnknownTask
from adapter_bert.shell.errors import UserError
from adapter_tests.support import own_models, tiny

A = modeling.AdapterConfig
# Tasks of all kinds, for one bank.
TASKS = {
    "plain": {},
    "other_plain": {},
    "small": {"adapter": A(1)},
    "large": {"adapter": A(11), "labels": ("a", "b", "c", "d", "e")},
    "one_label": {"labels": ("only",)},
    "number": {"kind": "regression", "labels": ()},
    "sets": {"kind": "multilabel", "labels": ("x", "y", "z")},
    "span": {"kind": "span", "labels": (), "adapter": A(3)},
    "tags": {"kind": "tagging", "labels": ("O", "B-x", "I-x")},
    "upper_layer": {"adapter": A(2, layers=(1,))},
    "own_norms": {"method": tuning.Tuning(layer_norms="adapted"), "adapter": A(2, layers=(1,))},
    "attention": {"adapter": A(5, sites="attention")},
    "pooler": {"method": tuning.Tuning(train_pooler=True)},
    "layer_norm": {"method": "layer_norm"},
    "head": {"method": "head", "labels": ("a", "b", "c")},
    "relu": {"adapter": A(4, "relu")},
    "sigmoid": {"adapter": A(6, "sigmoid")},
    "exact_gelu": {"adapter": A(4, "gelu_erf")},
    "parallel": {"adapter": A(4, placement="parallel", sites="feed_forward")},
    "multiply": {"adapter": A(4, interaction="multiply")},
    "normalized": {"adapter": A(4, placement="normalized", normalization="batch", scaling=0.5)},
    "deep": {"adapter": A(4, normalization="layer", depth=2), "labels": ("a", "b", "c")},
}


@functools.lru_cache(maxsize=None)
def _prepare():
    """Returns (folder of a BERT, its `SingleTaskModels`, task adapters by the names in `TASKS`)."""
    folder = os.path.join(tempfile.mkdtemp(dir=tf.test.get_temp_dir()), "bert")
    bert = tiny.write_bert(folder, initializer_range=0.4)
    task_adapters = {
        name: own_models.build_task_adapter(bert, seed, **changes)
        for seed, (name, changes) in enumerate(TASKS.items())
    }
    return bert, own_models.SingleTaskModels(bert), task_adapters


def num_bytes(arrays):
    """Returns the total size in bytes of arrays and of dicts of arrays."""
    return sum(
        num_bytes(each.values()) if isinstance(each, dict) else each.nbytes for each in arrays
    )


class BankTestCase(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert, cls.models, cls.adapters = _prepare()

    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())

    def bank(self, names=(), **options):
        bank = AdapterBank(tiny.config(), os.path.join(self.bert, "bert_model.ckpt"), **options)
        self.addCleanup(bank.close)
        for name in names:
            bank.add(name, self.adapters[name])
        return bank

    def build(self, seed, **changes):
        return own_models.build_task_adapter(self.bert, seed, **changes)

    def saved(self, name, adapter=None):
        folder = os.path.join(self.root, name)
        task_adapter.save(folder, adapter or self.adapters[name])
        return folder

    def rows(self, names, seed=0):
        random = np.random.RandomState(seed)
        rows = []
        for name in names:
            length = random.choice([3, 11, 18])
            ids = random.randint(5, len(tiny.VOCABULARY), length)
            rows.append(Row(name, ids.tolist(), (np.arange(length) > length // 2).tolist()))
        return rows

    def own(self, row, adapter=None):
        segments = [int(segment) for segment in row.segment_ids]
        made = adapter or self.adapters[row.task]
        return self.models.predictions(made, row.input_ids, segments)

    @contextlib.contextmanager
    def paused(self, owner, name):
        """Makes calls of a function wait; yields the events (it was called, it may go on)."""
        called, may_go_on, function = threading.Event(), threading.Event(), getattr(owner, name)

        def wait_and_call(*arguments):
            called.set()
            self.assertTrue(may_go_on.wait(30))
            return function(*arguments)

        with mock.patch.object(owner, name, wait_and_call):
            yield called, may_go_on

    def assert_own(self, rows, results, atol=1e-5):
        self.assertEqual(len(rows), len(results))
        for row, result in zip(rows, results):
            expected = self.own(row)
            self.assertEqual(set(result), set(expected))
            for name, value in expected.items():
                self.assertAllClose(result[name], value, atol=atol, rtol=1e-5, msg=row.task)


class PredictTest(BankTestCase):
    def test_rows_match_single_task_models(self):
        rows = self.rows([*TASKS, *reversed(list(TASKS))])
        results = self.bank(TASKS).predict(rows)
        self.assert_own(rows, results)
        # The tasks' results differ from each other by much more than the tolerance.
        two_labels = [r["probabilities"] for r in results if len(r.get("probabilities", [])) == 2]
        self.assertGreater(np.ptp(two_labels), 0.1)

    def test_exact_gelu_of_bert_matches_single_task_models(self):
        bert = tiny.write_bert(self.root, initializer_range=0.4, hidden_act="gelu_erf")
        adapter = own_models.build_task_adapter(bert)
        config = modeling.BertConfig.from_json_file(os.path.join(bert, "bert_config.json"))
        models, rows = own_models.SingleTaskModels(bert), self.rows(["plain"] * 4)
        for precision, atol in (("float32", 1e-6), ("int8", 0.2)):
            bank = AdapterBank(config, os.path.join(bert, "bert_model.ckpt"), precision=precision)
            self.addCleanup(bank.close)
            bank.add("plain", adapter)
            for row, result in zip(rows, bank.predict(rows)):
                segments = list(map(int, row.segment_ids))
                expected = models.predictions(adapter, row.input_ids, segments)["probabilities"]
                self.assertAllClose(result["probabilities"], expected, atol=atol)

    def test_large_tasks_do_not_enlarge_small_ones_in_memory(self):
        one_layer = {"sites": "attention", "layers": (0,)}
        adapters = {
            "large": self.build(0, adapter=A(300, **one_layer)),
            "other_large": self.build(1, adapter=A(300, **one_layer)),
            "labels": self.build(2, labels=tuple(map(str, range(300)))),
            **{f"small{seed}": self.build(seed, adapter=A(2)) for seed in (3, 4)},
        }
        sizes = {name: num_bytes(adapter.tensors.values()) for name, adapter in adapters.items()}
        loader = engine.Engine(tiny.config(), os.path.join(self.bert, "bert_model.ckpt"), "float32")
        for name, adapter in adapters.items():
            self.assertLess(num_bytes(loader.load(adapter)), 1.5 * sizes[name] + 1000, name)
        bank, fed = self.bank(), []
        for name, adapter in adapters.items():
            bank.add(name, adapter)

        def feeds_and_record(*arguments, feeds=onnx_parameters.feeds):
            values = feeds(*arguments)
            fed.append(num_bytes(values.values()))
            return values

        rows = self.rows([*adapters, *["large"] * 14, *["other_large"] * 13])
        with mock.patch.object(onnx_parameters, "feeds", feeds_and_record):
            results = bank.predict(rows)
        with mock.patch.dict(self.adapters, adapters):
            self.assert_own(rows, results)
        self.assertLess(max(fed), 2 * max(sizes.values()))
        for adapter, shares_passes in (
            (A(128), True),
            (A(128, normalization="batch"), True),
            (A(129), False),
            (A(40, depth=2), False),
        ):
            bank.add("deep", self.build(0, adapter=adapter), replace=True)
            self.assertEqual(bank._entries["deep"].shares_passes, shares_passes, adapter)

    def test_int8_changes_results_only_slightly(self):
        names = ["plain", "large", "number", "sets", "parallel", "deep"]
        rows = self.rows(names * 3)
        exact, rounded = (
            self.bank(names, precision=precision).predict(rows) for precision in ("float32", "int8")
        )
        differences = [
            np.abs(one[name] - other[name]).max()
            for one, other in zip(exact, rounded)
            for name in one
        ]
        self.assertLess(np.median(differences), 0.05)
        self.assertGreater(min(differences), 0)

    def test_int8_is_close_to_float32_beside_outliers(self):
        """As in pretrained BERTs: some channels are a hundred times as large as the others."""
        config = tiny.config()
        prefix = os.path.join(self.bert, "bert_model.ckpt")
        tensors = checkpoints.read_encoder(prefix, config)
        for layer in range(config.num_hidden_layers):
            scope = f"bert/encoder/layer_{layer}"
            # A unit's output is 100; and channel 3 of attention's and the first layer's input is.
            tensors[f"{scope}/intermediate/dense/bias"][5] = 100
            tensors[f"{scope}/output/dense/kernel"][5] /= 100
        tensors["bert/embeddings/LayerNorm/beta"][3] = 100
        # All other channels may be 0.
        for name in ("gamma", "beta"):
            tensors[f"bert/encoder/layer_1/attention/output/LayerNorm/{name}"][:] = [100] + [0] * 7
        for name in ("query", "key", "value"):
            tensors[f"bert/encoder/layer_0/attention/self/{name}/kernel"][3] /= 100
        prefix = os.path.join(self.root, "outliers", "bert_model.ckpt")
        checkpoints.write(prefix, tensors)
        rows = [row._replace(task=None, features=Features()) for row in self.rows(["plain"] * 20)]
        exact, rounded = (
            [each["features"] for each in AdapterBank(config, prefix, precision=p).predict(rows)]
            for p in ("float32", "int8")
        )
        self.assertLess(np.abs(np.subtract(exact, rounded)).mean(), 0.01)

    def test_float16_needs_gpu_and_is_close_to_float32(self):
        """Runs the float16 graph on CPU, where ONNX Runtime computes it operator by operator."""
        with self.assertRaisesRegex(UserError, "precision=float16 needs a GPU"):
            self.bank(precision="float16")
        listed = mock.patch.object(
            onnx_runtime.onnxruntime,
            "get_available_providers",
            return_value=[onnx_runtime.GPU, onnx_runtime.CPU],
        )
        refused = self.assertRaisesRegex(UserError, "float16: ONNX Runtime cannot use the GPU")
        with warnings.catch_warnings(), listed, refused:
            warnings.simplefilter("ignore")  # ONNX Runtime's, about the missing provider.
            self.bank(["plain"], precision="float16").predict(self.rows(["plain"]))
        names = ["plain", "large", "own_norms", "multiply", "normalized", "deep"]
        rows = self.rows(names * 2)
        with mock.patch.object(onnx_runtime, "GPU", "CPUExecutionProvider"):
            results = self.bank(names, precision="float16").predict(rows)
        self.assert_own(rows, results, atol=0.02)

    def test_unknown_precision_is_refused(self):
        with self.assertRaisesRegex(UserError, "precision=bfloat16: expected one of float32, int8"):
            self.bank(precision="bfloat16")

    def test_nan_results_fail_only_their_own_task(self):
        made = self.adapters["plain"]
        huge = {name: value * np.float32(1e37) for name, value in made.tensors.items()}
        bank = self.bank()
        bank.add("plain", made._replace(tensors=huge))
        with self.assertRaisesRegex(UserError, "Task 'plain': its adapter gives NaN or Inf"):
            bank.predict(self.rows(["plain"]))
        bank.add("sound", made)
        rows = self.rows(["sound", "plain"])
        sound, error = bank.predict(rows, return_errors=True)
        self.assertAllClose(sound["probabilities"], bank.predict(rows[:1])[0]["probabilities"])
        self.assertRegex(str(error), "Task 'plain': its adapter gives NaN or Inf")

    def test_invalid_rows_are_refused(self):
        bank = self.bank(["plain"])
        self.assertEqual(bank.predict([]), [])
        for ids, segments, part in (
            ([], [], "has 0 input_ids and 0 segment_ids"),
            ([2, 3], [0], "has 2 input_ids and 1 segment_ids"),
            ([2] * 41, [0] * 41, "expected equal numbers, 1 to 40"),
            ([2, len(tiny.VOCABULARY)], [0, 0], f"input_ids from 2 to {len(tiny.VOCABULARY)}"),
            ([2, -1], [0, 0], "input_ids from -1 to 2"),
            ([2, 3], [0, 2], "segment_ids from 0 to 2; expected whole numbers from 0 to 1"),
            ([2, 3.5], [0, 0], "input_ids from 2 to 3.5; expected whole numbers"),
            (["2", "3"], [0, 0], "input_ids from 2 to 3; expected whole numbers"),
            ([2, 3], np.array([0, 0.5]), "segment_ids from 0.0 to 0.5; expected whole"),
        ):
            with self.assertRaisesRegex(UserError, f"^A row of task 'plain' .*{part}"):
                bank.predict([Row("plain", ids, segments)])
        with self.assertRaisesRegex(UnknownTask, "There is no task 'cola' in the bank"):
            bank.predict(self.rows(["plain", "cola"]))


class TasksTest(BankTestCase):
    def test_tasks_can_be_added_replaced_and_removed(self):
        bank, rows = self.bank(["plain", "large"]), self.rows(["plain", "large"])
        before = bank.predict(rows)
        self.assertEqual(bank.describe("large"), self.adapters["large"].description)
        bank.add("span", self.saved("span"))
        self.assertEqual(bank.names(), ["large", "plain", "span"])
        self.assertAllEqual(bank.predict(rows)[0]["probabilities"], before[0]["probabilities"])
        with self.assertRaisesRegex(UserError, "The bank has a task 'plain' already"):
            bank.add("plain", self.adapters["head"])
        bank.add("plain", self.adapters["head"], replace=True)
        found = bank.predict(rows)
        self.assertAllClose(found[0], self.own(rows[0], self.adapters["head"]), atol=1e-5)
        self.assertAllClose(found[1], before[1], atol=1e-6)
        bank.remove("plain")
        for use in (bank.remove, bank.describe):
            with self.assertRaisesRegex(UnknownTask, "There is no task 'plain'"):
                use("plain")
        self.assertEqual(bank.names_in_memory(), ["large"])

    def test_least_recently_used_tasks_leave_memory(self):
        names = ["plain", "small", "large", "number"]
        bank = self.bank(max_in_memory=2)
        for name in names:
            bank.add(name, self.saved(name))
        self.assertEqual(bank.names_in_memory(), [])
        rows = dict(zip(names, self.rows(names)))
        for asked, held in (
            (["plain"], ["plain"]),
            (["small"], ["plain", "small"]),
            (["plain"], ["small", "plain"]),
            (["large"], ["plain", "large"]),
            (names[:3], names[:3]),  # A batch may exceed the limit.
            (["large"], names[:3]),
            (["number"], ["large", "number"]),
        ):
            some = [rows[name] for name in asked]
            self.assert_own(some, bank.predict(some))
            self.assertEqual(set(bank.names_in_memory()), set(held))

    def test_each_architecture_has_one_session_in_memory(self):
        build, sessions = engine.Engine._build, []

        def build_and_record(*arguments):
            session = build(*arguments)
            sessions.append(weakref.ref(session.session))
            return session

        def num_alive():
            gc.collect()
            return sum(session() is not None for session in sessions)

        bank = self.bank()
        with mock.patch.object(engine.Engine, "_build", build_and_record):
            for name in ("plain", "small", "relu", "parallel"):
                bank.add(name, self.saved(name))
                bank.load(name)
        self.assertLen(sessions, 3)
        self.assertEqual(num_alive(), 3)
        bank.remove("relu")
        self.assertEqual(num_alive(), 2)
        bank.add("parallel", self.adapters["plain"], replace=True)
        self.assertEqual(num_alive(), 1)
        for name in ("plain", "small", "parallel"):
            bank.remove(name)
        self.assertEqual(num_alive(), 1)  # Kept for the next task.

    def test_tasks_without_adapters_share_any_session(self):
        for other in ("relu", "sigmoid", "parallel", "multiply"):
            bank, rows = self.bank(["head"]), self.rows(["head", other, "layer_norm"])
            bank.load("head")
            with mock.patch.object(bank, "_engine", wraps=bank._engine) as used:
                for name in (other, "layer_norm"):
                    bank.add(name, self.adapters[name])
                self.assert_own(rows, bank.predict(rows))
                used.run.assert_called_once()
            bank.load("head")
            self.assertLen(bank._engine._sessions, 1)

    def test_too_little_memory_for_a_variant_fails_only_its_tasks(self):
        bank, rows = self.bank(["relu", "plain", "head"]), self.rows(["relu", "plain", "head"])
        with mock.patch.object(memory, "free", return_value=(1, "ulimit -v")):
            self.assert_own(rows[1:2], bank.predict(rows[1:2]))  # The server checked for the first.
            message = "variant of the adapters needs about .* memory; 0 MB are free .ulimit -v."
            with self.assertRaisesRegex(UserError, message):
                bank.predict(rows)
            self.assert_own(rows[1:], bank.predict(rows[1:]))
            self.assert_own(rows[2:], bank.predict(rows[2:]))
        self.assert_own(rows, bank.predict(rows))

    def test_removing_the_last_adapter_keeps_the_session_in_use(self):
        bank, rows = self.bank(["relu", "head"]), self.rows(["relu", "head"])
        bank.predict(rows)
        bank.remove("relu")
        built = mock.patch.object(onnx_runtime, "make_session", side_effect=AssertionError)
        with built:
            self.assert_own(rows[1:], bank.predict(rows[1:]))

    def test_adapter_changed_on_disk_is_refused(self):
        bank = self.bank(max_in_memory=1)
        folder = self.saved("plain")
        bank.add("plain", folder)
        bank.add("small", self.saved("small"))
        self.saved("plain", self.adapters["one_label"])
        is_slow = mock.patch.object(task_adapter, "load", side_effect=AssertionError)
        with is_slow, self.assertRaisesRegex(UserError, "holds another adapter than the one added"):
            bank.predict(self.rows(["plain"]))
        bank.add("plain", folder, replace=True)
        shutil.rmtree(folder)
        with self.assertRaisesRegex(UserError, "is not a task adapter"):
            bank.predict(self.rows(["plain", "small"]))
        rows = self.rows(["small"])
        self.assert_own(rows, bank.predict(rows))

    def test_adapter_changed_during_add_is_refused(self):
        bank, folder, load = self.bank(), self.saved("plain"), task_adapter.load

        def load_and_replace(path, flag):
            made = load(path, flag)
            self.saved("plain", self.adapters["other_plain"])
            return made

        with mock.patch.object(task_adapter, "load", load_and_replace):
            bank.add("plain", folder)
        with self.assertRaisesRegex(UserError, "holds another adapter than the one added"):
            bank.predict(self.rows(["plain"]))

    def test_reading_an_adapter_does_not_block_other_tasks(self):
        bank, names = self.bank(max_in_memory=2), ["plain", "small", "large"]
        for name in names:
            bank.add(name, self.saved(name))
        hits, miss = self.rows(names[:2]), self.rows(names[2:])
        bank.predict(hits)
        results = []
        with self.paused(task_adapter, "load") as (is_reading, may_go_on):
            reader = threading.Thread(target=lambda: results.extend(bank.predict(miss)))
            reader.start()
            self.assertTrue(is_reading.wait(30))
            self.assert_own(hits, bank.predict(hits))
            bank.add("number", self.adapters["number"])
            self.assertEqual(set(bank.names_in_memory()), set(names[:2]))
            may_go_on.set()
            reader.join()
        self.assert_own(miss, results)
        self.assertEqual(bank.names_in_memory()[1:], ["large"])

    def test_building_a_session_does_not_block_other_tasks(self):
        bank, rows = self.bank(["plain", "relu"]), self.rows(["plain"])
        bank.load("plain")
        with self.paused(engine.Engine, "_build") as (is_building, may_go_on):
            builder = threading.Thread(target=bank.load, args=("relu",))
            builder.start()
            self.assertTrue(is_building.wait(30))
            is_in_memory = bank.is_in_memory("relu")
            others = threading.Thread(target=lambda: self.assert_own(rows, bank.predict(rows)))
            others.start()
            others.join(20)
            was_stopped = others.is_alive()
            may_go_on.set()
            builder.join()
            others.join()
        self.assertFalse(was_stopped)
        self.assertFalse(is_in_memory)  # Else the server would add it to a batch, which would wait.

    def test_bert_changed_on_disk_is_refused(self):
        folder = os.path.join(self.root, "bert")
        shutil.copytree(self.bert, folder)
        bank = AdapterBank(tiny.config(), os.path.join(folder, "bert_model.ckpt"))
        self.addCleanup(bank.close)
        for name in ("plain", "relu"):
            bank.add(name, self.adapters[name])
        bank.load("plain")
        shutil.rmtree(folder)
        tiny.write_bert(folder, initializer_range=0.1)
        load = engine.Engine._load_backbone
        with mock.patch.object(engine.Engine, "_load_backbone", autospec=True) as loads:
            loads.side_effect = load
            for _ in range(2):
                with self.assertRaisesRegex(UserError, "ckpt has changed since it was loaded"):
                    bank.predict(self.rows(["relu"]))
        loads.assert_called_once()  # Reading a BERT is slow.
        self.assert_own(self.rows(["plain"]), bank.predict(self.rows(["plain"])))

    def test_adapter_replaced_during_read_answers_its_batch(self):
        """The batch uses only the old adapter; later batches use the new one."""
        bank, rows, load = self.bank(), self.rows(["plain"]), task_adapter.load
        bank.add("plain", self.saved("plain"))

        def load_and_replace(*arguments):
            adapter = load(*arguments)
            bank.add("plain", self.adapters["other_plain"], replace=True)
            return adapter

        with mock.patch.object(task_adapter, "load", load_and_replace):
            self.assert_own(rows, bank.predict(rows))
        expected = self.own(rows[0], self.adapters["other_plain"])
        self.assertAllClose(bank.predict(rows)[0], expected, atol=1e-5)

    def test_load_reads_adapter_before_first_batch(self):
        bank = self.bank(max_in_memory=1)
        for name in ("plain", "small"):
            bank.add(name, self.saved(name))
            bank.load(name)
            self.assertEqual(bank.names_in_memory(), [name])
        with mock.patch.object(task_adapter, "load", side_effect=AssertionError):
            rows = self.rows(["small"])
            self.assert_own(rows, bank.predict(rows))
        with self.assertRaisesRegex(UnknownTask, "There is no task 'cola'"):
            bank.load("cola")

    def test_adapters_with_nan_or_inf_are_refused(self):
        bank, made = self.bank(), self.adapters["plain"]
        for value in (np.nan, np.inf):
            tensors = {**made.tensors, "output_bias": np.float32([0, value])}
            for adapter in (
                made._replace(tensors=tensors),
                self.saved("plain", made._replace(tensors=tensors)),
            ):
                with self.assertRaisesRegex(UserError, "its output_bias holds NaN or Inf"):
                    bank.add("plain", adapter)
        self.assertEqual(bank.names(), [])
        bank.add("plain", adapter, lazy=True)
        with self.assertRaisesRegex(UserError, "its output_bias holds NaN or Inf"):
            bank.predict(self.rows(["plain"]))

    def test_lazy_adapter_is_read_at_first_batch(self):
        bank, rows = self.bank(["small"]), self.rows(["plain", "small"])
        folder = self.saved("plain")
        self.assertEqual(bank.add("plain", folder, lazy=True), self.adapters["plain"].description)
        self.assert_own(rows, bank.predict(rows))
        with open(os.path.join(folder, "adapter.safetensors"), "r+b") as writer:
            writer.seek(-1, os.SEEK_END)
            writer.write(b"?")
        with self.assertRaisesRegex(UserError, "is damaged"):
            bank.add("plain", folder, replace=True)
        self.assert_own(rows, bank.predict(rows))
        bank.add("plain", folder, replace=True, lazy=True)
        with self.assertRaisesRegex(UserError, "is damaged"):
            bank.predict(rows)
        self.assert_own(rows[1:], bank.predict(rows[1:]))

    def test_incompatible_adapters_are_refused(self):
        """compatibility_test has all reasons."""
        bank, other = self.bank(["plain"]), own_models.build_task_adapter(self.bert)
        backbone = dataclasses.replace(other.description.backbone, fingerprint="0" * 64)
        description = dataclasses.replace(other.description, backbone=backbone)
        strange = other._replace(description=description)
        folder = self.saved("strange", strange)
        for source, where in ((strange, "The adapter of 'other'"), (folder, f"Folder {folder}")):
            with self.assertRaisesRegex(UserError, f"^{where} was trained on another BERT"):
                bank.add("other", source)
        description = dataclasses.replace(other.description, tuning=tuning.Tuning("full"))
        folder = self.saved("other", other._replace(description=description))
        for lazy in (False, True):
            with self.assertRaisesRegex(UserError, f"^Folder {folder}: --tuning=full contradicts"):
                bank.add("other", folder, lazy=lazy)
        with self.assertRaisesRegex(UserError, "^Folder missing is not a task adapter"):
            bank.add("other", "missing")
        with self.assertRaisesRegex(UserError, "^--tasks missing is not a task adapter"):
            bank.add("other", "missing", label="--tasks")
        with self.assertRaisesRegex(UserError, "max_in_memory must be at least 1"):
            self.bank(max_in_memory=0)
        self.assertEqual(bank.names(), ["plain"])

    def test_adapters_that_onnx_cannot_compute_are_refused(self):
        feedforward, gate = configs.FEEDFORWARD_ADAPTER, configs.AdapterVariable(("D",))
        table = configs.FUNCTIONS[feedforward]
        functions = {"mine": table, feedforward: lambda config: {**table(config), "gate": gate}}
        for changes, variants, expected in (
            ({"fn": "Mine"}, {}, "--adapter_fn=mine cannot be computed by ONNX Runtime yet"),
            ({}, {}, "An adapter's gate cannot be computed"),
            # A field without variables, which ONNX's arithmetic does not know.
            ({"scaling": 2.0}, {"placement"}, "--adapter_scaling cannot be computed"),
        ):
            known = mock.patch.object(onnx_encoder, "_VARIANTS", variants)
            with mock.patch.dict(configs.FUNCTIONS, functions), known:
                bank = self.bank()
                bank.add("other", self.build(0, adapter=A(4, **changes)))
                with self.assertRaisesRegex(UserError, expected):
                    bank.predict(self.rows(["other"]))

    def test_replacing_during_predict_never_mixes_adapters(self):
        """Each answer is from one of the two adapters; the other task's answer never changes."""
        bank, rows = self.bank(["plain", "large"]), self.rows(["plain", "large"])
        wanted = [self.own(rows[0], self.adapters[name]) for name in ("plain", "other_plain")]
        large, answers, wrong, done = self.own(rows[1]), [], [], threading.Event()

        def same(found, expected):
            return np.allclose(found["probabilities"], expected["probabilities"], atol=1e-5)

        def ask():
            while not done.is_set():
                first, second = bank.predict(rows)
                answers.append(first)
                if not any(same(first, some) for some in wanted) or not same(second, large):
                    wrong.append((first, second))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(30):
            name = ("other_plain", "plain")[turn % 2]
            bank.add("plain", self.adapters[name], replace=True)
        while len(answers) < 10 and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        done.set()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreaterEqual(len(answers), 10)
