"""The upkeep of the database."""
