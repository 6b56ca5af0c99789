"""Identifiers. Made outside the pure code and handed in; a distinct type each, so that mypy keeps them apart."""

from typing import NewType

JobId = NewType("JobId", str)
"""One choice of one request: "<request id>/<choice>"."""

PlanNumber = NewType("PlanNumber", int)
"""Number of a plan, rising by one within a worker epoch."""

CommandNumber = NewType("CommandNumber", int)
"""Number of a KV command, rising by one within a worker epoch."""

Epoch = NewType("Epoch", int)
"""Number of a start of a worker with empty pools; later ones are greater, 0 means that no worker has been seen."""

BlockId = NewType("BlockId", int)
"""Index of a block in the device pool or in the host pool; which one, its name says."""
