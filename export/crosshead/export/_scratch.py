"""A folder to work in beside what is being written, so that a finished file is moved and never copied."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from crosshead.export.artifact import ArtifactError


@contextlib.contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
    """Make `out` where it is not there, and a folder inside it that is gone afterwards.

    Raises:
        ArtifactError: it cannot be written.
    """
    missing = [each for each in (out, *out.parents) if not each.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=out, prefix=".export."))
    except OSError as error:
        raise ArtifactError(f"cannot write into {out}: {error.strerror}; give a writable folder with --out") from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):  # not empty: something was written
                folder.rmdir()
