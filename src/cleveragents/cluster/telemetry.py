"""Traces and metrics for OpenTelemetry, made from what the store recorded (extra `telemetry`).

Nothing is measured twice, and nothing of it is in the path of a checkpoint: when a command ends,
the operations, calls and groups of the plans that it held become spans with the times that they
had. Nothing is sent unless the environment names an exporter, as OpenTelemetry wants it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from cleveragents.lease import host_name
from cleveragents.model.journal import EntryState, JournalEntry
from cleveragents.store import Lease, Store

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, Tracer

ENDPOINTS = tuple(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT" for kind in ("", "TRACES_", "METRICS_"))


def is_configured(environ: Mapping[str, str]) -> bool:
    disabled = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not disabled and any(environ.get(name) for name in ENDPOINTS)


class Telemetry:
    """What one command did to plans; `send` it when the command ends."""

    def __init__(self, store: Store, started: str) -> None:
        self._store, self._started = store, started
        self._held: set[str] = set()
        store.on_taken.append(self._taken)

    def _taken(self, lease: Lease) -> None:
        self._held.add(lease.plan_id)

    def send(self) -> None:
        if not self._held:
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            return  # the variables are for other programs
        resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME", "cleveragents"),
                "host.name": host_name(),
            }
        )
        tracers = TracerProvider(resource=resource)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
        for plan_id in sorted(self._held):
            self.record(plan_id, tracers.get_tracer(__name__), meters.get_meter(__name__))
        tracers.shutdown()
        meters.shutdown()

    def record(self, plan_id: str, tracer: Tracer, meter: Meter) -> None:
        """Record the operations of a plan that began in this command."""
        steps = meter.create_counter("agents.steps", description="calls of tools, by state")
        groups = meter.create_counter("agents.groups", description="checkpoint groups made")
        times = meter.create_histogram("agents.step.duration", unit="s")
        for entry in self._store.journal.of_plan(plan_id):
            if entry.started_at >= self._started:
                self._operation(entry, tracer)
            elif (entry.ended_at or "") >= self._started:
                meter.create_counter("agents.take_overs").add(1)
                self._operation(entry, tracer, taken_over=True)
        for call in self._store.calls.of_plan(plan_id):
            if call.started_at >= self._started:
                steps.add(1, {"agents.state": str(call.state)})
                if call.ended_at:
                    took = _when(call.ended_at) - _when(call.started_at)
                    times.record(took.total_seconds(), {"agents.tool": call.tool})
        for group in self._store.checkpoints.groups(plan_id):
            if group.created_at >= self._started:
                groups.add(1, {"agents.type": str(group.checkpoint_type)})

    def _operation(self, entry: JournalEntry, tracer: Tracer, taken_over: bool = False) -> None:
        """One operation with the calls and groups in it; still open ones end now."""
        ended = entry.ended_at or self._latest(entry)
        span = tracer.start_span(
            f"plan {entry.operation}",
            start_time=_nanoseconds(entry.started_at),
            attributes={
                "agents.plan": entry.plan_id,
                "agents.state": entry.shown_state,
                "agents.taken_over": taken_over,
            },
        )
        _mark(span, entry.state is EntryState.INTERRUPTED or entry.shown_state == "failed")
        self._calls(entry, span, tracer, ended)
        for group in self._store.checkpoints.groups(entry.plan_id):
            if entry.started_at <= group.created_at <= ended:
                named = {"agents.group": group.group_id, "agents.type": str(group.checkpoint_type)}
                span.add_event("group", named, timestamp=_nanoseconds(group.created_at))
        span.end(_nanoseconds(ended))

    def _calls(self, entry: JournalEntry, span: Span, tracer: Tracer, ended: str) -> None:
        from opentelemetry.trace import set_span_in_context

        for call in self._store.calls.of_plan(entry.plan_id):
            if not entry.started_at <= call.started_at <= ended:
                continue
            step = tracer.start_span(
                f"step {call.step_id}",
                context=set_span_in_context(span),
                start_time=_nanoseconds(call.started_at),
                attributes={
                    "agents.tool": call.tool,
                    "agents.attempt": call.attempt,
                    "agents.state": str(call.state),
                },
            )
            _mark(step, call.error is not None)
            step.end(_nanoseconds(call.ended_at or ended))

    def _latest(self, entry: JournalEntry) -> str:
        groups = self._store.checkpoints.groups(entry.plan_id)
        return max([entry.started_at, *(group.created_at for group in groups)])


def _mark(span: Span, failed: bool) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR if failed else StatusCode.OK))


def _when(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _nanoseconds(text: str) -> int:
    return int(_when(text).timestamp() * 1_000_000) * 1000
