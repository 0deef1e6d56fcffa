"""The report as a browser shows it."""

from io import BytesIO

import numpy as np
import pytest

from browser import INKS, OVERFLOWING, contrast, luminance
from separations import noise_free_separation, noisy_separation, sparse_mixture
from spikeslab.report import write_report

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """With sound and noise; and plain data with a name that does not fit."""
    folder = tmp_path_factory.mktemp("reports")
    X = sparse_mixture(np.random.default_rng(0), 8000, 3, 4)
    sound = noisy_separation(X, 3, agreement=[0.99, 0.42, 0.93])
    write_report(sound, folder / "sound.html", rate=8000, title="Three " + "very " * 20 + "loud")
    rng = np.random.default_rng(0)
    plain = noise_free_separation(rng.laplace(size=(300, 2)), rng.standard_normal((30, 2)))
    write_report(plain, folder / "plain.html", title="Unbreakable" * 12)
    return folder


@pytest.fixture
def visit(open_page, reports):
    """Open a report and watch what it does."""
    return lambda name, *how, **more: open_page(reports / f"{name}.html", *how, **more)


@pytest.mark.parametrize("name", ["sound", "plain"])
def test_it_opens_alone_and_without_complaint(visit, name):
    page = visit(name)
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith("data:")] == [page.url]
    widths = page.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert len(widths) > 5
    assert min(widths) > 200


def test_its_players_can_be_played_one_at_a_time(visit):
    page = visit("sound")
    durations = page.evaluate(
        """() => Promise.all([...document.querySelectorAll("audio")].map(a => a.readyState > 0
            ? a.duration : new Promise(done => a.onloadedmetadata = () => done(a.duration))))"""
    )
    assert durations == [pytest.approx(1.0)] * 7
    playing = page.evaluate(
        """async () => {
            const [first, second] = document.querySelectorAll("audio");
            first.muted = second.muted = true;
            await first.play();
            await second.play();
            return [first.paused, second.paused];
        }"""
    )
    assert playing == [True, False]
    assert page.problems == []


@pytest.mark.parametrize("name", ["sound", "plain"])
@pytest.mark.parametrize("width", [320, 380, 768, 1280])
def test_it_never_scrolls_sideways(visit, name, width):
    page = visit(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERFLOWING) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_background(visit, scheme):
    """Contrast of at least 4.5 (WCAG 2.1, AA) for all text."""
    page = visit("sound", scheme=scheme)
    pairs = page.evaluate(INKS)
    assert len(pairs) > 60
    backs = set()
    for words, ink, back in pairs:
        assert contrast(ink, back) >= 4.5, (words, ink, back)
        backs.add(luminance(back) > 0.5)
    assert (scheme == "light") in backs
    assert (luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.5) == (
        scheme == "light"
    )


def test_on_a_phone_a_row_is_a_block_with_labels_and_still_a_table(visit):
    page = visit("sound", 380)
    row = page.get_by_role("row").nth(1)
    assert row.get_by_role("rowheader").inner_text() == "Source 1"
    cells = row.get_by_role("cell")
    assert cells.count() == 5
    labels = "e => getComputedStyle(e, '::before').content"
    assert cells.nth(1).evaluate(labels) == '"Agreement"'
    tops = {cells.nth(i).bounding_box()["y"] for i in range(1, 5)}
    assert len(tops) == 2


def test_it_prints_on_light_paper_without_players(visit):
    pypdf = pytest.importorskip("pypdf")
    page = visit("sound", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("audio").first.is_visible()
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == "rgb(255, 255, 255)"
    printed = pypdf.PdfReader(BytesIO(page.pdf(prefer_css_page_size=True)))
    assert 3 <= len(printed.pages) <= 8
    width, height = (float(side) for side in printed.pages[0].mediabox[2:])
    assert (round(width), round(height)) == (595, 842)  # A4
    text = "".join(sheet.extract_text() for sheet in printed.pages)
    for heading in ("How far to trust each source", "What remains uncertain", "To do it again"):
        assert heading in text
