"""Lengths of a given ratio of prompt to output."""

import pytest

from evaluation.paper_n26 import RATIO
from evaluation.ratio_lengths import SHARED_TOKENS, largest_lengths
from evaluation.values import FULL
from services.workloads.lengths import ZipfLengths


@pytest.mark.parametrize("ratio", FULL.of(RATIO.panels[0].points))
def test_means_have_the_ratio_that_is_asked_for(ratio: float) -> None:
    theta = RATIO.panels[0].traffic.lengths.theta
    assert theta is not None
    prompt_tokens, output_tokens = largest_lengths(ratio, theta)
    assert prompt_tokens + output_tokens == SHARED_TOKENS
    means = ZipfLengths(theta, prompt_tokens).mean / ZipfLengths(theta, output_tokens).mean
    assert means == pytest.approx(ratio, rel=0.2)
