"""When a stamp may be written, and what one says."""

from __future__ import annotations

import msgspec
import pytest

from kvrelease.artifacts import Verdict
from kvrelease.errors import InputError
from kvrelease.stores.stamp import Permission, Stamp, StampedFile, required_stamp, stamp_verdict
from tests.builders import NAMESPACE, OLD_KV

OTHER = f"{OLD_KV}-undeclared-e0"
WANTED = Stamp(namespace=NAMESPACE)
NOTHING = Permission()
FILE = StampedFile(name="a.bin", size_bytes=3, sha256="0" * 64)
CHANGED = msgspec.structs.replace(FILE, sha256="1" * 64)


def required(
    found: Stamp | None = None, *, has_entries: bool = False, permission: Permission = NOTHING, wanted: Stamp = WANTED
) -> Stamp | None:
    return required_stamp(wanted, found=found, has_entries=has_entries, permission=permission, place="kv")


def test_an_empty_store_is_stamped() -> None:
    assert required() == WANTED


@pytest.mark.parametrize("has_entries", [False, True])
def test_a_store_that_is_stamped_so_needs_nothing_and_keeps_its_reason(has_entries: bool) -> None:
    adopted = msgspec.structs.replace(WANTED, adopted="copied from its own bucket")
    assert required(adopted, has_entries=has_entries) is None


def test_entries_without_a_stamp_are_adopted_for_a_reason_only() -> None:
    with pytest.raises(InputError, match="nobody knows which weights made them") as caught:
        required(has_entries=True)
    assert "--adopt-existing" in (caught.value.hint or "")
    with pytest.raises(InputError):
        required(has_entries=True, permission=Permission(replaces=True))
    adopted = required(has_entries=True, permission=Permission(adopts="its first pod wrote them"))
    assert adopted == msgspec.structs.replace(WANTED, adopted="its first pod wrote them")


def test_an_empty_store_carries_no_reason_though_one_was_given() -> None:
    assert required(permission=Permission(adopts="to be sure")) == WANTED


def test_another_namespaces_stamp_gives_way_to_a_flag_and_its_entries_to_a_reason_besides() -> None:
    found = Stamp(namespace=OTHER)
    for permission in (NOTHING, Permission(adopts="why")):
        with pytest.raises(InputError, match=f"stamped for {OTHER}"):
            required(found, permission=permission)
    assert required(found, permission=Permission(replaces=True)) == msgspec.structs.replace(WANTED, replaced=OTHER)
    with pytest.raises(InputError, match="the stamp of another namespace"):
        required(found, has_entries=True, permission=Permission(replaces=True))
    both = required(found, has_entries=True, permission=Permission(replaces=True, adopts="same weights"))
    assert both == msgspec.structs.replace(WANTED, replaced=OTHER, adopted="same weights")


def test_a_file_that_changed_under_its_stamp_needs_the_flag() -> None:
    found, wanted = Stamp(namespace=NAMESPACE, file=FILE), Stamp(namespace=NAMESPACE, file=CHANGED)
    with pytest.raises(InputError, match="changed after it was stamped"):
        required(found, wanted=wanted)
    assert required(found, wanted=wanted, permission=Permission(replaces=True)) == wanted
    assert required(found, wanted=found) is None


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Stamp(namespace=NAMESPACE, file=FILE), Verdict.PASS),
        (Stamp(namespace=OTHER, file=FILE), Verdict.FAIL),
        (Stamp(namespace=NAMESPACE, file=CHANGED), Verdict.FAIL),
        (Stamp(namespace=NAMESPACE), Verdict.FAIL),
        (None, Verdict.INCONCLUSIVE),
    ],
)
def test_no_stamp_is_no_pass(found: Stamp | None, verdict: Verdict) -> None:
    assert stamp_verdict(found, namespace=NAMESPACE, file=FILE)[0] is verdict
