"""The runtimes room."""
