"""The stories of the transcripts in tests/golden/transcripts."""

from collections.abc import Callable

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.protocol import Done, Offload, Order, ReclaimRequest, Release, ReleaseBlocks, Upload
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.scheduler.machine.scheduler_events import Cancel, Submit
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.golden.story_server import Said, StoryJob, StorySetup
from tests.golden.words import Note, Story, copied, first, plan_of

TEN_MS = CostProfile(prefill=(PrefillCost(16, 0.010), PrefillCost(64, 0.040)), decode=(DecodeCost(1, 16, 0.010),))
"""A decode takes 10 ms, and so the first level's quantum is 10 ms; a prefill takes 10 ms for every 16 tokens."""


def lifted(job: str) -> Callable[[Said], bool]:
    """The order that puts the job, which was on a lower level, on level 0."""
    return lambda said: (
        isinstance(said.message, Order)
        and any(change.job_id == job and change.rank.level == 0 for change in said.message.changes)
    )


SHORT_AFTER_LONG = Story(
    name="short_after_long",
    title="A short job arrives while a long one runs, and the pool is for one",
    about="""Long has the device to itself and is on level 2 when short comes and outranks it. Both do not fit,
    so long gives its blocks up as soon as no plan names it any more, and its KV cache goes to the host. Short runs at
    once in the block that needs no copying. When it is over long comes back and goes on where it was: no token of it is
    computed twice.""",
    setup=StorySetup(
        scheduler=SchedulerConfig(
            policy=PolicyName.SKIP_JOIN_MLFQ, max_batch=1, plans_in_flight=2, starvation_limit_s=None
        ),
        kv=KvConfig(kv_policy_named("reactive")),
        profile=TEN_MS,
        device_blocks=3,
        host_blocks=6,
        jobs=(
            StoryJob("long", 0.001, prompt_tokens=24, max_tokens=16, output_tokens=7),
            StoryJob("short", 0.045, prompt_tokens=12, max_tokens=8, output_tokens=2),
        ),
    ),
    notes=(
        Note(
            """Its prompt takes 15 ms, longer than the quantum of level 0: long joins level 1 (skip-join). Two plans are
            in flight, so that the worker never waits for the scheduler.""",
            first(Submit, "long"),
        ),
        Note(
            """Short's prompt fits the quantum of level 0, and long is on level 2 by now. Long holds all three blocks.
            Plan 3 runs and plan 4 waits at the worker, both with long: no new plan names it, and consent comes when
            plan 4 is finished.""",
            first(Submit, "short"),
        ),
        Note(
            """28 tokens of long are valid, in two of its blocks. The third is copied nowhere and is short's at
            once: short need not wait for the copy.""",
            first(Offload, "long"),
        ),
        Note(
            "The copy has ended, and only now are the blocks that it read free. Short grows into one ahead of need.",
            copied(3),
        ),
        Note(
            """Plan 7 was sent before anybody could know that plan 6 makes short's last token. Short's blocks stay its
            own until plan 7 is finished, and what that made is dropped.""",
            first(Release, "short"),
        ),
        Note("There is room again, and nobody ranks higher: long comes back.", first(Upload, "long")),
        Note("It goes on with token 28, the first that it had no KV of.", plan_of("long", 28)),
    ),
)

CANCEL_DURING_OFFLOAD = Story(
    name="cancel_during_offload",
    title="A job is cancelled while its KV cache is on its way to the host",
    about="""As long gives way to short, its client leaves. Nobody needs the copy any more, but it runs, and what it
    reads must not be overwritten below it: the blocks, of either pool, are given away when it has ended and not when
    long is forgotten. Here short waits for just these blocks.""",
    setup=StorySetup(
        scheduler=SchedulerConfig(
            policy=PolicyName.SKIP_JOIN_MLFQ, max_batch=1, plans_in_flight=2, starvation_limit_s=None
        ),
        kv=KvConfig(kv_policy_named("reactive")),
        profile=TEN_MS,
        device_blocks=3,
        host_blocks=6,
        copy_s=0.010,
        jobs=(
            StoryJob("long", 0.001, prompt_tokens=24, max_tokens=16, output_tokens=16, cancel_s=0.060),
            StoryJob("short", 0.045, prompt_tokens=20, max_tokens=8, output_tokens=1),
        ),
    ),
    notes=(
        Note("Short needs two blocks for its prompt, and gets all of them or none.", first(ReclaimRequest, "long")),
        Note("The copy of two blocks takes 20 ms. One block is free at once, too little for short.", first(Offload)),
        Note(
            "3 ms later the client leaves. No plan names long, so its release follows at once.", first(Cancel, "long")
        ),
        Note("The worker forgets the tables and goes on copying.", first(ReleaseBlocks, "long")),
        Note("Now the blocks are free, on the device for short, and on the host.", first(Done)),
    ),
)

PROMOTION = Story(
    name="promotion",
    title="A job that waited as long as the starvation limit is lifted to the top",
    about="""Patient has a long prompt and joins level 2. Short jobs come one after the other, join level 0 and pass it.
    After 50 ms of waiting patient is promoted: it keeps its place behind whoever is on level 0 already, and is before
    all who come later. There is room for the KV of everybody, so that only the order decides.""",
    setup=StorySetup(
        scheduler=SchedulerConfig(
            policy=PolicyName.SKIP_JOIN_MLFQ, max_batch=1, plans_in_flight=2, starvation_limit_s=0.050
        ),
        kv=KvConfig(kv_policy_named("proactive")),
        profile=TEN_MS,
        device_blocks=32,
        host_blocks=32,
        jobs=(
            StoryJob("first", 0.001, prompt_tokens=16, max_tokens=8, output_tokens=2),
            StoryJob("patient", 0.005, prompt_tokens=64, max_tokens=8, output_tokens=1),
            StoryJob("second", 0.020, prompt_tokens=16, max_tokens=8, output_tokens=2),
            StoryJob("third", 0.040, prompt_tokens=16, max_tokens=8, output_tokens=2),
            StoryJob("fourth", 0.060, prompt_tokens=16, max_tokens=8, output_tokens=1),
            StoryJob("fifth", 0.065, prompt_tokens=16, max_tokens=8, output_tokens=1),
        ),
    ),
    notes=(
        Note("A prompt of 40 ms belongs to level 2. From now on patient waits.", first(Submit, "patient")),
        Note("Second joins level 0, above patient, although it came later.", first(Submit, "second")),
        Note("Third does the same.", first(Submit, "third")),
        Note(
            "Fourth comes when patient has waited for 55 ms, but the order changes between iterations.",
            first(Submit, "fourth"),
        ),
        Note(
            "An iteration has ended: third ran and is demoted, patient waited and is promoted, to after fourth.",
            lifted("patient"),
        ),
        Note("Fifth is of level 0 too, but comes too late to pass.", first(Submit, "fifth")),
        Note("Patient runs, before fifth. Its prompt of 64 tokens is one iteration.", plan_of("patient", 0)),
        Note("Patient has had its iteration; after what was planned ahead, fifth is next.", plan_of("fifth", 0)),
    ),
)

STORIES = (SHORT_AFTER_LONG, CANCEL_DURING_OFFLOAD, PROMOTION)
