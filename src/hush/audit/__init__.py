"""Attacks on the code that runs: what it claims is held against what somebody who watches it can find out."""

from hush.audit.audit import Audit, audit

__all__ = ["Audit", "audit"]
