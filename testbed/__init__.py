"""A real OpenStack control plane on one bare machine. See docs/contributor/testbed.md."""
