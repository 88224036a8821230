"""The harness room."""
