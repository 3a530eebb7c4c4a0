"""The base of all results."""

import csv
import dataclasses
import io
import json
import math
import sys

import pytest
import tensorflow as tf
from reports.documents import finding
from reports.documents import full_document
from tensorflow.core.util import event_pb2

from tf_mixprec import reports


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(reports.Report):
    numbers: tuple[float, ...] = (1.0, math.inf)

    def document(self):
        return dataclasses.replace(
            full_document(), verdict=self.verdict, findings=self.findings
        )


RESULT = Result(verdict="It is so.", findings=(finding(layer="a"),))


def test_all_is_sorted_and_importable():
    assert reports.__all__ == sorted(reports.__all__)
    for name in reports.__all__:
        assert hasattr(reports, name)


def test_a_result_is_printed_and_asked_for_errors():
    assert "It is so." in str(RESULT)
    assert RESULT.has_errors
    assert not Result(verdict="", findings=(finding("warning"),)).has_errors


def test_findings_are_ranked_and_keep_their_order():
    levels = ["info", "error", "warning", "error"]
    found = [finding(level, str(n)) for n, level in enumerate(levels)]
    assert [each.code for each in reports.ranked(found)] == list("1320")


@pytest.mark.parametrize("suffix", [".html", ".md", ".json", ".csv", ".txt"])
def test_a_result_is_saved_by_suffix(tmp_path, suffix):
    path = tmp_path / f"result{suffix}"
    RESULT.save(str(path))
    shown = path.read_text(encoding="utf-8")
    if suffix == ".json":
        fields = json.loads(shown)
        assert fields["numbers"] == [1.0, "inf"]
        assert fields["findings"][0]["layer"] == "a"
    elif suffix == ".csv":
        assert list(csv.reader(io.StringIO(shown)))[0] == ["findings"]
    else:
        assert "It is so." in shown


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must end in one of"):
        RESULT.save(tmp_path / "result.pdf")


def number_of(entry):
    return float(tf.make_ndarray(entry[1].tensor))


def values_of(log_dir):
    found = {}
    for path in log_dir.iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                found[value.tag] = (event.step, value)
    return found


def test_a_result_is_written_for_tensorboard(tmp_path):
    result = dataclasses.replace(RESULT, findings=full_document().findings)
    result.write_summary(str(tmp_path), step=5)
    found = values_of(tmp_path)
    step, verdict = found["verdict"]
    assert step == 5
    assert verdict.tensor.string_val[0] == b"It is so."
    assert b"| layer |" in found["table/layers"][1].tensor.string_val[0]
    assert number_of(found["bad/a/b"]) == 3.0
    assert "good/model" in found
    assert "poor/model" not in found
    pytest.importorskip("matplotlib")
    for name in ("lines", "bars", "heat_map", "histogram"):
        assert f"figure/{name}" in found


def test_a_summary_without_matplotlib_has_no_figures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_mixprec.reports.figures", None)
    monkeypatch.delattr(reports, "figures", raising=False)
    RESULT.write_summary(str(tmp_path))
    found = values_of(tmp_path)
    assert "verdict" in found
    assert not [name for name in found if name.startswith("figure")]
