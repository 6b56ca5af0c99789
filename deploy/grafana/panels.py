"""The panels of the dashboard: what they ask Prometheus, and in which unit the answer is. `write.py` makes the JSON.

`$group` is the dashboard's choice of worker groups, `$__rate_interval` Grafana's of a window.
"""

from dataclasses import dataclass

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and the legend of its series, in which `{{label}}` stands for a label's value."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time. `unit` is Grafana's name of it; `most` is the top of its axis, if it has one."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    what: str
    stacked: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "", selector: str = "") -> str:
    """The increase per second of a counter, over all services, told apart by these labels."""
    return f"sum{f' by ({by}) ' if by else ''}(rate(fastserve:{metric}{selector}[$__rate_interval]))"


def of_groups(metric: str, by: str = "group") -> str:
    """The rate of a counter of the chosen groups."""
    return rate(metric, by, '{group=~"$group"}')


def quantiles(histogram: str) -> tuple[Query, ...]:
    return tuple(
        Query(f"histogram_quantile({share}, {rate(f'{histogram}_bucket', 'le')})", f"p{share * 100:.0f}")
        for share in QUANTILES
    )


def mean(histogram: str, legend: str) -> Query:
    return Query(f"{rate(f'{histogram}_sum')} / {rate(f'{histogram}_count')}", legend)


CLIENTS = PanelRow(
    "What clients see",
    (
        Panel(
            "Tokens",
            "short",
            (Query(rate("generation_tokens_total"), "output"), Query(rate("prompt_tokens_total"), "prompt")),
            "Tokens per second, over all groups.",
        ),
        Panel(
            "Requests that ended",
            "reqps",
            (Query(rate("request_success_total", "finished_reason"), "{{finished_reason}}"),),
            "Choices per second, by why they ended.",
            stacked=True,
        ),
        Panel(
            "Refusals",
            "reqps",
            (Query(rate("admission_rejections_total", "reason"), "{{reason}}"),),
            "Jobs per second that were not admitted.",
            stacked=True,
        ),
        Panel("Time to first token", "s", quantiles("time_to_first_token_seconds"), "From arrival to the first token."),
        Panel("Time between tokens", "s", quantiles("inter_token_latency_seconds"), "Between two tokens of a choice."),
        Panel("Latency", "s", quantiles("e2e_request_latency_seconds"), "From arrival to the end of a choice."),
    ),
)

QUEUES = PanelRow(
    "Queues",
    (
        Panel(
            "Jobs by state",
            "short",
            (Query('sum by (state) (fastserve:jobs{group=~"$group"})', "{{state}}"),),
            "Every job is in one state.",
            stacked=True,
        ),
        Panel(
            "Jobs by level",
            "short",
            (Query('sum by (level) (fastserve:jobs{group=~"$group"})', "level {{level}}"),),
            "The queues of the policy, the highest level first; one for a policy without levels.",
            stacked=True,
        ),
        Panel(
            "Preemptions, promotions, demotions, moves",
            "ops",
            tuple(
                Query(of_groups(f"{name}_total", ""), name.removeprefix("num_"))
                for name in ("num_preemptions", "num_promotions", "num_demotions", "num_job_moves")
            ),
            "Per second; a move is from one worker group to another.",
        ),
        Panel(
            "Backlog",
            "s",
            (Query("sum(fastserve:backlog_seconds)", "backlog"),),
            "Seconds of one group that all admitted jobs still cost.",
        ),
        Panel(
            "Where a request's time went",
            "s",
            (
                mean("request_queue_time_seconds", "queue"),
                mean("request_prefill_time_seconds", "prefill"),
                mean("request_decode_time_seconds", "decode"),
            ),
            "Means. Decode includes the time in which a job was preempted.",
            stacked=True,
        ),
        Panel(
            "Error of ENST",
            "s",
            tuple(
                Query(
                    f"histogram_quantile({share}, {of_groups('enst_error_seconds_bucket', 'le, direction')})",
                    f"p{share * 100:.0f} {{{{direction}}}}",
                )
                for share in (0.5, 0.9)
            ),
            "How far jobs' waits were from the estimate; policies with levels alone have one.",
        ),
    ),
)

KV = PanelRow(
    "KV cache",
    (
        Panel(
            "Pools",
            "percentunit",
            (
                Query('fastserve:kv_cache_usage_perc{group=~"$group"}', "device {{group}}"),
                Query('fastserve:kv_offload_cpu_cache_usage_perc{group=~"$group"}', "host {{group}}"),
            ),
            "Share of the blocks that is in use.",
            most=1.0,
        ),
        Panel(
            "Moved between device and host",
            "Bps",
            (
                Query(of_groups("kv_offloaded_bytes_total"), "offloaded {{group}}"),
                Query(of_groups("kv_uploaded_bytes_total"), "uploaded {{group}}"),
            ),
            "Bytes of KV per second.",
        ),
        Panel(
            "Computed again",
            "short",
            (Query(of_groups("recomputed_tokens_total"), "tokens {{group}}"),),
            "Tokens per second whose KV had been dropped.",
        ),
    ),
)

ENGINE = PanelRow(
    "Workers",
    (
        Panel(
            "A worker's time",
            "percentunit",
            tuple(
                Query(of_groups(f"worker_{what}_seconds_total"), f"{legend} {{{{group}}}}")
                for what, legend in (
                    ("busy", "computing"),
                    ("stall", "waiting for copies"),
                    ("plan_wait", "waiting for plans"),
                )
            ),
            "Shares of the time; the rest had no job.",
            stacked=True,
        ),
        Panel(
            "Share of time waiting for plans",
            "percentunit",
            (Query('fastserve:worker_plan_wait_share{group=~"$group"}', "since its start {{group}}"),),
            "Of the time in which the worker had jobs.",
            most=1.0,
        ),
        Panel("Iterations", "ops", (Query(of_groups("num_iterations_total"), "{{group}}"),), "Per second."),
        Panel(
            "Tokens of an iteration",
            "short",
            (Query(f"{of_groups('iteration_tokens_sum')} / {of_groups('iteration_tokens_count')}", "mean {{group}}"),),
            "Prefill and decode together.",
        ),
        Panel(
            "Worker groups",
            "short",
            (
                *(Query(f"sum(fastserve:groups_{what})", what) for what in ("ready", "wanted", "busy")),
                Query('sum by (group) (fastserve:worker_lives_total{group=~"$group"})', "lives {{group}}"),
            ),
            "Those that serve, those that the backlog asks for, and groups' worth of jobs that run. A worker begins "
            "another life when a stream to a peer is lost.",
        ),
        Panel(
            "Memory",
            "bytes",
            (Query('process_resident_memory_bytes{job=~"(.+/)?fastserve"}', "{{instance}}"),),
            "Resident.",
        ),
    ),
)

ROWS = (CLIENTS, QUEUES, KV, ENGINE)
