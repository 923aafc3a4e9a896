"""Filters: what a site says about which leases may be, beside policies and what there is room for."""
