"""Area under the receiver operating characteristic (AUC) of scores.

Formula: the share of pairs of a positive and a negative sample in which the positive one has the greater score, equal
scores counting half (Mann and Whitney 1947; Hanley and McNeil 1982). It is (R − p (p + 1) / 2) / (p · n), where R is
the sum of the ranks of the p positive samples among all, and n the number of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array


@dataclass(frozen=True, slots=True)
class AnomalyVerdict:
    """Score of an anomaly detector, greater for anomalies, and its verdict."""

    score: float
    is_anomalous: bool


def roc_auc(scores: Array, is_positive: Array) -> float:
    """Return the AUC; NaN if all samples are of one kind. A score that is NaN is the least one."""
    positive = int(is_positive.sum())
    negative = len(is_positive) - positive
    if not positive or not negative:
        return math.nan
    ordered = np.where(np.isnan(scores), -np.inf, scores)
    _, places, counts = np.unique(ordered, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[places]  # equal scores share the mean of their ranks
    return float((ranks[is_positive].sum() - positive * (positive + 1) / 2) / (positive * negative))
