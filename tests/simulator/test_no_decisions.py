"""The simulator decides nothing: it may know what the machines are told and what the worker does, and forwards the
rest unread.
"""

import ast
from pathlib import Path

import pytest

import services.simulator

FOLDER = Path(services.simulator.__path__[0])
SOURCES = sorted(FOLDER.glob("*.py"))
MAY_IMPORT = (
    "services.autoscaler.scaling.",
    "services.domain.",
    "services.scheduler.machine.",
    "services.scheduler.routing.",
    "services.scheduler.scheduler_config.",
    "services.kvmanager.machine.",
    "services.kvmanager.policies.",
    "services.simulator.",
)
DECISIONS = {
    *(
        "Jobs",
        "Arrive",
        "ArrivedJob",
        "Planned",
        "Finished",
        "Ack",
        "Refuse",
        "Release",
        "Order",
        "OrderChange",
        "Rank",
    ),
    *("SendPlan", "PlanEntry", "ToKv", "Emit", "End", "Reject", "WakeAt", "DropWorker"),
    *("Withdrawn", "Routed", "JobMove"),
    *("Resident", "Grown", "ReclaimRequest", "ToScheduler", "ToWorker", "EndWorker"),
    *("Assign", "Offload", "Upload", "ReleaseBlocks", "BlockMove"),
}
"""The commands of scheduler and KV manager: creating one means deciding."""
NOTIONS = {"level", "quanta", "quanta_s", "promote", "enst_s", "policy_named", "make_policy", "decide", "build_batch"}


def test_there_is_something_to_look_at() -> None:
    assert {"simulation.py", "simulated_group.py", "simulated_worker.py"} <= {path.name for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_imports_the_domain_and_the_two_policies_only(path: Path) -> None:
    imported = [
        node.module or ""
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("services", "fastserve"))
    ]
    assert [name for name in imported if not f"{name}.".startswith(MAY_IMPORT)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_makes_no_message_in_which_a_decision_is_told(path: Path) -> None:
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }
    assert called & DECISIONS == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_names_no_notion_of_scheduling(path: Path) -> None:
    named = {
        name
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (getattr(node, "id", None), getattr(node, "attr", None))
        if name is not None
    }
    assert named & NOTIONS == set()
