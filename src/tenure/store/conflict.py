"""When transactions meet, and when one is wrong."""


class Overtaken(Exception):
    """Somebody else changed what this transaction had read; it is rolled back and tried again."""


class GaveWay(Overtaken):
    """Other transactions wait for what this one has locked for long; it is rolled back, and tried again after them."""


class Overbooked(Exception):
    """This transaction would promise something twice: a mistake of ours, so that it is of no use to try it again."""
