"""What a setting that cannot work is told with."""

from __future__ import annotations

__all__ = ["ConfigError", "require"]


class ConfigError(ValueError):
    """A setting that cannot work; the message is one line: what, where, what to do."""


def require(condition: bool, message: str) -> None:
    """Raises ``ConfigError`` with the message where the condition does not hold."""
    if not condition:
        raise ConfigError(message)
