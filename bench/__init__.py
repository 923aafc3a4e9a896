"""How fast Tenure is, and how we know: ``python -m bench``."""
