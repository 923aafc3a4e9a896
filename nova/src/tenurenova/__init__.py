"""What Tenure installs beside Nova: a filter for its scheduler, and a middleware for its API."""

__version__ = "0.1.0"
