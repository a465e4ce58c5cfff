"""Commands of ``fedtern`` that apply the paper: ``fedtern reproduce`` and ``fedtern advise``."""
