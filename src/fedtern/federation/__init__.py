"""What all transports share: rounds, presence, and one client's turn."""
