"""What a worker makes of a delivery: whether it can run it here, and how it ended."""

import json

import pytest

from cleveragents.cluster.needs import missing
from cleveragents.cluster.queue import HandBack, Order
from cleveragents.cluster.worker import LATER, SOON, order_options, outcome
from cleveragents.model.plan_spec import (
    ActorSpec,
    PlanSpec,
    ResourceSpec,
    StepSpec,
    SubplanSpec,
    ValidateSpec,
)
from cleveragents.model.resource import Carry, Resource
from cleveragents.model.tool import ToolSpec


def said(kind: str, message: str = "why") -> bytes:
    return json.dumps({"data": {"error": {"type": kind, "message": message}}}).encode()


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (0, b"", None),
        (5, said("ToolFailed"), None),
        (4, said("PlanCancelled"), None),
        (4, said("PlanBusy"), HandBack("why", SOON)),
        (4, said("LeaseLost"), HandBack("why", SOON)),
        (2, said("ConfigError"), HandBack("why", LATER)),
        (6, said("DiskFull"), HandBack("why", LATER)),
        (5, said("SandboxMissing"), HandBack("why", LATER)),
        (4, said("NotInBucket"), HandBack("why", LATER)),
        (6, said("StoreError"), HandBack("why", LATER)),
        (6, said("BucketUnreachable"), HandBack("why", LATER)),
        (6, said("ContentDamaged"), None),
        (130, b"", HandBack("its process was stopped", SOON)),
        (-9, b"", HandBack("its process was stopped", SOON)),
        (1, b"not JSON", HandBack("its process ended with 1", LATER)),
        (1, b"[]", HandBack("its process ended with 1", LATER)),
    ],
)
def test_a_plan_that_failed_has_ended_and_one_that_could_not_run_is_handed_back(
    code: int, text: bytes, expected: HandBack | None
) -> None:
    assert outcome(code, text) == expected


def resource(path: str) -> Resource:
    return Resource(
        resource_id="r",
        plan_id="p",
        name="db",
        kind="postgres",
        path=path,
        strategy="snapshot",
        carry=Carry.ALL,
        exclude=(),
        require_sandbox=True,
    )


def test_programs_and_variables_that_are_not_here_are_named() -> None:
    child = PlanSpec(
        name="c", resources=(), steps=(StepSpec(id="d", tool="run", inputs={"argv": ["deep"]}),)
    )
    spec = PlanSpec(
        name="p",
        resources=(ResourceSpec(name="db", kind="postgres"),),
        tools={
            "a": ToolSpec(name="a", run=("codemod", "x")),
            "b": ToolSpec(name="b", run="a shell | word"),
            "c": ToolSpec(name="c", run=("./mine",)),
        },
        validate=(ValidateSpec(run=("checker",)), ValidateSpec(run="any thing")),
        actor=ActorSpec(kind="command", command=("brain",)),
        steps=(
            StepSpec(id="s", tool="run", inputs={"argv": ["present"]}),
            StepSpec(id="t", tool="subplan", subplan=SubplanSpec(plan=child)),
        ),
    )
    found = missing(
        spec,
        [resource("postgresql://h/x#%24%7BDB_URL%7D"), resource("postgresql://h/y")],
        {"HOME": "/"},
        lambda name: f"/bin/{name}" if name == "present" else None,
    )
    assert found == [
        "brain is not installed",
        "checker is not installed",
        "codemod is not installed",
        "deep is not installed",
        "DB_URL is not set",
    ]
    assert missing(spec, [resource("x#$DB_URL")], {"DB_URL": ""}, lambda name: name) == []


def test_an_order_is_said_again_in_options() -> None:
    assert order_options(Order()) == ["--queue=default", "--priority=0"]
    assert order_options(Order(queue="q", priority=3, limit_key="k"))[-1] == "--limit-key=k"
