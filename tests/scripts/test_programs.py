from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from provision.errors import ProvisionError
from provision.programs import fault_hint, last_line, require_disk, run
from provision.progress import Progress


def test_a_program_gives_back_what_it_printed_on_both_streams(tmp_path: Path, progress: Progress) -> None:
    script = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    assert run([sys.executable, "-c", script], label="toy", log=tmp_path / "toy.log", progress=progress) == "out\nerr\n"


def test_a_missing_program_names_the_package_to_install(tmp_path: Path, progress: Progress) -> None:
    with pytest.raises(ProvisionError) as caught:
        run(["no-such-compiler"], label="toy: build", log=tmp_path / "toy.log", progress=progress)
    assert "no-such-compiler was not found" in caught.value.paragraph()
    assert "apt-get install no-such-compiler" in caught.value.paragraph()


def test_a_failure_names_the_log_the_last_line_and_the_remedy(tmp_path: Path, progress: Progress) -> None:
    script = "print('writing'); print('OSError: [Errno 28] No space left on device'); raise SystemExit(3)"
    with pytest.raises(ProvisionError) as caught:
        run([sys.executable, "-c", script], label="toy: build", log=tmp_path / "toy.log", progress=progress)
    paragraph = caught.value.paragraph()
    assert "exit code 3" in paragraph
    assert "No space left on device" in paragraph
    assert str(tmp_path / "toy.log") in paragraph
    assert "Free some disk space" in paragraph
    assert "\n" not in paragraph


def test_a_silent_program_shows_signs_of_life(tmp_path: Path, lines: list[str]) -> None:
    quick = Progress(say=lines.append, heartbeat_s=0.0)
    script = "print('37% done', flush=True); import sys; sys.stdin.read(); import time; time.sleep(1)"
    run([sys.executable, "-c", script], label="toy: build", log=tmp_path / "toy.log", progress=quick)
    assert any("toy: build … 37% done" in line for line in lines)


def test_a_program_over_its_time_is_ended_with_its_children(tmp_path: Path, progress: Progress) -> None:
    script = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with pytest.raises(ProvisionError, match="no end after"):
        run([sys.executable, "-c", script], label="toy", log=tmp_path / "toy.log", progress=progress, timeout_s=1.0)
    child = int((tmp_path / "toy.log").read_text())
    deadline_s = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)  # an orphan is reaped by init, a moment after it was killed
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_the_last_line_skips_blank_lines_and_index_warnings(tmp_path: Path) -> None:
    log = tmp_path / "pip.log"
    assert last_line(log) == ""
    log.write_text("[1/9] a\r[2/9] b\nWARNING: Location is ignored\n\n")
    assert last_line(log) == "[2/9] b"


def test_an_unknown_fault_keeps_the_general_hint() -> None:
    assert fault_hint("strange", otherwise="Read the log") == "Read the log"
    assert "do not use it" in fault_hint("THESE PACKAGES DO NOT MATCH THE HASHES", otherwise="")


def test_a_full_disk_is_found_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match=r"needs about 1000000000\.0 GB"):
        require_disk(tmp_path, needed_bytes=10**18, label="The models")
