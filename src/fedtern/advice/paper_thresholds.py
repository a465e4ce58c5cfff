"""What the paper calls non-iid, small and low: the same for advice and for the claims."""

from __future__ import annotations

SMALL_BATCH = 20  # that of the paper's base: its figures go down from there
LOW_PARTICIPATION = 0.1  # likewise


def non_iid(classes: float, of_classes: int) -> bool:
    """Whether clients hold fewer than all classes."""
    return classes < of_classes


def small_batches(batch_size: int) -> bool:
    """Whether a client trains on fewer examples at a time than in the paper's base."""
    return batch_size < SMALL_BATCH


def low_participation(participation: float) -> bool:
    """Whether a client takes part less often than in the paper's base."""
    return participation < LOW_PARTICIPATION


def momentum_harms(batch_size: int, participation: float, *, skewed: bool) -> bool:
    """Where Lesson 6 has it; its example of a low rate is the base itself (Fig. 6, right)."""
    return small_batches(batch_size) or (skewed and participation <= LOW_PARTICIPATION)
