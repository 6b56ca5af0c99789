"""A figure of a few short simulations, and what they give."""

from pathlib import Path

from evaluation.command import evaluate
from evaluation.finished_runs import FinishedRuns
from evaluation.panel_metrics import JCT
from evaluation.paper_v1 import OPT_13B
from evaluation.results import Evaluation
from evaluation.systems import FCFS, SKIP_JOIN, SRPT
from evaluation.values import Axis, Figure, Lengths, Panel, Points, Scale, Traffic
from services.workloads.workload import WorkloadKind

CODE = "0123456789abcdef"
TINY = Scale("quick", jobs=12, seeds=(0, 1), most_points=2, full=False)
SHORT = Traffic(Lengths(WorkloadKind.ZIPF, theta=1.0, max_prompt_tokens=64, max_output_tokens=32), cv=2.0)
FIGURE = Figure(
    name="tiny",
    shows="no paper's",
    title="A figure for tests",
    caption="OPT-13B.",
    panels=(
        Panel("rate", Axis.LOAD, Points((0.5, 0.9, 1.2), (2.0,)), OPT_13B, SHORT, (FCFS, SKIP_JOIN, SRPT), JCT, 1.0),
        Panel("bursts", Axis.CV, Points((1.0, 4.0)), OPT_13B, SHORT, (FCFS, SKIP_JOIN, SRPT), JCT),
    ),
)


def quiet(title: str, done: int, total: int) -> None:
    """A progress that shows nothing."""
    assert 0 <= done <= total, title


def evaluated(folder: Path, processes: int = 1) -> Evaluation:
    """All runs of the tiny figure; what is finished is kept in the folder."""
    return evaluate((FIGURE,), TINY, FinishedRuns(folder, CODE), processes, quiet)
