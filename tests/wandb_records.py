"""What the loopback W&B server keeps and how it tells it: runs, artifacts, and the nodes of its
GraphQL answers.
"""

import json
from dataclasses import dataclass, field
from typing import Any

ENTITY = "me"
VIEWER = {
    "id": "u",
    "entity": ENTITY,
    "username": ENTITY,
    "name": ENTITY,
    "email": "me@example.org",
    "flags": "{}",
    "admin": False,
    "teams": {"edges": []},
    "apiKeys": {"edges": []},
}


@dataclass
class ServerRun:
    """One run as the server has it."""

    id: str
    project: str
    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    """History by offset."""
    state: str = "running"
    files: dict[str, bytes] = field(default_factory=dict)
    opened: int = 0
    """How often a client began to write it."""

    def table(self, key: str) -> list[dict[str, Any]]:
        """A table of the summary, row by row, from the file that was uploaded."""
        found = json.loads(self.files[self.summary[key]["path"]])
        return [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The history in order, without wandb's clocks."""
        clocks = ("_timestamp", "_runtime")
        return [
            {k: v for k, v in self.lines[at].items() if k not in clocks}
            for at in sorted(self.lines)
        ]

    @property
    def axes(self) -> dict[str, str]:
        """Metric or glob of metrics, and the metric it is drawn over: what wandb writes into the
        config.
        """
        metrics = self.config.get("_wandb", {}).get("m", [])
        return {m.get("1") or m["2"]: metrics[m["5"] - 1]["1"] for m in metrics if "5" in m}


@dataclass
class Artifact:
    """All versions of one artifact: the digest of each, and the files of the latest."""

    type: str
    versions: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Path and digest."""
    aliases: list[str] = field(default_factory=list)


def plain(value: Any) -> Any:
    """A value of a summary without wandb's random names: of a table, what is in it."""
    return (
        value["sha256"] if isinstance(value, dict) and value.get("_type") == "table-file" else value
    )


def viewer() -> dict[str, Any]:
    versions = {"max_cli_version": "9.9.9"}
    server = {"cliVersionInfo": versions, "latestLocalVersionInfo": None, "features": []}
    return {"viewer": VIEWER, "serverInfo": server}


def project(name: str, v: dict[str, Any]) -> dict[str, Any]:
    entity = v.get("entity") or ENTITY
    return {"id": "p", "name": name, "entity": {"id": "e", "name": entity}, "entityName": entity}


def run_node(run: ServerRun) -> dict[str, Any]:
    told = {
        "id": f"id-{run.id}",
        "name": run.id,
        "displayName": run.name,
        "state": run.state,
        "tags": run.tags,
    }
    told |= {
        "group": run.group,
        "jobType": run.job_type,
        "historyLineCount": len(run.lines),
        "sweepName": None,
    }
    told |= {"config": json.dumps({key: {"value": value} for key, value in run.config.items()})}
    told |= {
        "summaryMetrics": json.dumps(run.summary),
        "systemMetrics": "{}",
        "historyKeys": {},
        "readOnly": False,
    }
    told |= {
        "commit": None,
        "createdAt": "2026-11-30T00:00:00Z",
        "heartbeatAt": "2026-11-30T00:00:00Z",
    }
    return {**told, "description": "", "notes": "", "user": {"name": ENTITY, "username": ENTITY}}
