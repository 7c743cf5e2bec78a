"""What plans did, as OpenTelemetry has it: sent only where the environment says where to."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from cleveragents.cluster.telemetry import is_configured
from tests.harness import Agents

PLAN = """\
name: p
resources: {a: {kind: fs-directory, path: d}}
policy: {max_retries_per_step: 0}
steps:
  - {id: one, run: "echo 1 > f"}
  - {id: two, run: "exit 3"}
"""


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.traces = ExportTraceServiceRequest()
        self.metrics = ExportMetricsServiceRequest()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Any]:
        return [
            span
            for resource in self.traces.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def sums(self) -> dict[str, int]:
        """Counter -> its value over all attributes."""
        return {
            metric.name: sum(point.as_int for point in metric.sum.data_points)
            for resource in self.metrics.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.HasField("sum")
        }


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        kind = self.server.traces if self.path == "/v1/traces" else self.server.metrics
        kind.MergeFromString(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def collecting() -> Generator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()


def attributes(of: Any) -> dict[str, Any]:
    return {item.key: item.value.string_value for item in of.attributes}


def test_a_run_is_a_span_with_its_steps_and_groups(agents: Agents) -> None:
    (agents.work / "d").mkdir()
    (agents.work / "plan.yaml").write_text(PLAN)
    with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        ran = agents.run("plan", "run", "plan.yaml", "--json", env=env).expect(5)
        groups = agents.run("plan", "checkpoints", "--json", env=env).expect(0).data
    spans = {span.name: span for span in collector.spans()}
    assert set(spans) == {"plan use", "plan execute", "step one", "step two"}
    top = spans["plan execute"]
    assert attributes(top)["agents.plan"] == ran.data["plan_id"]
    assert attributes(top)["agents.state"] == "failed"
    assert {spans[name].parent_span_id for name in ("step one", "step two")} == {top.span_id}
    assert spans["step one"].status.code != spans["step two"].status.code
    assert top.start_time_unix_nano <= spans["step one"].start_time_unix_nano
    made = {row["group_id"] for row in groups["checkpoints"]}
    told = {attributes(event)["agents.group"] for event in top.events}
    assert told <= made
    assert told
    sums = collector.sums()
    assert sums["agents.steps"] == 2
    assert sums["agents.groups"] == len(made)


def test_what_a_dead_process_had_begun_is_a_take_over(agents: Agents) -> None:
    (agents.work / "d").mkdir()
    (agents.work / "plan.yaml").write_text(PLAN.replace("exit 3", "kill -9 $PPID; sleep 9"))
    off = {"CLEVERAGENTS_SANDBOX_CONFINE": "off"}
    assert agents.run("plan", "run", "plan.yaml", env=off).rc == -9
    (agents.work / "plan.yaml").write_text(PLAN.replace("exit 3", "true"))
    with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces", **off}
        env["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"] = f"{collector.url}/v1/metrics"
        agents.run("plan", "resume", "--plan-file", "plan.yaml", env=env).expect(0)
    assert {"plan execute", "plan resume"} <= {span.name for span in collector.spans()}
    assert collector.sums()["agents.take_overs"] == 1


def test_a_collector_that_is_away_fails_no_command(agents: Agents) -> None:
    (agents.work / "d").mkdir()
    (agents.work / "plan.yaml").write_text(PLAN.replace("exit 3", "true"))
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    agents.run("plan", "run", "plan.yaml", env=env).expect(0)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_only_an_address_configures_it(environ: dict[str, str], expected: bool) -> None:
    assert is_configured(environ) is expected
