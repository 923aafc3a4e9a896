"""Pure values and decisions: no I/O, no clock, no configuration, no logging."""
