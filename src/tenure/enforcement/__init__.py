"""Enforcement filters: the rules of a site for leases, besides policies and capacity."""
