"""SUMMARY.md of a machine's results, made from the files of the parts that are there."""

import json
from pathlib import Path
from typing import Any

from benchmarks.goals_and_tables import Goal, goals_table, section
from benchmarks.parts import ALL_PARTS, SEPARATE
from services.workloads.job_records import write_lines


def _machine_line(machine: dict[str, Any]) -> str:
    flags = ", ".join(machine["flags"])
    return (
        f"{machine['cpu']}, {machine['cores']} cores ({flags}), {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}, torch {machine['torch']}"
    )


def summary(contents: dict[str, dict[str, Any]]) -> str:
    """The summary of the contents of the parts' files, by part."""
    goals: list[Goal] = []
    sections: list[str] = []
    machines: list[str] = []
    quick = any(content["quick"] for content in contents.values())
    for part in ALL_PARTS:
        if part.name in contents:
            content = contents[part.name]
            goals += part.goals(content["measured"])
            sections += [section(table) for table in part.tables(content["measured"])]
            line = _machine_line(content["machine"])
            machines += [] if line in machines else [line]
    separate = ", ".join(f"`{part.name}`" for part in SEPARATE)
    origin = (
        "Written by `benchmarks/run.py`; the files beside this one hold every figure. "
        f"`make bench` measures all parts but {separate}, measured only when named (`--only`)."
    )
    head = ["# Live benchmarks", origin, *machines]
    warning = ["**A quick run: these figures only show that everything runs.**"] if quick else []
    return "\n\n".join([*head, *warning, "## Goals", goals_table(goals), "## Figures", *sections]) + "\n"


def write_summary(folder: Path) -> None:
    """Write SUMMARY.md from the results in `folder`."""
    files = {part.name: folder / f"{part.name}.json" for part in ALL_PARTS}
    contents = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    write_lines(folder / "SUMMARY.md", summary(contents).splitlines())
