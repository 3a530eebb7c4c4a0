"""What every result can do: be printed, saved, and asked for errors."""

import dataclasses
import pathlib

from tf_mixprec.reports import html
from tf_mixprec.reports import json_text
from tf_mixprec.reports import markdown
from tf_mixprec.reports import tables
from tf_mixprec.reports import text
from tf_mixprec.reports.document import ERROR
from tf_mixprec.reports.document import LEVELS
from tf_mixprec.reports.document import Document
from tf_mixprec.reports.document import Finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Base of the records that `mp.audit`, `mp.diagnose` and others return.

    A subclass is a frozen dataclass that says what there is to show of it.

    Args:
        verdict: The result in one sentence.
        findings: What a user should know, the worst first.
    """

    verdict: str
    findings: tuple[Finding, ...] = ()

    def document(self) -> Document:
        """Returns what there is to show."""
        raise NotImplementedError

    @property
    def has_errors(self) -> bool:
        """Whether a finding has the level `"error"`."""
        return any(each.level == ERROR for each in self.findings)

    def __str__(self) -> str:
        """The report in plain text."""
        return text.rendered(self.document())

    def to_markdown(self) -> str:
        """Returns the report in Markdown, without figures."""
        return markdown.rendered(self.document())

    def to_html(self) -> str:
        """Returns one page that needs nothing else, figures included.

        Figures need matplotlib, `pip install "tf_mixprec[report]"`; without it
        the page says so in their place.
        """
        return html.rendered(self.document())

    def to_csv(self) -> str:
        """Returns the tables as comma-separated values, below each other."""
        return tables.rendered(self.document())

    def to_json(self) -> str:
        """Returns all fields.

        JSON has no inf and nan: they are the strings `"inf"`, `"-inf"` and
        `"nan"`.
        """
        return json_text.rendered(dataclasses.asdict(self))

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the report to a file.

        Args:
            path: Its suffix says what: `.html`, `.md`, `.json`, `.csv` or
                `.txt`.

        Raises:
            ValueError: If the suffix is none of these.
        """
        path = pathlib.Path(path)
        render = _RENDERERS.get(path.suffix)
        if render is None:
            raise ValueError(
                "`path` must end in one of "
                f"{', '.join(_RENDERERS)}, because that says what is written. "
                f"Received: path={str(path)!r}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(self), encoding="utf-8")

    def write_summary(self, log_dir: str, step: int = 0) -> None:
        """Writes the report for TensorBoard: text, and numbers by layer.

        Args:
            log_dir: The directory that TensorBoard reads.
            step: Int: the step to write it at.
        """
        from tf_mixprec.reports import summary  # TensorFlow

        summary.write(self.document(), log_dir, step)


_RENDERERS = {
    ".html": Report.to_html,
    ".md": Report.to_markdown,
    ".json": Report.to_json,
    ".csv": Report.to_csv,
    ".txt": Report.__str__,
}
SUFFIXES = tuple(_RENDERERS)


def ranked(findings: list[Finding]) -> tuple[Finding, ...]:
    """Returns findings, the worst level first, else in their order."""
    return tuple(sorted(findings, key=lambda each: LEVELS.index(each.level)))
