"""Rules about relics of old torch."""
