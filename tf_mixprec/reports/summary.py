"""Documents as TensorBoard shows them."""

import re

import tensorflow as tf

from tf_mixprec.reports import markdown
from tf_mixprec.reports.document import Document
from tf_mixprec.reports.document import Finding
from tf_mixprec.reports.document import Table


def write(document: Document, log_dir: str, step: int = 0) -> None:
    """Writes a document for TensorBoard.

    Texts are Markdown, the numbers of findings are scalars named by code and
    layer, and figures are pictures where matplotlib is installed.

    Args:
        document: What to write.
        log_dir: The directory that TensorBoard reads.
        step: The step to write it at.
    """
    writer = tf.summary.create_file_writer(str(log_dir))
    with writer.as_default(step=step):
        _write_texts(document)
        for finding in document.findings:
            if finding.value is not None:
                tf.summary.scalar(_tag(finding), finding.value)
        _write_figures(document)
    writer.close()


def _write_texts(document: Document) -> None:
    tf.summary.text("verdict", document.verdict)
    if document.facts:
        tf.summary.text("facts", markdown.facts_text(document))
    if document.findings:
        text = markdown.findings_text(document.findings)
        tf.summary.text("findings", text)
    for block in document.blocks:
        if isinstance(block, Table):
            name = f"table/{_clean(block.title)}"
            tf.summary.text(name, markdown.table_text(block))


def _write_figures(document: Document) -> None:
    try:
        from tf_mixprec.reports import figures  # needs matplotlib
    except ImportError:
        return
    for block in document.blocks:
        if not isinstance(block, Table):
            picture = figures.pixels(block)[None]
            tf.summary.image(f"figure/{_clean(block.title)}", picture)


def _tag(finding: Finding) -> str:
    return f"{_clean(finding.code)}/{_clean(finding.layer or 'model')}"


def _clean(name: str) -> str:
    """Returns a name of letters that tags of TensorBoard may have."""
    return re.sub(r"[^\w./-]+", "_", name)
