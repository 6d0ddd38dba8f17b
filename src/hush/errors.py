"""What can go wrong, each with one sentence for the person who must fix it."""

from __future__ import annotations


class HushError(Exception):
    """Base of every error that Hush raises on purpose; its text is one sentence a user can act on."""


class UsageError(HushError):
    """A setting, flag or name that cannot be right."""


class DataError(HushError):
    """A data file that is missing, truncated or not what its checksum promises."""


class Diverged(HushError):
    """Training produced NaN or infinity; what was reached before is kept."""


class LostProcess(HushError):
    """Another process of this run ended; what was reached before is kept."""


class NoGuarantee(HushError):
    """No privacy guarantee is proved for this combination: the reason, and what to change to get one."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason} {fix}")
        self.reason = reason
        self.fix = fix
