"""The model_def room."""
