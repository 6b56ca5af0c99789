"""The counters of a group of ranks, as of one worker."""

from collections.abc import Sequence

from services.domain.iteration import WorkerCounters


def counters_of_group(ranks: Sequence[WorkerCounters]) -> WorkerCounters:
    """Bytes are the sum over the ranks, seconds their mean; but waits for plans are counted by the leader alone."""
    count = max(len(ranks), 1)
    return WorkerCounters(
        stall_s=sum(rank.stall_s for rank in ranks) / count,
        busy_s=sum(rank.busy_s for rank in ranks) / count,
        plan_wait_s=sum(rank.plan_wait_s for rank in ranks),
        offloaded_bytes=sum(rank.offloaded_bytes for rank in ranks),
        uploaded_bytes=sum(rank.uploaded_bytes for rank in ranks),
    )
