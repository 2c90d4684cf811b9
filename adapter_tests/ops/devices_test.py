"""Tests of devices.py on a machine without a TPU: a run falls back or fails at once."""

import ctypes
import functools
import itertools
import os
import resource
import socket
import time
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf
from absl.testing import parameterized
from tensorflow.python.compiler.xla import xla

from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_tests.support.refusals import RefusalTestCase

# TensorFlow looks up a TPU's name in Google Cloud, first at this host, where nothing answers.
NO_CLOUD = {"GCE_METADATA_IP": "127.0.0.1:1", "NO_GCE_CHECK": "True"}


CLOSED = "grpc://127.0.0.1:1"  # No server listens there.


class FindTpuTest(parameterized.TestCase, RefusalTestCase):
    def warnings(self, *args, **kwargs):
        """Returns (result of find_tpu, its warnings)."""
        with mock.patch.object(devices.logging, "warning") as warning:
            result = devices.find_tpu(*args, **kwargs)
        return result, [call[0][0] % call[0][1:] for call in warning.call_args_list]

    def assert_refused(self, parts, *args, **kwargs):
        with mock.patch.dict(os.environ, NO_CLOUD):
            super().assert_refused(parts, devices.find_tpu, True, *args, **kwargs)

    def test_no_tpu_is_used_without_use_tpu(self):
        self.assertEqual(self.warnings(False), ((False, None), []))

    def test_tpu_address_without_use_tpu_logs_a_warning(self):
        for flag in ("tpu_name", "tpu_zone", "gcp_project", "master"):
            result, warnings = self.warnings(False, **{flag: "grpc://127.0.0.1:1"})
            self.assertEqual(result, (False, None))
            self.assertEqual(
                warnings, [f"--{flag}=grpc://127.0.0.1:1 is ignored: --use_tpu is off."]
            )

    def test_missing_tpu_logs_one_warning_and_falls_back(self):
        result, warnings = self.warnings(True)
        self.assertEqual(result, (False, None))
        self.assertLen(warnings, 1)
        self.assertRegex(warnings[0], r"^=== --use_tpu=True, .*no TPU.* running on [CG]PU\. ===$")

    def test_address_that_times_out_is_refused(self):
        with mock.patch.object(devices, "_CONNECT_TIMEOUT_SECONDS", 0.1), mock.patch.object(
            socket, "create_connection", side_effect=socket.timeout("timed out")
        ) as connect:
            self.assert_refused(["timed out"], "grpc://10.0.0.1:8470")
        connect.assert_called_with(("10.0.0.1", 8470), timeout=0.1)

    @parameterized.parameters(
        (["--tpu_name=" + CLOSED, "refused", "grpc://host:port"], CLOSED),
        (["--master=" + CLOSED, "refused"], None, None, None, CLOSED),
        (["--tpu_name=my-tpu", "--master=grpc://h:1"], "my-tpu", None, None, "grpc://h:1"),
        (["--tpu_name=grpc://:", "cannot be reached"], "grpc://"),
        (["--tpu_name=grpc://127.0.0.1:port:", "reached"], "grpc://127.0.0.1:port"),
        (["--tpu_name=grpc://127.0.0.1:99999:", "reached"], "grpc://127.0.0.1:99999"),
        (["--tpu_name=my-tpu", "cannot be reached", "--tpu_zone"], "my-tpu"),
        (["--tpu_name=my-tpu"], "my-tpu", "us-central1-b", "my-project"),
        (["--tpu_name=local", "no TPU on this machine"], "local"),
    )
    def test_unusable_tpu_is_refused(self, parts, *arguments):
        self.assert_refused(parts, *arguments)

    def test_address_of_a_tensorflow_server_is_accepted(self):
        address = tf.train.Server.create_local_server().target
        use_tpu, cluster = devices.find_tpu(True, address)
        self.assertEqual((use_tpu, cluster.master()), (True, address))
        self.assertEqual(devices.find_tpu(True, master=address), (True, None))

    def test_address_of_a_silent_server_is_refused(self):
        with socket.socket() as server, mock.patch.object(devices, "_TIMEOUT_SECONDS", 0.5):
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            address = f"grpc://127.0.0.1:{server.getsockname()[1]}"
            self.assert_refused(["cannot be reached"], address)

    def test_tpu_in_this_machine_is_used(self):
        with mock.patch.object(devices, "_num_cores", return_value=4):
            for name, cores in itertools.product((None, "local"), (None, 4)):
                use_tpu, cluster = devices.find_tpu(True, name, num_tpu_cores=cores)
                self.assertTrue(use_tpu)
                self.assertIsInstance(cluster, tf.distribute.cluster_resolver.TPUClusterResolver)

    def test_tpu_of_several_hosts_is_refused(self):
        pod = mock.Mock(spec=tf.distribute.cluster_resolver.TPUClusterResolver)
        pod.cluster_spec.return_value = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
        with mock.patch.object(devices, "_resolver", return_value=pod):
            self.assert_refused(["--tpu_name=pod", "2 hosts"], "pod")

    def test_wrong_number_of_tpu_cores_is_refused(self):
        with mock.patch.object(devices, "_num_cores", return_value=4):
            for name in (None, "local"):
                self.assert_refused(["--num_tpu_cores=8", "the TPU has 4"], name, num_tpu_cores=8)
        address = tf.train.Server.create_local_server().target
        for where in ({"tpu_name": address}, {"master": address}):
            self.assert_refused(["--num_tpu_cores=8", "has 0"], num_tpu_cores=8, **where)


