"""Tenure: reservations of cloud resources over time."""
