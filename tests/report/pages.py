"""Which document shows which artifact."""

from __future__ import annotations

from kvrelease.artifacts import Artifact
from kvrelease.binding.namespace import NamespaceReport
from kvrelease.binding.reloading.result import ReloadReport
from kvrelease.demo.figures import DemoReport
from kvrelease.prewarm.result import PrewarmReport
from kvrelease.release.check import ReleaseCheck
from kvrelease.release.diff_record import Diff
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.report.check import check_document
from kvrelease.report.demo import demo_document
from kvrelease.report.diff import diff_document
from kvrelease.report.document import Document
from kvrelease.report.fingerprint import fingerprint_document
from kvrelease.report.log import log_document
from kvrelease.report.namespace import namespace_document
from kvrelease.report.prewarm import prewarm_document
from kvrelease.report.prompts import prompts_document
from kvrelease.report.record import record_document
from kvrelease.report.reload import reload_document
from kvrelease.report.selection import selection_document
from kvrelease.report.verify import verify_document
from kvrelease.selection.result import Selection
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.record import Record
from kvrelease.workload.check import PromptsReport
from kvrelease.workload.log_report import LogReport


def page_of(artifact: Artifact) -> Document:  # noqa: PLR0911, PLR0912 - one per kind
    match artifact:
        case Fingerprint():
            return fingerprint_document(artifact)
        case ReleaseCheck():
            return check_document(artifact)
        case Diff():
            return diff_document(artifact)
        case NamespaceReport():
            return namespace_document(artifact)
        case PromptsReport():
            return prompts_document(artifact)
        case Selection():
            return selection_document(artifact)
        case LogReport():
            return log_document(artifact)
        case PrewarmReport():
            return prewarm_document(artifact)
        case Record():
            return record_document(artifact)
        case ReloadReport():
            return reload_document(artifact)
        case VerifyReport():
            return verify_document(artifact)
        case DemoReport():
            return demo_document(artifact)
        case _:
            raise AssertionError(f"no page for {type(artifact)}")
