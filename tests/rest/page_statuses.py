"""Statuses for the page: what a busy server would say."""

from fastserve.v1 import admin_pb2

RUNNING, WAITING, SWAPPED = admin_pb2.JOB_STATE_RUNNING, admin_pb2.JOB_STATE_WAITING, admin_pb2.JOB_STATE_SWAPPED_OUT
DEVICE, HOST, NONE = admin_pb2.KV_PLACE_DEVICE, admin_pb2.KV_PLACE_HOST, admin_pb2.KV_PLACE_NONE


def job(
    number: int, level: int, state: "admin_pb2.JobState.ValueType", kv: "admin_pb2.KvPlace.ValueType"
) -> admin_pb2.JobStatus:
    return admin_pb2.JobStatus(
        alias=f"0.{number}", level=level, state=state, kv=kv, prompt_tokens=10 + number, output_tokens=number
    )


def status(jobs: list[admin_pb2.JobStatus], waiting_more: int = 0) -> admin_pb2.Status:
    """A group of three levels with these jobs; `waiting_more` of the lowest level are not listed."""
    levels = []
    for number in range(3):
        states = [one.state for one in jobs if one.level == number]
        counts = {"running": states.count(RUNNING), "swapped_out": states.count(SWAPPED)}
        waiting = states.count(WAITING) + (waiting_more if number == 2 else 0)
        levels.append(admin_pb2.LevelStatus(level=number, quantum_s=0.01 * 2**number, waiting=waiting, **counts))
    group = admin_pb2.GroupStatus(
        ready=True,
        device="cpu",
        levels=levels,
        running=sum(level.running for level in levels),
        waiting=sum(level.waiting for level in levels),
        swapped_out=sum(level.swapped_out for level in levels),
        device_blocks_total=64,
        device_blocks_free=16,
        host_blocks_total=256,
        host_blocks_free=192,
        block_size=16,
        max_batch=48,
    )
    return admin_pb2.Status(
        model="tiny",
        policy="skip-join-mlfq",
        kv_policy="proactive",
        groups=[group],
        counters=admin_pb2.Counters(jobs_finished=1234, preemptions=56, generation_tokens=1000),
        uptime_s=10.0,
        jobs=jobs,
    )


BUSY = status(
    [
        job(1, 0, RUNNING, DEVICE),
        job(2, 0, RUNNING, DEVICE),
        job(3, 0, WAITING, NONE),
        job(4, 1, WAITING, DEVICE),
        job(5, 2, SWAPPED, HOST),
    ]
)
