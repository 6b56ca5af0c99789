"""A worker group whose worker was told to end: which of its jobs end there, and which go on elsewhere. Pure.

Theory of operation. Such a group gets no new job. A job that is predicted to end within the time that is left ends
where it is, since moving means that its KV is computed again. The prediction is the router's: the measured cost model,
and the output that is expected. It is looked at again several times, and towards the end all that is left leaves. The
others are held: no further plan names them, and each leaves as soon as it has a
result for every plan that does (PROTOCOL rule 41), with its tokens and without its KV. They are held only while another
group can take them. Without one they run on, and what is left when the worker ends waits for the next group, as after a
death.
"""

from collections.abc import Mapping, Sequence

from services.domain.ids import JobId
from services.scheduler.machine.scheduler_events import Hold
from services.scheduler.routing.group_forecast import GroupForecast
from services.scheduler.routing.work_order import RoutedJob

TRUSTED_SHARE = 0.8
"""The jobs have this share of the time; the rest is for those whose predictions were wrong to leave."""
LOOKS = 10
"""How often it is looked which jobs will not end in time."""
LOOKED_BATCHES = 2
"""Jobs behind so many full batches leave without a prediction."""


class GroupDrain:
    """The end of one group's worker, which comes in `limit_s` seconds. Jobs may run until `until_s`."""

    def __init__(self, limit_s: float, now_s: float) -> None:
        self.until_s = now_s + TRUSTED_SHARE * limit_s
        self.look_s: float | None = now_s
        """When it is to be looked next."""
        self.takers: tuple[int, ...] = ()
        """The groups that could take jobs when it was last looked."""
        self.leaving: list[JobId] = []
        self._period_s = max(TRUSTED_SHARE * limit_s / LOOKS, 1e-3)

    def looked(self, now_s: float) -> None:
        """Jobs that will not end in time were looked for."""
        self.look_s = None if now_s >= self.until_s else min(now_s + self._period_s, self.until_s)


def leavers(draining: GroupForecast, takers: Sequence[GroupForecast], left_s: float) -> list[RoutedJob]:
    """The jobs that are to leave, best first, with `left_s` seconds left: those that some taker has room for, and that
    would not end in time.
    """
    widest = max((one.most_tokens for one in takers), default=0)
    looked = LOOKED_BATCHES * draining.batch_slots
    return [
        job
        for place, job in enumerate(draining.order)
        if job.whole_tokens <= widest and (place >= looked or draining.finish_s(job, job.rank) > left_s)
    ]


def decide_holds(
    drains: Mapping[int, GroupDrain],
    forecasts: Mapping[int, GroupForecast],
    takers: Sequence[GroupForecast],
    now_s: float,
) -> list[tuple[int, Hold]]:
    """What these groups must hold from now on, where that has changed: other groups can take their jobs, or some will
    not end in time after all.
    """
    holds: list[tuple[int, Hold]] = []
    names = tuple(one.number for one in takers)
    for number, drain in drains.items():
        is_due = drain.look_s is not None and now_s >= drain.look_s
        if drain.takers == names and not is_due:
            continue
        # Who was held stays so as long as the same groups can take it.
        kept = drain.leaving if drain.takers == names else []
        drain.takers = names
        drain.looked(now_s)
        found = [job.job_id for job in leavers(forecasts[number], takers, drain.until_s - now_s)]
        leaving = list(dict.fromkeys((*kept, *found)))
        if leaving != drain.leaving:
            drain.leaving = leaving
            holds.append((number, Hold(tuple(leaving))))
    return holds
