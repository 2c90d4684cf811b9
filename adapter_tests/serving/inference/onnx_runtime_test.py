"""Tests of onnx_runtime.py: networks, forked processes and numbers of threads."""

import os
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
from adapter_bert.files import paths
from adapter_bert.serving.inference import onnx_runtime
from adapter_bert.shell import control_groups
from adapter_tests.support import served

# Writes what a process asks the network for, into the file $ASKED.
_PRELOADED = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note(const char *what) {
  FILE *file = fopen(getenv("ASKED"), "a");
  fprintf(file, "%s\n", what);
  fclose(file);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **result) {
  int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
      dlsym(RTLD_NEXT, "getaddrinfo");
  note(name ? name : "");
  return next(name, service, hints, result);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
  int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
  char name[INET6_ADDRSTRLEN] = "127.";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &((struct sockaddr_in *)address)->sin_addr, name, sizeof name);
  if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &((struct sockaddr_in6 *)address)->sin6_addr, name, sizeof name);
  if (strncmp(name, "127.", 4) && strcmp(name, "::1")) note(name);
  return next(socket, address, length);
}
"""
_PREDICTS = """
import sys
from adapter_bert import Predictor
print(Predictor(sys.argv[1], sys.argv[2])("a dog")["label"])
"""
_ASKS = """
import socket
for ask in (lambda: socket.getaddrinfo("example.invalid", 80),
            lambda: socket.create_connection(("127.0.0.1", 9)),
            lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))):
    try:
        ask()
    except OSError:
        pass
"""
# Forks while threads predict, so that their locks and ONNX Runtime's are held at times.
_FORKS = """
import os, sys, threading
from adapter_bert import Predictor

predict = Predictor(sys.argv[1], sys.argv[2], num_threads=4)
texts = ["a dog sees the cat"] * 32
label, is_over = predict(texts)[0]["label"], threading.Event()

def work():
    while not is_over.is_set():
        predict(texts)

threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
for index in range(8):
    process = os.fork()
    if not process:
        sys.exit(3 * any(answer["label"] != label for answer in predict(texts[:index])))
    print(os.waitpid(process, 0)[1])
is_over.set()
[thread.join() for thread in threads]
"""


class ProcessesTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert, _ = served.prepare()
        served.save_all(cls.root, ["sms"])
        served.make_bank()  # Converts the BERT.

    def run_python(self, code, **environment):
        """Returns what a Python program prints, whose user has set nothing about telemetry."""
        inherited = {**os.environ, "HOME": self.root}
        inherited.pop("ORT_DISABLE_TELEMETRY", None)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, f"{self.root}/sms/adapter", self.bert],
            capture_output=True,
            text=True,
            cwd=paths.PROJECT,
            env={**inherited, **environment},
            timeout=120,  # Telemetry held up each forked process for 30 s and more.
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()

    def test_predictor_asks_no_network(self):
        compiler = shutil.which("cc")
        if not compiler or sys.platform != "linux":
            self.skipTest("needs a C compiler and Linux, to see what a process asks for")
        library, source, asked = (f"{self.root}/{name}" for name in ("asks.so", "asks.c", "asked"))
        with open(source, "w") as writer:
            writer.write(_PRELOADED)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.run_python(_ASKS, LD_PRELOAD=library, ASKED=asked)
        with open(asked) as reader:
            self.assertEqual(reader.read().split(), ["example.invalid", "127.0.0.1", "192.0.2.1"])
        os.remove(asked)
        self.assertLen(self.run_python(_PREDICTS, LD_PRELOAD=library, ASKED=asked), 1)
        self.assertFalse(os.path.exists(asked))

    def test_predictor_leaves_nothing_in_the_home_folder(self):
        self.run_python(_PREDICTS, XDG_CACHE_HOME=f"{self.root}/.cache")
        self.assertFalse(os.path.exists(f"{self.root}/.cache/Microsoft"))

    def test_a_users_choice_stays(self):
        code = "import os, adapter_bert.serving.inference.onnx_runtime; print(os.environ['{}'])"
        name = "ORT_DISABLE_TELEMETRY"
        for given, expected in (({}, "1"), ({name: "0"}, "0")):
            self.assertEqual(self.run_python(code.format(name), **given), [expected])

    def test_forked_processes_predict_and_exit(self):
        self.assertEqual(self.run_python(_FORKS), ["0"] * 8)


class SessionTest(tf.test.TestCase):
    def test_sessions_have_these_threads(self):
        for given, limit, expected in ((3, 1, 3), (None, 1, 1), (None, 4, 0)):
            options = mock.patch.object(
                onnx_runtime.onnxruntime,
                "InferenceSession",
                side_effect=lambda model, options, providers: options.intra_op_num_threads,
            )
            processors = mock.patch.object(control_groups, "num_processors", return_value=limit)
            with options, processors, mock.patch.object(os, "cpu_count", return_value=4):
                self.assertEqual(onnx_runtime.make_session(mock.Mock(), {}, given), expected)
