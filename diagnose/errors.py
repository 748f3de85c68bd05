"""The exceptions that Curve Doctor raises on purpose.

DiagnoseError                what all of them are
├── ReadError                a path or a log that cannot be read
│   └── NotALog              readable, but holds no training curve
├── ConfigError              an unknown rule, threshold or option, or a value out of its bounds
├── TrainingInputError       a model, data or tokenizer that cannot be trained with as it is
└── MissingExtraError        a part that needs a package which is not installed
"""

from __future__ import annotations


class DiagnoseError(Exception):
    """What every exception of this package is."""


class ReadError(DiagnoseError):
    """A path or a log that cannot be read."""


class NotALog(ReadError):
    """The file is readable but holds no training curve."""


class ConfigError(DiagnoseError):
    """An unknown rule, threshold or option, or a value out of its bounds."""


class TrainingInputError(DiagnoseError):
    """A model, data or tokenizer that cannot be trained with as it is; the message says the cure."""


class MissingExtraError(DiagnoseError, ImportError):
    """A part of this package needs another package that is not installed."""
