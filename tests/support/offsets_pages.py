"""A server of the Offsets pages with answers that a test chooses, for states that are rare."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import airflow_kafka_offsets

STATIC = Path(airflow_kafka_offsets.__file__).parent / "ui" / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'self'"
)
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
NOON = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)

Answer = tuple[int, Any]


def moment(minutes: float = 0) -> str:
    """Return the time so many minutes after a certain noon."""
    return (NOON + timedelta(minutes=minutes)).isoformat()


def move(kind: str = "commit", minutes: float = 0, **values: Any) -> dict[str, Any]:
    """Return a move as the history has it."""
    number = int(minutes)
    return {
        "at": moment(minutes),
        "kind": kind,
        "dag_id": "orders",
        "run_id": f"scheduled__{moment(minutes)}",
        "task_id": kind,
        "map_index": -1,
        "try_number": 1,
        "moved_by": 1_000 + number,
        "lag": 500 + number * 3,
        "offset": 1_000 * (number + 1),
        "log_end": 1_000 * (number + 1) + 500 + number * 3,
        "plan_only": False,
        "state": "success",
        **values,
    }


def pipeline(number: int = 0, **values: Any) -> dict[str, Any]:
    """Return a pipeline as the lists have it."""
    return {
        "dag_id": "orders",
        "key": f"key{number}",
        "groups": [f"orders-etl-{number}"],
        "topics": ["orders"],
        "checkpoint": f"s3a://lake/checkpoints/orders-{number}",
        "kafka_config_id": "kafka_default",
        "tasks": ["commit"],
        "unresolved": [],
        "not_run": False,
        **values,
    }


def columns(count: int, topic: str = "orders") -> dict[str, list[Any]]:
    """Return so many partitions; the first few hold most of the lag."""
    lags = [max(0, 40_000 // (number + 1) - 40) for number in range(count)]
    return {
        "group": ["orders-etl-0"] * count,
        "topic": [topic] * count,
        "partition": list(range(count)),
        "committed": [10_000] * count,
        "checkpoint": [10_000] * count,
        "log_start": [0] * count,
        "log_end": [10_000 + lag for lag in lags],
        "lag": lags,
        "time_lag": [lag / 100 for lag in lags],
        "headroom": [500_000.0] * count,
        "headroom_state": ["time"] * count,
        "verdict": ["in step"] * count,
    }


def now(partitions: dict[str, list[Any]] | None = None, **values: Any) -> dict[str, Any]:
    """Return where a pipeline is."""
    rows = partitions or columns(6)
    return {
        "read_at": moment(100),
        "error": None,
        "totals": {
            "lag": sum(lag or 0 for lag in rows["lag"]),
            "time_lag": 400.0,
            "headroom": 500_000.0,
            "headroom_state": "time",
            "partitions": len(rows["lag"]),
            "without_commit": 0,
        },
        "state": "Empty",
        "members": [],
        "drift": {"verdict": "in step", "text": "no drift"},
        "checkpoint": {"batch": 41, "pending_batch": 42, "age": 130.0},
        "partitions": rows,
        "problems": [],
        **values,
    }


def history() -> dict[str, Any]:
    """Return a history with a reset and a restore in it."""
    batches = [
        {
            "batch": number,
            "at": moment(number),
            "duration": 3.0 + number % 7,
            "records": 900 + 37 * (number % 11),
            "offset": 1_000 * (number + 1),
        }
        for number in range(90)
    ]
    moves = [move(minutes=number) for number in range(0, 90, 6)]
    moves += [move("reset", 40.5), move("restore", 47.5), move("reset", 60.5, plan_only=True)]
    return {"batches": batches, "moves": moves, "problems": []}


def only_moves(moves: Iterable[Any] = ()) -> dict[str, Any]:
    """Return a history without batches."""
    return {"batches": [], "moves": list(moves), "problems": []}


def task_instance(**values: Any) -> dict[str, Any]:
    """Return the task instance of a reset."""
    return {
        "operator": "ResetOffsetsOperator",
        "state": "success",
        "move": move("reset", 40.5),
        "receipt": {
            "groups": ["orders-etl-0"],
            "source": {"to_datetime": moment(-600)},
            "changed": 2,
            "plan_only": False,
            "verified": True,
            "checkpoint": None,
            "totals": {
                "partitions": 2,
                "moved_by": -1_500,
                "lag": 2_320,
                "skipped": 0,
                "clamped": 0,
                "lost": 0,
            },
            "partitions": {
                "group": ["orders-etl-0", "orders-etl-0"],
                "topic": ["orders", "orders"],
                "partition": [0, 1],
                "before": [1_000, None],
                "after": [100, 80],
                "moved_by": [-900, -600],
                "log_start": [0, 0],
                "log_end": [1_200, 1_300],
                "note": [None, None],
                "time_before": [None, None],
                "time_after": [None, None],
            },
        },
        "report": None,
        "report_kind": None,
        "restore_command": "airflow-kafka-offsets group restore orders-etl-0 --from-file before.csv",
        "problems": [],
        **values,
    }


def instance_now(**values: Any) -> dict[str, Any]:
    """Return what Kafka says about a task instance: by default nothing."""
    return {"state": "success", "read_at": None, "times": None, "wait": None, "problems": [], **values}


class OffsetsPages:
    """
    The pages on loopback; use it as a context manager.

    ``answers`` maps an address below ``api/`` to the JSON that it gives, to ``(status, JSON)``, or to a
    function that returns one of these; a query belongs to no address. Of a task instance Kafka knows nothing,
    unless its address with ``/now`` is there too.

    :param prefix: of every address, as behind a sub-path.
    """

    def __init__(self, prefix: str = "") -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        pages = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, kind, body = pages.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", POLICY)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._prefix = f"{prefix}/kafka-offsets/"
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{self._prefix}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> OffsetsPages:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def give(self, *pipelines: dict[str, Any], now: object = None, history: object = None) -> None:
        """Answer with these pipelines, which are all of one DAG, and the same for each."""
        listed = {"pipelines": list(pipelines), "problems": []}
        self.answers = {"pipelines": listed, "dags/orders/pipelines": listed}
        for each in pipelines:
            address = f"dags/orders/pipelines/{each['key']}"
            self.answers |= {f"{address}/now": now, f"{address}/history": history}

    def answer(self, address: str) -> tuple[int, str, bytes]:
        """Return the status, type and body for an address."""
        found = unquote(urlsplit(address).path)
        if not found.startswith(self._prefix):
            return 404, "text/plain", b""
        rest = found.removeprefix(self._prefix)
        if rest.startswith("static/"):
            file = STATIC / rest.removeprefix("static/")
            return 200, TYPES[file.suffix], file.read_bytes()
        if not rest.startswith("api/"):
            shell = (STATIC / "offsets.html").read_text(encoding="utf-8")
            return 200, "text/html", shell.replace("{root}", "../" * rest.count("/") or "./").encode()
        self.asked.append(address)
        answer = self._answer(rest.removeprefix("api/"))
        if callable(answer):
            answer = answer()
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        return status, "application/json", json.dumps(body).encode()

    def _answer(self, address: str) -> Any:
        instance = self.answers.get(address.removesuffix("/now"))
        if address not in self.answers and address.endswith("/now") and isinstance(instance, dict):
            return instance_now(state=instance["state"])
        return self.answers.get(address, (404, {"detail": "Not Found"}))


def held(answer: object, until: threading.Event) -> Callable[[], object]:
    """Return an answer that comes when the test lets it."""

    def wait() -> object:
        until.wait(20)
        return answer

    return wait


def slowly(answer: object, seconds: float) -> Callable[[], object]:
    """Return an answer that takes a while."""

    def wait() -> object:
        time.sleep(seconds)
        return answer

    return wait
