"""Tests the files in deploy/: runs two servers behind nginx; programs check the other files."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("uvicorn", reason="requirements-serving.txt is not installed")
pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")
pytest.importorskip("yaml", reason="requirements-dev.txt is not installed")

# isort: split
import yaml
from starlette import testclient

import serve
from adapter_bert.files import paths
from adapter_bert.formats import onnx_backbone
from adapter_bert.serving.http import http_server
from adapter_tests.support import command_lines, served, tiny

DEPLOY = os.path.join(paths.PROJECT, "deploy")
UNIT = "adapter-bert@.service"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
MAIN = """
daemon off;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {root}/body;
    proxy_temp_path {root}/proxy;
    fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi;
    scgi_temp_path {root}/scgi;
    include {root}/conf.d/*.conf;
}}
"""


def read(name):
    with open(os.path.join(DEPLOY, name)) as reader:
        return reader.read()


def documents(name):
    """Returns the YAML documents of a file."""
    return list(yaml.safe_load_all(read(name)))


def free_port():
    with http_server.listen("127.0.0.1", 0) as listener:
        return listener.getsockname()[1]


@pytest.mark.skipif(NGINX is None, reason="there is no nginx")
class NginxTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())
        os.makedirs(os.path.join(self.root, "conf.d"))
        self.ports, self.port = [free_port(), free_port()], free_port()

    def configure(self, upstream, **changes):
        """Writes nginx's configuration, with other names and ports; returns the command."""
        for name in (upstream, "site.conf"):
            content = read(f"nginx/{name}")
            for old, new in changes.items():
                content = content.replace(old, new)
            content = content.replace("listen 80;", f"listen 127.0.0.1:{self.port};")
            for old, new in zip(("8501", "8502"), self.ports):
                content = content.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
            with open(os.path.join(self.root, "conf.d", name), "w") as writer:
                writer.write(content)
        main = os.path.join(self.root, "nginx.conf")
        with open(main, "w") as writer:
            writer.write(MAIN.format(root=self.root))
        return [NGINX, "-e", os.path.join(self.root, "error.log"), "-c", main]

    @contextlib.contextmanager
    def nginx(self):
        with subprocess.Popen(self.configure("upstream.conf")) as process:
            try:
                yield
            finally:
                process.terminate()

    def start(self, port):
        """Returns a server's process, once it is ready."""
        process = subprocess.Popen(
            [sys.executable, "serve.py", f"--port={port}", f"--adapter_dir={self.root}/adapters"],
            cwd=paths.PROJECT,
            env={**os.environ, "BERT_BASE_DIR": self.bert, serve.TOKEN_VARIABLE: "secret"},
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        for _ in range(600):
            with contextlib.suppress(OSError):
                if self.get(port, "readyz") == 200:
                    return process
            time.sleep(0.1)
        return self.fail("The server does not start.")

    def get(self, port, path, body=None):
        """Returns the status of a request."""
        headers = {"Authorization": "Bearer secret"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                response.read()
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    def test_restart_of_one_server_after_the_other_fails_no_request(self):
        self.bert, _ = served.prepare()
        onnx_backbone.load(os.path.join(self.bert, "bert_model.ckpt"), tiny.config())
        served.save_all(os.path.join(self.root, "adapters"), ["sms"])
        statuses, is_done = [], threading.Event()
        body = json.dumps({"instances": ["a dog"]}).encode()

        def ask():
            while not is_done.is_set():
                statuses.append(self.get(self.port, "v1/models/sms:predict", body))

        processes = [self.start(port) for port in self.ports]
        with self.nginx():
            while self.get_or_none("healthz") != 200:
                time.sleep(0.1)
            clients = [threading.Thread(target=ask) for _ in range(4)]
            for client in clients:
                client.start()
            for process, port in zip(processes, self.ports):
                process.send_signal(signal.SIGTERM)
                process.wait()
                self.start(port)
            is_done.set()
            for client in clients:
                client.join()
            self.assertEqual(self.get(self.port, "metrics"), 404)
        self.assertGreater(len(statuses), 20)
        self.assertEqual(set(statuses), {200})

    def get_or_none(self, path):
        with contextlib.suppress(OSError):
            return self.get(self.port, path)

    def test_upstream_of_compose_is_valid(self):
        names = {f"server-{number}": "127.0.0.1" for number in (1, 2)}
        command = self.configure("compose-upstream.conf", **names)
        subprocess.check_output([*command, "-t"], stderr=subprocess.STDOUT)


class AutoscalerTest(served.ServedTestCase):
    def test_its_metric_is_one_of_the_server(self):
        autoscaler, _ = documents("kubernetes/autoscaler.yaml")
        (metric,) = autoscaler["spec"]["metrics"]
        client = testclient.TestClient(self.api().application(), "http://127.0.0.1")
        found = client.get("/metrics").text
        self.assertIn(f"\n{metric['pods']['metric']['name']} 0.0\n", found)


class DeployTest(tf.test.TestCase):
    def test_manifests_conform_to_the_schemas_of_kubernetes(self):
        reason = "requirements-dev.txt is not installed"
        kubernetes = pytest.importorskip("kubernetes_validate", reason=reason)
        manifests = documents("kubernetes/server.yaml") + documents("kubernetes/autoscaler.yaml")
        # The Prometheus Operator defines the others.
        own = [each for each in manifests if "coreos" not in each["apiVersion"]]
        self.assertLen(own, 6)
        for manifest in own:
            for version in (kubernetes.latest_version(), "1.27"):
                with self.subTest(f"{manifest['kind']} {version}"):
                    kubernetes.validate(manifest, version, strict=True)

    def test_manifests_name_what_the_server_has(self):
        deployment, service, *_ = documents("kubernetes/server.yaml")
        autoscaler, monitor = documents("kubernetes/autoscaler.yaml")
        pod = deployment["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        for selector in (deployment, monitor):
            labels = selector["spec"]["selector"]["matchLabels"]
            self.assertEqual(labels, pod["metadata"]["labels"])
        self.assertEqual(service["spec"]["selector"], pod["metadata"]["labels"])
        self.assertEqual(
            autoscaler["spec"]["scaleTargetRef"]["name"], deployment["metadata"]["name"]
        )
        dockerfile = os.path.join(paths.PROJECT, "Dockerfile")
        with open(dockerfile) as reader:
            content = reader.read()
        (port,) = container["ports"]
        self.assertIn(f"EXPOSE {port['containerPort']}\n", content)
        for mount in container["volumeMounts"][:2]:
            self.assertIn(mount["mountPath"], content)
        self.assertIn(f"USER {pod['spec']['securityContext']['runAsUser']}:", content)
        self.assertEqual(container["env"][0]["name"], serve.TOKEN_VARIABLE)

    def test_unit_is_valid_and_starts_the_server(self):
        unit = read(UNIT).replace("%i", "8501")
        (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
        program, subcommand, *flags = shlex.split(command)
        self.assertEqual((os.path.basename(program), subcommand), ("adapter-bert", "serve"))
        config = serve.ServerConfig.from_flags(command_lines.parsed(serve.define_flags, *flags))
        self.assertEqual(config.port, 8501)
        self.assertIn(f"127.0.0.1:{config.port} ", read("nginx/upstream.conf"))
        if shutil.which("systemd-analyze") is None:
            pytest.skip("there is no systemd-analyze")
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        path = os.path.join(folder, UNIT)
        with open(path, "w") as writer:
            writer.write(read(UNIT).replace(program, sys.executable))
        done = subprocess.run(
            ["systemd-analyze", "verify", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.assertEqual((done.returncode, done.stdout), (0, b""))

    def test_compose_file_names_files_that_exist(self):
        (compose,) = documents("docker-compose.yaml")
        proxy, server = compose["services"]["proxy"], compose["services"]["server-1"]
        for volume in proxy["volumes"]:
            self.assertTrue(os.path.isfile(os.path.join(DEPLOY, volume.split(":")[0])), volume)
        dockerfile = os.path.join(DEPLOY, server["build"], "Dockerfile")
        self.assertTrue(os.path.isfile(dockerfile))
        self.assertEqual(set(proxy["depends_on"]), set(compose["services"]) - {"proxy"})
        if shutil.which("docker-compose") is None:
            pytest.skip("there is no docker-compose")
        names = dict.fromkeys(("BERT_DIR", "ADAPTER_DIR", serve.TOKEN_VARIABLE), "/tmp")
        subprocess.check_call(
            ["docker-compose", "-f", os.path.join(DEPLOY, "docker-compose.yaml"), "config", "-q"],
            env={**os.environ, **names},
        )
