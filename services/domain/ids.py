"""Identifiers. They are created outside the pure code; each has its own type, so that mypy catches mix-ups."""

from typing import NewType

JobId = NewType("JobId", str)
"""One choice of one request: "<request id>/<choice>"."""


def request_id_of(job_id: JobId) -> str:
    """The request that a job is a choice of."""
    return job_id.rpartition("/")[0]


PlanNumber = NewType("PlanNumber", int)
"""Number of a plan, increasing by one within a worker epoch."""

CommandNumber = NewType("CommandNumber", int)
"""Number of a KV command, increasing by one within a worker epoch."""

Epoch = NewType("Epoch", int)
"""Number of a start of a worker with empty pools; later ones are greater, 0 means that no worker has been seen. The
scheduler gives them out.
"""

EPOCHS_OF_A_TERM = 1 << 32
"""Those of a scheduler that leads in term t begin after t times this, so that a later leader's are greater."""
MOST_EPOCH = (1 << 63) - 1

MOST_GROUPS = 1024
"""Worker groups are numbered from 0 to less than this."""

BlockId = NewType("BlockId", int)
"""Index of a block in the device or host pool; the variable's name says which."""
