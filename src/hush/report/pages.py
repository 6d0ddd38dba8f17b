"""What people read of a run, in its folder."""

from __future__ import annotations

from hush.engines.result import Result
from hush.engines.rundir import RunDir
from hush.report.certificate_page import certificate_page
from hush.report.page import run_page


def write_pages(folder: RunDir, result: Result) -> None:
    """Certificate and report, each a page of its own."""
    write_certificate(folder)
    folder.write_bytes("report.html", run_page(result, folder.read_rounds("diagnostics.jsonl", result.rounds)).encode())


def write_certificate(folder: RunDir) -> None:
    """The certificate as a page, with who signed it where clients are real."""
    from hush.federation.vouching import signers

    folder.write_bytes("certificate.html", certificate_page(folder.read_json("certificate.json"), signers(folder)).encode())
