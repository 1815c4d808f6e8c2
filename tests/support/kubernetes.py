"""A stand-in for the API server of Kubernetes: it stores pods and config maps, and runs each pod as a process.

It answers the requests that Spark's driver sends. A pod runs the command of its only container on this machine, with
the container's environment; its limits, volumes and security context are ignored.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from tests.support.patience import LIMIT

Manifest = dict[str, Any]


class ApiServer:
    """Listens on a free port of the loopback interface. `directory` contains the logs of the pods."""

    def __init__(self, namespace: str, directory: Path, *pods: str) -> None:
        self._directory = directory
        self._namespace = namespace
        self._guard = threading.Lock()
        self._objects: dict[str, Manifest] = {f"pods/{name}": self._new("Pod", {"name": name}) for name in pods}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: list[queue.Queue[Manifest | None]] = []
        self._version = 0
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="api-server")
        self._thread.start()

    @property
    def url(self) -> str:
        """The address, as in `spark.master` after `k8s://`."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def executors(self) -> list[subprocess.Popen[bytes]]:
        """The processes of all pods that were created."""
        return list(self._processes.values())

    def close(self) -> None:
        """Kill the processes of the pods and stop the server."""
        for process in self._processes.values():
            process.kill()
            process.wait(LIMIT)
        for watcher in self._watchers:
            watcher.put(None)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _new(self, kind: str, metadata: Manifest) -> Manifest:
        own = {"namespace": self._namespace, "uid": metadata["name"], "resourceVersion": "1"}
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata | own}

    def read(self, name: str) -> Manifest | None:
        """Return the object `pods/NAME` or `configmaps/NAME`, or all objects of a kind that have labels."""
        with self._guard:
            if "/" in name:
                return self._objects.get(name)
            items = [
                value
                for key, value in self._objects.items()
                if key.startswith(f"{name}/") and "labels" in value["metadata"]
            ]
        return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}

    def create(self, kind: str, given: Manifest) -> Manifest:
        """Store an object, and start the process of a pod."""
        made = given | self._new(given["kind"], given["metadata"])
        if kind == "pods":
            self._start(made)
            made["status"] = {"phase": "Running", "podIP": "127.0.0.1", "startTime": "2026-01-01T00:00:00Z"}
        with self._guard:
            self._objects[f"{kind}/{made['metadata']['name']}"] = made
        if kind == "pods":
            self._publish("ADDED", made)
        return made

    def delete(self, name: str) -> Manifest:
        """Remove one object, or all of a kind, and kill the processes of the pods."""
        with self._guard:
            chosen = [key for key in self._objects if key == name or key.startswith(f"{name}/")]
            removed = {key: self._objects.pop(key) for key in chosen}
        for key, value in removed.items():
            if key in self._processes:
                self._processes[key].kill()
            self._publish("DELETED", value)
        return {"apiVersion": "v1", "kind": "Status", "status": "Success"}

    def watch(self) -> queue.Queue[Manifest | None]:
        """Return a queue of the changes of pods, which ends with None."""
        watcher: queue.Queue[Manifest | None] = queue.Queue()
        self._watchers.append(watcher)
        return watcher

    def _publish(self, kind: str, value: Manifest) -> None:
        for watcher in self._watchers:
            watcher.put({"type": kind, "object": value})

    def _start(self, pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        [container] = pod["spec"]["containers"]
        environment = {"PATH": f"{self._directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for variable in container["env"]:
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = {"status.podIP": "127.0.0.1", "metadata.name": name}.get(field, variable.get("value", ""))
            environment[variable["name"]] = value
        with (self._directory / f"{name}.log").open("wb") as sink:
            self._processes[f"pods/{name}"] = subprocess.Popen(
                [*container["command"], *container["args"]],
                env=environment,
                stdout=sink,
                stderr=sink,
                cwd=self._directory,
            )


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name, query = self._target()
        if self.headers.get("Upgrade"):  # the client first tries a web socket, and with this answer a plain stream
            self._answer(200, {})
        elif "watch" in query:
            self._stream()
        else:
            self._find(name)

    def do_POST(self) -> None:
        self._answer(201, self.api.create(self._target()[0], self._body()))

    def do_PATCH(self) -> None:
        self._body()
        self._find(self._target()[0])

    def do_DELETE(self) -> None:
        self._body()
        self._answer(200, self.api.delete(self._target()[0]))

    def _find(self, name: str) -> None:
        found = self.api.read(name)
        self._answer(404 if found is None else 200, found or {"kind": "Status", "apiVersion": "v1", "code": 404})

    def _target(self) -> tuple[str, dict[str, list[str]]]:
        """Return `pods` or `pods/NAME` from a path below the namespace, and the query."""
        url = urlparse(self.path)
        return "/".join(url.path.split("/")[5:]), parse_qs(url.query)

    def _body(self) -> Manifest:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body: Manifest = json.loads(text) if text else {}
        return body

    def _answer(self, code: int, value: Manifest) -> None:
        text = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self) -> None:
        """Send changes as lines of JSON until the server stops."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        watcher = self.api.watch()
        while (change := watcher.get()) is not None:
            self.wfile.write(json.dumps(change).encode() + b"\n")
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""
