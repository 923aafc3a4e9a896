"""What Tenure installs beside Nova: the filter for its scheduler, and the one before its API."""

__version__ = "0.1.0"
