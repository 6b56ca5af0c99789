"""Evaluations that several tests look at."""

from pathlib import Path

import pytest

from evaluation.catalogue import FIGURES
from evaluation.command import DEFAULT_OUT
from evaluation.results import Evaluation
from evaluation.tables import read_evaluation
from evaluation.values import CONCLUDED
from tests.evaluation.tiny_evaluation import evaluated


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """What a few short simulations give."""
    return evaluated(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="session")
def committed() -> Evaluation:
    """What the committed files say."""
    return read_evaluation(Path(__file__).parents[2] / DEFAULT_OUT, FIGURES, CONCLUDED)
