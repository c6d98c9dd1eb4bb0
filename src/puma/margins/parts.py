"""Finished parts of a long measurement: what is there, what is missing, and how they become one file."""

import contextlib
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from puma.errors import PumaError
from puma.margins.job import Job
from puma.margins.table import read_footer, read_rows, write_whole


@dataclass(frozen=True)
class Parts:
    """The folder beside the final file in which finished parts wait."""

    out: Path
    job: Job

    @property
    def folder(self) -> Path:
        """Where the parts are."""
        return self.out.with_name(f"{self.out.name}.parts")

    def path(self, part: int) -> Path:
        """File of one part."""
        return self.folder / f"part-{part:06d}.parquet"

    def finished(self) -> bool:
        """Is the final file there; one made from something else raises."""
        if not self.out.exists():
            return False
        self._refuse_others(self.out)
        return True

    def missing(self, wanted: range) -> list[int]:
        """Which of these parts have to be measured; parts made from something else raise, broken ones go."""
        return [part for part in wanted if not self._is_whole(part)]

    def _is_whole(self, part: int) -> bool:
        path = self.path(part)
        if not path.exists():
            return False
        start, stop = self.job.span(part)
        try:
            read_footer(path)
            rows = read_rows(path).num_rows
        except PumaError:  # cut short or damaged: measured again
            path.unlink()
            return False
        self._refuse_others(path)
        return rows == stop - start

    def _refuse_others(self, path: Path) -> None:
        differences = self.job.differences(read_footer(path))
        if differences:
            raise PumaError(
                f"{path} was made from something else ({'; '.join(differences)}); "
                "give another --out, or --no-resume to start over."
            )

    def merge(self) -> None:
        """Write the final file from all parts, then remove them."""

        def rows() -> Iterator[pa.Table]:
            for part in range(self.job.parts):
                yield read_rows(self.path(part)).replace_schema_metadata(self.job.footer())

        write_whole(self.out, rows(), self.job.footer())
        self.clear()

    def start_over(self) -> None:
        """Remove an earlier result and its parts; a file that is not of margins, or a run under way, raises."""
        if self.out.exists():
            read_footer(self.out)
        if self.folder.is_dir():
            with self.locked():
                self.clear()
        self.out.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the parts, and their folder if nothing else is in it."""
        for path in [*self.folder.glob("part-*"), *self.folder.glob(".part-*"), self.folder / "lock"]:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from writing the same parts; the lock dies with its process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise PumaError(
                    f"another process is writing {self.out}; wait for it, or give another --out."
                ) from error
            yield
