"""`andrea dashboard`: optuna-dashboard on a study, read-only, live."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Runs, Study, examples, option
from andrea.errors import StudyError, UserError

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = examples("andrea dashboard norm-placement", "andrea dashboard lr --port 9000")


def dashboard(
    study: Study,
    port: Annotated[int, option("--port N", "0 takes any free port.", min=0, max=65535)] = 8080,
    host: Annotated[str, option("--host HOST", "Address to listen on.")] = "127.0.0.1",
    runs: Runs = DEFAULT_RUNS,
    debug: Debug = False,
) -> None:
    """Show the trials of a study in a browser while it runs; looking never changes it."""
    from andrea.cli.stores import open_study

    _, folder = open_study(runs, study)
    journal = folder.path / "optuna.journal"
    if not journal.exists():
        raise UserError(
            f"study {folder.path.name} has no trials yet ({journal} is missing); run it first"
        )
    server = serve(journal, host, port)
    with server:
        typer.echo(f"http://{host}:{server.server_port}/  (Ctrl-C ends it)")
        sys.stdout.flush()
        server.serve_forever()


def serve(journal: "Path", host: str, port: int) -> Any:
    """A server of optuna-dashboard over the journal, listening but not yet serving.

    The journal of a live study is read in place and never written (optuna-dashboard itself would
    write notes and deletions into it, under another lock than the controller's).

    Raises:
        UserError: optuna-dashboard is not installed.
        StudyError: the port is taken.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError as error:
        raise UserError("the dashboard is an extra: pip install optuna-dashboard") from error
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    from optuna.storages import JournalStorage

    class Threaded(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """A line per request is noise."""

    application = wsgi(JournalStorage(_read_only(journal)))
    try:
        return make_server(host, port, application, Threaded, Quiet)
    except OSError as error:
        raise StudyError(
            f"--port {port}: {error.strerror}; choose another (--port 0 takes any free one)"
        ) from error


def _read_only(journal: "Path") -> Any:
    """An Optuna journal that refuses to be written; a torn last line, a write in progress, is not
    read.
    """
    from bottle import HTTPError
    from optuna.storages.journal import JournalFileBackend

    class ReadOnly(JournalFileBackend):
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            raise HTTPError(403, "andrea shows its studies read-only")

    return ReadOnly(str(journal))
