"""The waiting list: leases for which there was no room, and the order in which they are served."""
