"""The results room."""
