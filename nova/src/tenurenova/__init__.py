"""What Tenure installs beside Nova: the filter for its scheduler."""

__version__ = "0.1.0"
