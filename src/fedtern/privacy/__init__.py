"""Privacy: differential privacy of clients, and secure aggregation in ``privacy.secure``.

``CentralPrivacy`` adds noise on a server that the clients trust, ``LocalPrivacy`` on each client.
``docs/how-to/differential-privacy.md`` states the guarantee and its limits.
"""

from fedtern.privacy.accounting import largest_participations, privacy_loss
from fedtern.privacy.central import CentralPrivacy
from fedtern.privacy.local import LocalPrivacy
from fedtern.privacy.settings import PrivacySettings

__all__ = [
    "CentralPrivacy",
    "LocalPrivacy",
    "PrivacySettings",
    "largest_participations",
    "privacy_loss",
]
