"""Thresholds behind the paper's words: "non-iid", "small", "low", "strong", "robust".

The advice and the check of the paper's claims use the same thresholds.
"""

from __future__ import annotations

SMALL_BATCH = 20
"""Batches below this size are small: it is that of the paper's base configuration (Table III)."""

LOW_PARTICIPATION = 0.1
"""Participation below this fraction is low: it is that of the paper's base configuration."""

STRONG_COMPRESSION = 32.0
"""Table I: a compression rate above this factor is strong."""

DOWNLOAD_COMPRESSION = 2.0
"""Downloads count as compressed above this factor; the paper gives none."""

ROBUST_GAP = 0.05
"""A method is robust if it loses at most this accuracy to uncompressed training on non-iid data.

The paper gives no threshold.
"""

SLIGHT_DIFFERENCE = 0.02
"""Differences in accuracy up to this are not significant; the paper gives no threshold."""


def non_iid(classes: float, num_classes: int) -> bool:
    """Return whether clients hold fewer than all classes."""
    return classes < num_classes


def small_batches(batch_size: int) -> bool:
    """Return whether batches are smaller than in the paper's base configuration."""
    return batch_size < SMALL_BATCH


def low_participation(participation: float) -> bool:
    """Return whether fewer clients take part than in the paper's base configuration."""
    return participation < LOW_PARTICIPATION


def momentum_harms(batch_size: int, participation: float, *, non_iid: bool) -> bool:
    """Return whether Lesson 6 advises against momentum.

    Its example of low participation is the base configuration itself (Figure 6, right).
    """
    return small_batches(batch_size) or (non_iid and participation <= LOW_PARTICIPATION)