class ReplicaTest(tf.test.TestCase):
    def test_tpu_replica_index_combines_with_int32_in_xla(self):
        def mixed(x):
            return tf.bitwise.bitwise_xor(devices.tpu_replica(), x)

        if tf.__version__.startswith("1."):
            with tf.Graph().as_default(), self.session() as session:
                self.assertEqual(session.run(xla.compile(mixed, [tf.constant(5)])), [5])
        else:  # Running it on a CPU would crash the process, which has no replica index.
            function = tf.function(mixed, jit_compile=True, autograph=False)
            program = function.experimental_get_compiler_ir(tf.constant(5))(stage="hlo")
            self.assertRegex(program, r"u32\[\] replica-id\(\)[^$]* s32\[\] xor\(")


class SessionConfigTest(tf.test.TestCase):
    def choose(self, precision, native=True, use_tpu=False, seconds=None, recorded=None):
        """Returns the chosen precision if products take these seconds in (float32, bfloat16)."""
        measured = mock.Mock(side_effect=self.fail)
        if seconds:
            measured = mock.Mock(return_value=dict(zip(("float32", "bfloat16"), seconds)))
        with mock.patch.multiple(devices, has_bfloat16=lambda: native, product_seconds=measured):
            chosen = devices.choose_precision(precision, use_tpu, (384, 1536), recorded)
        if seconds:
            measured.assert_called_once_with(384, 1536)
        return chosen

    def test_precision_depends_on_flag_and_hardware(self):
        self.assertEqual(self.choose("auto", native=False), "float32")
        self.assertEqual(self.choose("auto", native=False, use_tpu=True), "bfloat16")
        self.assertEqual(self.choose("float32"), "float32")
        self.assertEqual(self.choose("bfloat16"), "bfloat16")
        with mock.patch.object(tf, "__version__", "2.15.1"):
            with self.assertLogs("absl", "WARNING") as logs:
                self.assertEqual(self.choose("bfloat16", native=False), "bfloat16")
            self.assertRegex(logs.output[0], "--precision=bfloat16: .* may be slow")
            gpu = mock.patch.object(devices, "has_gpu", return_value=True)
            with gpu, self.assertLogs("absl") as logs:
                self.assertEqual(self.choose("bfloat16", native=False), "bfloat16")
            self.assertLen(logs.output, 1)
        with mock.patch.object(tf, "__version__", "1.15.5"):
            self.assertEqual(self.choose("bfloat16", native=False, use_tpu=True), "bfloat16")
            with self.assertRaisesRegex(UserError, "--precision=bfloat16"):
                self.choose("bfloat16", native=False)

    def test_auto_precision_is_bfloat16_if_clearly_faster(self):
        self.assertEqual(self.choose("auto", seconds=(0.0115, 0.01)), "bfloat16")
        self.assertEqual(self.choose("auto", seconds=(0.0114, 0.01)), "float32")
        with self.assertLogs("absl", "INFO") as logs:
            self.assertEqual(self.choose("auto", seconds=(0.39, 0.67)), "float32")
        self.assertRegex(logs.output[0], "float32 .*390.00 ms in float32, 670.00 ms in bfloat16")

    def test_auto_precision_keeps_the_recorded_precision(self):
        for recorded in ("float32", "bfloat16"):
            with mock.patch.object(tf, "__version__", "2.15.1"):
                self.assertEqual(self.choose("auto", False, recorded=recorded), recorded)
            self.assertEqual(self.choose("float32", recorded=recorded), "float32")
        with mock.patch.object(tf, "__version__", "1.15.5"):  # It has no bfloat16 kernels.
            self.assertEqual(self.choose("auto", False, recorded="bfloat16"), "float32")
        for unknown in ("float8", ["float32"], 16):
            chosen = self.choose("auto", seconds=(2.0, 1.0), recorded=unknown)
            self.assertEqual(chosen, "bfloat16")

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 has no bfloat16 on CPU")
    def test_product_seconds_measures_both_precisions(self):
        seconds = devices.product_seconds(64, 256)
        self.assertEqual(set(seconds), {"float32", "bfloat16"})
        self.assertGreater(min(seconds.values()), 0)
        self.assertLess(max(seconds.values()), 10)

    def test_fastest_returns_the_minimum_time_per_call(self):
        clock, runs = [0.0], {"float32": iter((9, 3, 5, 4)), "bfloat16": iter((1, 8, 2, 7))}

        def call(name):
            clock[0] += next(runs[name])

        calls = {name: functools.partial(call, name) for name in runs}
        with mock.patch("time.perf_counter", lambda: clock[0]):
            self.assertEqual(devices._fastest(calls), {"float32": 3, "bfloat16": 2})

    def test_native_bfloat16_is_read_from_cpuinfo(self):
        path = os.path.join(self.get_temp_dir(), "cpuinfo")
        for flags, native in (
            ("flags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
            ("flags\t\t: fpu avx512f avx512_bf160\n", False),
            ("Features\t: fp asimd bf16\n", True),
        ):
            with open(path, "w") as writer:
                writer.write("processor\t: 0\n" + flags)
            for version, computes_in_it in (("2.15.1", native), ("1.15.5", False)):
                with mock.patch.object(tf, "__version__", version):
                    self.assertEqual(devices.has_bfloat16(path), computes_in_it)
        self.assertFalse(devices.has_bfloat16(path + ".none"))

    def test_one_inter_op_thread_is_used_on_cpu_only(self):
        for gpu, threads in ((False, 1), (True, 0)):
            with mock.patch.object(devices, "has_gpu", return_value=gpu):
                config = devices.session_config()
            self.assertEqual(config.inter_op_parallelism_threads, threads)
            self.assertEqual(config.use_per_session_threads, threads == 1)
            self.assertEqual(config.intra_op_parallelism_threads, 0)
            self.assertTrue(config.allow_soft_placement)

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 has no TF32")
    def test_tf32_is_disabled_on_a_gpu(self):
        enable = tf.config.experimental.enable_tensor_float_32_execution
        enable(True)
        self.addCleanup(enable, True)
        with mock.patch.object(devices, "has_gpu", return_value=True):
            devices.session_config()
        self.assertFalse(tf.config.experimental.tensor_float_32_execution_enabled())

    @unittest.skipUnless(hasattr(ctypes.CDLL(None), "mallopt"), "this C library is not glibc")
    def test_freed_memory_is_reused_after_a_dataset_from_a_generator(self):
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p

        def new_pages():
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            block = ctypes.c_void_p(libc.malloc(16 << 20))
            ctypes.memset(block, 1, 16 << 20)
            libc.free(block)
            return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

        with tf.Graph().as_default():
            dataset = tf.data.Dataset.from_generator(lambda: iter([1]), tf.int32)
            element = tf.data.make_one_shot_iterator(dataset).get_next()
            with tf.Session(config=devices.session_config()) as session:
                self.assertEqual(session.run(element), 1)
        new_pages()
        self.assertLess(new_pages(), 100)

    def test_operations_do_not_overlap_after_an_earlier_session(self):
        """A process's first session decides the number of threads of all later ones."""
        running, together = [], []

        def operation(x):
            running.append(None)
            time.sleep(0.05)
            together.append(len(running))
            running.pop()
            return x

        with tf.Graph().as_default():
            tf.Session().run(tf.constant(0))
            outputs = [tf.py_func(operation, [float(i)], tf.float32) for i in range(4)]
            with tf.Session(config=devices.session_config()) as session:
                session.run(outputs)
        self.assertEqual(together, [1] * 4)
