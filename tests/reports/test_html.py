"""The page: well formed, escaped, complete in itself, shown by a browser."""

import html.parser
import re
import shutil
import subprocess
import sys

import pytest
from reports.documents import DOCUMENTS
from reports.documents import finding
from reports.documents import full_document
from reports.documents import hostile_document

from tf_mixprec import reports
from tf_mixprec.reports import html as page

# Elements without an end tag.
VOID = ("meta", "br", "img", "hr", "link", "input")


class Page(html.parser.HTMLParser):
    """Checks that elements are closed in their order, and keeps them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("make", DOCUMENTS.values(), ids=DOCUMENTS)
def test_the_page_is_complete_in_itself(make):
    text = page.rendered(make())
    found = Page(text)
    assert len(found.ids) == len(set(found.ids))
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?:|//[a-z]|@import", without_names)
    assert {name for name, _ in found.tags}.isdisjoint(
        {"script", "link", "img", "iframe", "object"}
    )
    for _, attributes in found.tags:
        for name in ("href", "xlink:href", "src"):
            assert attributes.get(name, "#").startswith(("#", "data:image/"))


def test_references_of_figures_are_to_their_own_ids():
    pytest.importorskip("matplotlib")
    text = page.rendered(full_document())
    ids = set(Page(text).ids)
    used = re.findall(r'(?:href="|url\()#([^")]+)', text)
    assert used
    assert set(used) <= ids
    assert len({each.partition("-")[0] for each in used}) >= 4


def test_hostile_strings_are_text():
    text = page.rendered(hostile_document())
    assert "<script" not in text
    found = Page(text)
    assert "\x00" not in text
    assert any(
        "<script>alert('x|y')</script> & $a_b$" in each for each in found.texts
    )


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ((), "clean"),
        (("info",), "info"),
        (("info", "warning"), "warning"),
        (("warning", "error", "info"), "error"),
    ],
)
def test_the_banner_has_the_worst_level(levels, expected):
    document = reports.Document(
        title="t", verdict="v", findings=tuple(map(finding, levels))
    )
    assert f'<p class="verdict {expected}">v</p>' in page.rendered(document)


def test_numbers_are_to_the_right_and_code_is_code():
    text = page.rendered(full_document())
    assert '<th class="n">parameters</th>' in text
    assert '<td class="n">12,345</td>' in text
    assert "<td>a|b</td>" in text
    assert "Do <code>this</code>." in text


def test_without_matplotlib_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_mixprec.reports.figures", None)
    monkeypatch.delattr(reports, "figures", raising=False)
    text = page.rendered(full_document())
    assert text.count("pip install &quot;tf_mixprec[report]&quot;") == 5
    assert "<svg" not in text
    Page(text)


@pytest.mark.slow
def test_page_in_a_browser(tmp_path):
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("needs Chromium")
    pytest.importorskip("matplotlib")
    path = tmp_path / "page.html"
    path.write_text(page.rendered(full_document()), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [browser, *options, profile, path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "1 error: it is wrong." in done.stdout
    assert done.stdout.count("<svg") == 5
