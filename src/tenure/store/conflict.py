"""When transactions meet."""


class Overtaken(Exception):
    """Somebody else changed what this transaction had read; it is rolled back and tried again."""
