"""A stand-in for the Hugging Face Hub: the requests of its API that read and write models.

It keeps repositories in memory. The Hub itself may answer differently.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading


class HubServer:
    """A server on a port of this machine.

    Attributes:
      repositories: dict from owner/name to a list of commits, the oldest first. A commit is a dict
        from file names to bytes.
      requests: list of the requests' (method, path).
      is_private: dict from owner/name to bool.
      tokens: list of the requests' Authorization headers, None for a request without one.
    """

    def __init__(self):
        self.repositories, self.is_private = {}, {}
        self.requests, self.tokens = [], []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                hub.answer(self, "GET", None)

            def do_HEAD(self):
                hub.answer(self, "HEAD", None)

            def do_POST(self):
                hub.answer(self, "POST", self.rfile.read(int(self.headers["Content-Length"])))

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def serving(self):
        """Serves until the context ends."""
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def sha(self, repository, index=-1):
        """Returns the name of a commit: 40 hexadecimal digits."""
        number = range(len(self.repositories[repository]))[index]
        return hashlib.sha1(f"{repository} {number}".encode()).hexdigest()

    def _find(self, repository, revision):
        """Returns (name of the commit, its files) or None."""
        for index in range(len(self.repositories.get(repository, ()))):
            is_last = index == len(self.repositories[repository]) - 1
            if revision == self.sha(repository, index) or (is_last and revision in (None, "main")):
                return self.sha(repository, index), self.repositories[repository][index]
        return None

    def answer(self, request, method, body):
        """Answers a request."""
        path = request.path.split("?")[0]
        self.requests.append((method, path))
        self.tokens.append(request.headers.get("Authorization"))
        name = r"([\w.-]+/[\w.-]+)"
        for pattern, function in (
            (r"/api/repos/create", self._create),
            (rf"/api/models/{name}(?:/revision/([\w.-]+))?", self._info),
            (rf"/api/models/{name}/tree/([\w.-]+)", self._tree),
            (rf"/{name}/resolve/([\w.-]+)/(.+)", self._file),
            (rf"/api/models/{name}/preupload/([\w.-]+)", self._preupload),
            (rf"/api/models/{name}/commit/([\w.-]+)", self._commit),
            (r"/api/validate-yaml", lambda body: (200, {"errors": [], "warnings": []}, {})),
        ):
            match = re.fullmatch(pattern, path)
            if match:
                status, content, headers = function(body, *match.groups())
                break
        else:
            status, content, headers = 404, {"error": path}, {}
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers = {"Content-Type": "application/json", **headers}
        request.send_response(status)
        for header, value in {**headers, "Content-Length": len(content)}.items():
            request.send_header(header, str(value))
        request.end_headers()
        if method != "HEAD":
            request.wfile.write(content)

    def _missing(self, code):
        return 404, {"error": code}, {"X-Error-Code": code, "X-Error-Message": code}

    def _create(self, body):
        fields = json.loads(body)
        repository = f"{fields.get('organization') or 'me'}/{fields['name']}"
        if repository in self.repositories:
            return 409, {"url": f"{self.endpoint}/{repository}", "error": "exists"}, {}
        self.repositories[repository] = [{}]
        is_private = fields.get("private") or fields.get("visibility") == "private"
        self.is_private[repository] = bool(is_private)
        return 200, {"url": f"{self.endpoint}/{repository}", "id": repository}, {}

    def _info(self, body, repository, revision):
        if repository not in self.repositories:
            return self._missing("RepoNotFound")
        found = self._find(repository, revision)
        if not found:
            return self._missing("RevisionNotFound")
        siblings = [{"rfilename": name} for name in found[1]]
        return 200, {"id": repository, "sha": found[0], "siblings": siblings, "tags": []}, {}

    def _tree(self, body, repository, revision):
        _, contents = self._find(repository, revision)
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": self._etag(content)}
            for name, content in contents.items()
        ]
        return 200, entries, {}

    def _file(self, body, repository, revision, name):
        found = self._find(repository, revision)
        if not found or name not in found[1]:
            return self._missing("EntryNotFound")
        content = found[1][name]
        headers = {"ETag": f'"{self._etag(content)}"', "X-Repo-Commit": found[0]}
        return 200, content, {"Content-Type": "application/octet-stream", **headers}

    def _etag(self, content):
        return hashlib.sha1(content).hexdigest()

    def _preupload(self, body, repository, revision):
        names = [entry["path"] for entry in json.loads(body)["files"]]
        modes = [
            {"path": name, "uploadMode": "regular", "shouldIgnore": False, "oid": None}
            for name in names
        ]
        return 200, {"files": modes}, {}

    def _commit(self, body, repository, revision):
        contents = dict(self.repositories[repository][-1])
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                value = entry["value"]
                contents[value["path"]] = base64.b64decode(value["content"])
        self.repositories[repository].append(contents)
        sha = self.sha(repository)
        url = f"{self.endpoint}/{repository}/commit/{sha}"
        return 200, {"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""}, {}
