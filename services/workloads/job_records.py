"""What a trace run measured: `result.json` and `jobs.jsonl`. The live bench and simulations write the same files.

All times of a job count from the start of the run. JCT and TTFT count from the scheduled arrival, so that a late client
cannot flatter the server. Failed jobs are counted and left out of the rest. A distribution over no values
has null for each of its figures.
"""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.domain.server_status import ServerCounters

Distribution = dict[str, float | None]


@dataclass(slots=True)
class JobRecord:
    """One job of a trace run. `gaps_s` are the times between its output tokens; `error` is None for a job that ended
    well.
    """

    job_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_reason: str | None = None
    preemptions: int = 0
    error: str | None = None
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))

    def add_tokens(self, count: int, now_s: float) -> None:
        """Counts `count` tokens that arrived at `now_s`."""
        if count <= 0:
            return
        if self.last_token_s is None:
            self.first_token_s = now_s
        else:
            self.gaps_s.append(now_s - self.last_token_s)
        self.gaps_s.extend([0.0] * (count - 1))
        self.last_token_s = now_s
        self.output_tokens += count

    @property
    def worst_gap_s(self) -> float | None:
        """The longest wait for a token after the first."""
        return max(self.gaps_s, default=None)

    @property
    def jct_s(self) -> float:
        """Job completion time of a job that ended well."""
        assert self.last_token_s is not None, self.job_id
        return self.last_token_s - self.arrival_s

    @property
    def ttft_s(self) -> float:
        """Time to first token of a job that ended well."""
        assert self.first_token_s is not None, self.job_id
        return self.first_token_s - self.arrival_s

    def line(self) -> str:
        """The job's line in `jobs.jsonl`."""
        names = (
            "arrival_s",
            "first_token_s",
            "last_token_s",
            "prompt_tokens",
            "output_tokens",
            "finish_reason",
            "preemptions",
        )
        fields = {name: _rounded(getattr(self, name)) for name in (*names, "worst_gap_s", "error")}
        return json.dumps({"id": self.job_id, **fields})


def _rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value


def percentile(ascending: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest ranks."""
    place = share * (len(ascending) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)


def distribution(values: Sequence[float]) -> Distribution:
    """Mean, p50, p95, p99 and max."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    ascending = sorted(values)
    return {
        "mean": round(math.fsum(ascending) / len(ascending), 6),
        "p50": round(percentile(ascending, 0.50), 6),
        "p95": round(percentile(ascending, 0.95), 6),
        "p99": round(percentile(ascending, 0.99), 6),
        "max": round(ascending[-1], 6),
    }


def result(config: Mapping[str, object], records: Sequence[JobRecord], counters: ServerCounters) -> dict[str, object]:
    """The content of `result.json`; `counters` are those of this run alone."""
    good = [record for record in records if record.error is None]
    start_s = min((record.arrival_s for record in records), default=0.0)
    duration_s = max((record.last_token_s or 0.0 for record in good), default=start_s) - start_s
    output_tokens = sum(record.output_tokens for record in good)
    worst_gaps_s = [gap for record in good if (gap := record.worst_gap_s) is not None]
    return {
        "config": dict(config),
        "jobs": len(records),
        "failed": len(records) - len(good),
        "duration_s": round(duration_s, 6),
        "output_tokens_per_s": round(output_tokens / duration_s, 3) if duration_s > 0 else 0.0,
        "jct_s": distribution([record.jct_s for record in good]),
        "ttft_s": distribution([record.ttft_s for record in good]),
        "inter_token_s": distribution([gap for record in good for gap in record.gaps_s]),
        "per_output_token_s": distribution([record.jct_s / record.output_tokens for record in good]),
        "worst_gap_s": distribution(worst_gaps_s),
        "scheduler": {
            "preemptions": counters.preemptions,
            "promotions": counters.promotions,
            "demotions": counters.demotions,
            "iterations": counters.iterations,
            "busy_s": round(counters.busy_s, 6),
            "plan_wait_s": round(counters.plan_wait_s, 6),
        },
        "kv": {
            "offloaded_bytes": counters.offloaded_bytes,
            "uploaded_bytes": counters.uploaded_bytes,
            "recomputed_tokens": counters.recomputed_tokens,
            "stall_s": round(counters.stall_s, 6),
        },
    }


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Writes a file of lines, whole or not at all. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    partial.replace(path)


def write_result_files(folder: Path, content: Mapping[str, object], records: Sequence[JobRecord]) -> None:
    """Writes `result.json` and `jobs.jsonl` into `folder`, which is made if needed. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "jobs.jsonl", [record.line() for record in records])
    write_lines(folder / "result.json", json.dumps(content, indent=2).splitlines())
