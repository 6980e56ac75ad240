"""Similarity transform of key points, by singular values: what the gateway computes in the plane of complex numbers."""

from __future__ import annotations

import numpy as np

from gateway.common.domain.tensor import Array

FACE = np.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]])
"""Key points of a face in the template of ArcFace, of 112 x 112 pixels."""


def umeyama(points: Array, template: Array) -> Array:
    """Return the matrix [2, 3] of the least-squares similarity transform without mirroring (Umeyama, 1991)."""
    inner, outer = points - points.mean(axis=0), template - template.mean(axis=0)
    left, sizes, right = np.linalg.svd(outer.T @ inner / len(points))
    signs = np.array([1.0, np.sign(np.linalg.det(left) * np.linalg.det(right))])
    turned = left @ np.diag(signs) @ right * (sizes @ signs) / inner.var(axis=0).sum()
    return np.column_stack((turned, template.mean(axis=0) - turned @ points.mean(axis=0)))
