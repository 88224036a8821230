"""Errors of the model_def room, one class a stage under one root.

ModelDefError
├── ConfigError      a configuration that cannot be built: raised when the configuration is made
├── InputError       a tensor of the wrong shape or dtype, or a combination that has no meaning: raised by forward
└── ConversionError  a torch module that has no equal here, or the other way round

All are ValueErrors. Each message is one line: what was expected, what came.
"""


class ModelDefError(ValueError):
    """Root of the errors raised by `crosshead.model_def`."""


class ConfigError(ModelDefError):
    """A configuration that cannot be built."""


class InputError(ModelDefError):
    """An input of the wrong shape or dtype, or inputs that have no meaning together."""


class ConversionError(ModelDefError):
    """A module that has no equal on the other side of a conversion."""
