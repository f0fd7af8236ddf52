"""A W&B server on loopback that keeps what it is sent: the double that online tests run the real
wandb against.

It knows as much of the protocol as wandb 0.31 uses: GraphQL for runs, artifacts and saved views,
the file stream for rows, summary and state, PUT for files. Rows are kept by the offset they are
sent with, as W&B keeps them, so that rows sent twice at one offset are there once, and rows sent
twice at different offsets twice.
"""

import contextlib
import gzip
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from wandb_records import Artifact, ServerRun, plain, project, run_node, viewer


class WandbServer:
    """The server; `url` is where it listens."""

    def __init__(self) -> None:
        self.runs: dict[str, ServerRun] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.views: dict[str, dict[str, Any]] = {}
        """Saved workspaces by their name in the view's URL: id, displayName, spec."""
        self.asked: list[str] = []
        """Every request in short, oldest first."""
        self.trouble: Callable[[str], int | None] = lambda request: None
        """Told each request; returns a status to answer with instead, 0 to drop the connection; may
        sleep.
        """
        self.torn_after: int | None = None
        """Keep so many rows of a request and answer 500, as a server does that dies in the middle.
        """
        self.stopped = False
        """Whether somebody pressed *Stop run*, of every run."""
        self.deleted: set[str] = set()
        """Runs that somebody deleted: W&B does not give their ids again."""
        self._made: dict[str, dict[str, Any]] = {}
        self._lock = threading.RLock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> "WandbServer":
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @contextlib.contextmanager
    def in_trouble(self, trouble: Callable[[str], int | None]) -> Iterator[None]:
        """Answer as `trouble` says inside the block."""
        self.trouble = trouble
        try:
            yield
        finally:
            self.trouble = lambda request: None

    def state(self) -> dict[str, Any]:
        """Everything that must be the same however often and however interrupted it was sent."""
        runs = {}
        for run in self.runs.values():
            clocks = ("_timestamp", "_runtime", "_step", "_wandb")
            summary = {k: plain(v) for k, v in run.summary.items() if k not in clocks}
            config = {k: v for k, v in run.config.items() if k != "_wandb"}
            told = (run.project, run.name, run.group, run.job_type, run.tags, run.state)
            runs[run.id] = {"about": told, "config": config, "rows": run.rows, "summary": summary}
        views = {name: view["displayName"] for name, view in self.views.items()}
        return {
            "runs": runs,
            "views": views,
            "artifacts": {n: a.versions for n, a in self.artifacts.items()},
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(_Handler):
            def answer(self, method: str, path: str, body: bytes) -> Any:
                return server._answer(method, path, body)

            def trouble(self, request: str) -> int | None:
                server.asked.append(request)
                return server.trouble(request)

        return Handler

    def _answer(self, method: str, path: str, body: bytes) -> Any:
        with self._lock:
            if path.endswith("/graphql"):
                asked = json.loads(body)
                return {
                    "data": self._graphql(
                        _operation(asked["query"]), asked.get("variables") or {}, asked["query"]
                    )
                }
            if path.endswith("/file_stream"):
                return self._stream(path.split("/")[-2], json.loads(body))
            if method == "PUT":
                _, _, run, name = path.split("/", 3)
                if run in self.runs:
                    self.runs[run].files[name] = body
                return {}
            return {}

    def _stream(self, run_id: str, sent: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[run_id]
        for name, part in (sent.get("files") or {}).items():
            content = (
                [json.loads(line) for line in part["content"]]
                if name.endswith((".jsonl", ".json"))
                else []
            )
            if name == "wandb-history.jsonl":
                kept = content[: self.torn_after]
                run.lines.update({part["offset"] + i: line for i, line in enumerate(kept)})
                if len(kept) < len(content):
                    raise _Torn
            elif name == "wandb-summary.json":
                run.summary = content[-1]
        if sent.get("complete"):
            run.state = "finished" if sent.get("exitcode") == 0 else "failed"
        return {"exitcode": None, "limits": {}, "stopped": self.stopped}

    def _graphql(self, name: str, v: dict[str, Any], query: str) -> dict[str, Any]:
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "Viewer": lambda v: viewer(),
            "GetViewer": lambda v: viewer(),
            "GetDefaultEntity": lambda v: viewer(),
            "UpsertBucket": self._upsert_bucket,
            "RunResumeStatus": self._resume_status,
            "CreateRunFiles": self._create_run_files,
            "Runs": self._list_runs,
            "ArtifactType": lambda v: {"project": {"artifact": None}},
            "View": self._view,
            "UpsertView2": self._upsert_view,
            "CreateArtifact": self._create_artifact,
            "CreateArtifactManifest": self._create_manifest,
            "UpdateArtifactManifest": self._create_manifest,
            "CreateArtifactFiles": self._create_artifact_files,
            "CommitArtifact": self._commit,
        }
        if name in answers:
            return answers[name](v)
        if name.endswith("ServerFeatures") or "serverInfo" in query:
            return {"serverInfo": {"features": [], **viewer()["serverInfo"]}}
        self.asked.append(f"unknown: {name} {json.dumps(v)[:300]} {' '.join(query.split())[:700]}")
        return {}

    def _upsert_bucket(self, v: dict[str, Any]) -> dict[str, Any]:
        by_id = next((run for run in self.runs.values() if v.get("id") == f"id-{run.id}"), None)
        name = v.get("name") or (by_id.id if by_id else "")
        if name in self.deleted:
            raise _Deleted(f"run {name} was previously created and deleted; try a new run name")
        new = name not in self.runs
        run = self.runs.setdefault(name, ServerRun(name, v.get("project") or ""))
        run.opened += "displayName" in v
        for key, variable in (
            ("name", "displayName"),
            ("group", "groupName"),
            ("job_type", "jobType"),
        ):
            setattr(run, key, v.get(variable) or getattr(run, key))
        run.tags = v.get("tags") or run.tags
        if v.get("config"):
            run.config = {key: item["value"] for key, item in json.loads(v["config"]).items()}
        if v.get("displayName"):
            run.state = "running"  # a client that writes an old id goes on with that run
        told = {
            "id": f"id-{name}",
            "name": name,
            "displayName": run.name,
            "config": v.get("config") or "{}",
        }
        told |= {"description": None, "sweepName": None, "historyLineCount": len(run.lines)}
        return {
            "upsertBucket": {
                "bucket": {**told, "project": project(run.project, v)},
                "inserted": new,
            }
        }

    def _resume_status(self, v: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(v["name"])
        if run is None:
            return {"model": {**project(v["project"], v), "bucket": None}}
        last = run.lines[max(run.lines)] if run.lines else None
        tail = json.dumps([json.dumps(last)] if last else [])
        told = {
            **run_node(run),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": tail,
            "eventsTail": "[]",
        }
        return {
            "model": {
                **project(run.project, v),
                "bucket": {**told, "wandbConfig": json.dumps({"t": 1})},
            }
        }

    def _create_run_files(self, v: dict[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/up/{v['run']}/{name}"} for name in v["files"]
        ]
        return {"createRunFiles": {"runID": f"id-{v['run']}", "uploadHeaders": [], "files": files}}

    def _list_runs(self, v: dict[str, Any]) -> dict[str, Any]:
        wanted = json.loads(v.get("filters") or "{}")
        found = [
            r
            for r in self.runs.values()
            if r.project == v["project"] and r.group == wanted.get("group", r.group)
        ]
        if not any(run.project == v["project"] for run in self.runs.values()):
            return {"project": None}
        edges = [{"node": {"projectId": "1", **run_node(run)}, "cursor": run.id} for run in found]
        page = {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}
        return {
            "project": {"internalId": "1", "runCount": len(found), "readOnly": False, "runs": page}
        }

    def _view(self, v: dict[str, Any]) -> dict[str, Any]:
        view = self.views.get(v["viewName"])
        node = view and {"id": view["id"], "displayName": view["displayName"], "spec": view["spec"]}
        return {"project": {"allViews": {"edges": [{"node": node}] if node else []}}}

    def _upsert_view(self, v: dict[str, Any]) -> dict[str, Any]:
        """A view without an id is a new one, even when another has its name."""
        known = next((view for view in self.views.values() if view["id"] == v.get("id")), None)
        name = (
            v["name"] if known or v["name"] not in self.views else f"{v['name']}-{len(self.views)}"
        )
        view = {"id": known["id"] if known else f"view-{len(self.views)}", "name": name}
        self.views[name] = {
            **view,
            "displayName": v["displayName"],
            "spec": v["spec"],
            "entity": v["entityName"],
        }
        return {"upsertView": {"view": view, "inserted": known is None}}

    def _create_artifact(self, v: dict[str, Any]) -> dict[str, Any]:
        asked = v["input"]
        name, digest = asked["artifactCollectionName"], asked["digest"]
        known = self.artifacts.setdefault(name, Artifact(asked["artifactTypeName"]))
        state = "COMMITTED" if digest in known.versions else "PENDING"
        made = {"id": f"{name}:{digest}", "state": state}
        self._made[made["id"]] = {"name": name, "digest": digest}
        known.aliases = [alias["alias"] for alias in asked.get("aliases") or []]
        latest = (
            {"id": f"{name}:{known.versions[-1]}", "versionIndex": 0} if known.versions else None
        )
        return {
            "createArtifact": {
                "artifact": {**made, "artifactSequence": {"id": name, "latestArtifact": latest}}
            }
        }

    def _create_manifest(self, v: dict[str, Any]) -> dict[str, Any]:
        url = f"{self.url}/manifest/{v.get('artifactID', '-')}/{v.get('name', '-')}"
        file = {"id": "f", "name": "m", "displayName": "m", "uploadUrl": url, "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": "manifest", "file": file}}}

    def _create_artifact_files(self, v: dict[str, Any]) -> dict[str, Any]:
        nodes = []
        for spec in v["input"]["artifactFiles"]:
            artifact = self._made[spec["artifactID"]]
            self.artifacts[artifact["name"]].files[spec["name"]] = spec["md5"]
            told = {
                "id": "f",
                "name": spec["name"],
                "displayName": spec["name"],
                "storagePath": spec["name"],
            }
            url = f"{self.url}/artifact/{artifact['name']}/{spec['name']}"
            nodes.append(
                {
                    **told,
                    "uploadUrl": url,
                    "uploadHeaders": [],
                    "artifact": {"id": spec["artifactID"]},
                }
            )
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def _commit(self, v: dict[str, Any]) -> dict[str, Any]:
        made = self._made[v["artifactID"]]
        self.artifacts[made["name"]].versions.append(made["digest"])
        return {"commitArtifact": {"artifact": {"id": v["artifactID"], "digest": made["digest"]}}}


class _Deleted(Exception):
    """A run is written that somebody deleted."""


class _Torn(Exception):
    """The server died while it wrote."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, method: str, path: str, body: bytes) -> Any:
        raise NotImplementedError

    def trouble(self, request: str) -> int | None:
        raise NotImplementedError

    def log_message(self, *told: object) -> None:
        pass

    def handle(self) -> None:
        """A client that was killed leaves a reset connection, which is no fault of the server's."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def _serve(self) -> None:
        body = self._body()
        name = _operation(json.loads(body)["query"]) if self.path.endswith("/graphql") else ""
        status = self.trouble(f"{self.command} {self.path} {name}".strip())
        if status == 0:
            self.close_connection = True
            self.connection.close()
            return
        try:
            answer = (
                {"error": "in trouble"} if status else self.answer(self.command, self.path, body)
            )
        except _Torn:
            answer, status = {"error": "in trouble"}, 500
        except _Deleted as error:
            answer, status = {"errors": [{"message": str(error)}]}, 409
        content = json.dumps(answer).encode()
        with contextlib.suppress(OSError):  # the client may have been killed
            self.send_response(status or 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body


def slowly(seconds: float, match: str) -> Callable[[str], int | None]:
    """Trouble: requests that contain `match` are answered after `seconds`."""

    def trouble(request: str) -> int | None:
        if match in request:
            time.sleep(seconds)
        return None

    return trouble


def answering(status: int, match: str, after: int = 0) -> Callable[[str], int | None]:
    """Trouble: requests that contain `match`, from the one after `after` of them on, get `status`
    (0: dropped).
    """
    seen = [0]

    def trouble(request: str) -> int | None:
        seen[0] += match in request
        return status if match in request and seen[0] > after else None

    return trouble


def _operation(query: str) -> str:
    found = re.search(r"(?:query|mutation)\s+(\w+)", query)
    return found.group(1) if found else "?"
