"""All figures, in the order of the report."""

from evaluation import beyond, paper_n26, paper_v1
from evaluation.values import Figure

FIGURES: tuple[Figure, ...] = (*paper_v1.FIGURES, *paper_n26.FIGURES, *beyond.FIGURES)
