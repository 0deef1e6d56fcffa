"""The report of the experiments: complete, honest about stand-ins, and fit for a browser."""

import re
from html.parser import HTMLParser
from io import BytesIO

import pytest
from scipy.io import savemat

from browser import INKS, OVERFLOWING, contrast
from experiments import made_up_results
from spikeslab.experiments import EXPERIMENTS, Plan
from spikeslab.experiments.separation import PRINTED_COLUMNS, SIZES, printed
from spikeslab.experiments.sources import N_SOURCES

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
from spikeslab.experiments.report import write_report

FIGURES = {
    "prior": ["prior"],
    "verification": ["verification_likelihood", "verification_recovery"],
    "directions": ["directions_cauchy", "directions_histogram", "directions_laplace"],
    "separation": ["separation_orthogonality", "separation_table"],
}
FILES = sorted(
    f"{name}.{suffix}" for names in FIGURES.values() for name in names for suffix in ("png", "svg")
)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """All experiments, the separation on stand-ins."""
    folder = tmp_path_factory.mktemp("stand-ins")
    write_report(made_up_results(Plan(trials=10)), folder)
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The separation alone, on files in ICALAB's layout."""
    folder = tmp_path_factory.mktemp("real")
    for name, n_sources in N_SOURCES.items():
        rows = [[(row + 2) * time % 97 for time in range(600)] for row in range(n_sources)]
        savemat(folder / f"{name}.mat", {"x": rows})
    results = made_up_results(Plan(trials=10, icalab=folder), ["separation"])
    write_report(results, folder)
    return folder


class Texts(HTMLParser):
    """Texts of a page by the innermost element, with its class, that they are in."""

    def __init__(self, page):
        super().__init__()
        self.open, self.found = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in ("meta", "link", "img"):
            self.open.append(f"{tag} {attributes.get('class', '')}".strip())
        if tag == "img":
            self.found.append(("alt", attributes["alt"]))

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        if data.strip() and self.open[-1] != "style":
            self.found.append((self.open[-1], " ".join(data.split())))

    def of(self, *kinds):
        return [text for kind, text in self.found if kind in kinds]


def page_of(folder):
    return Texts((folder / "report.html").read_text(encoding="utf-8"))


def section(folder, name):
    """The page's section on an experiment."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    return Texts(re.search(rf'<section aria-labelledby="{name}">.*?</section>', page, re.S)[0])


def test_every_figure_is_in_the_page_and_a_file_of_two_kinds(stand_ins):
    written = sorted(path.name for path in stand_ins.iterdir())
    assert written == sorted([*FILES, "report.html"])
    for name in FILES:
        start = b"\x89PNG" if name.endswith("png") else b"<?xml"
        assert (stand_ins / name).read_bytes().startswith(start)
    for name in EXPERIMENTS:
        part = section(stand_ins, name)
        assert len(part.of("alt")) == len(part.of("figcaption")) == len(FIGURES[name])
        assert len(part.of("p caption")) == (2 if name == "verification" else 1)


def test_every_printed_number_is_beside_ours(stand_ins):
    texts = section(stand_ins, "separation").of("small")
    for name in N_SOURCES:
        for n_samples in SIZES:
            for mean, spread in printed(name, n_samples).values():
                assert any(f"paper {mean:.2f} ({spread:.2f});" in text for text in texts)
    assert sum(text.startswith("paper ") for text in texts) == 12 * len(PRINTED_COLUMNS)
    directions = section(stand_ins, "directions")
    assert directions.of("td").count("< .01") == 4
    assert directions.of("td").count("0.06") == directions.of("td").count("0.07") == 2
    for runs in (91, 99, 97):
        assert directions.of("small").count(f"{runs} of 100 high") == 2


def test_our_numbers_are_those_of_the_results(stand_ins):
    results = made_up_results(Plan(trials=10))
    shown = section(stand_ins, "separation").of("td")
    for cell in results["separation"]["cells"]:
        for column in cell["columns"].values():
            text = f"{column['amari']:.3f} ({column['deviation']:.3f})"
            assert text in shown or f"★ {text}" in shown
    assert sum(text.startswith("★") for text in shown) == 12
    shown = section(stand_ins, "verification").of("td")
    for cell in results["verification"]["cells"]:
        assert f"{cell['errors']['W']['best']['median']:.3f}" in shown
        assert f"{cell['within_.01']:.0%}" in shown
    shown = section(stand_ins, "directions").of("td")
    for cell in results["directions"]["cells"]:
        for entry in (cell["isotropic"], *cell["ours"].values()):
            start = f"{entry['amari']:.3f} ± {entry['standard_error']:.3f}"
            assert any(text.startswith(start) for text in shown)


def test_stand_ins_are_called_so_in_every_row_and_caption(stand_ins):
    page = section(stand_ins, "separation")
    for kind in ("h2", "p caption", "figcaption"):
        assert page.of(kind)
        assert all("stand-in" in text for text in page.of(kind))
    rows = [text for text in page.of("th") if "N = " in text]
    assert len(rows) == 12
    assert all("(stand-in)" in text for text in rows)
    assert any("four synthetic voices" in text for text in page.of("p"))
    for name in ("prior", "verification", "directions"):
        assert "stand-in" not in str(section(stand_ins, name).found)


def test_real_data_are_not_called_stand_ins(real):
    page = page_of(real)
    assert "stand-in" not in str(page.found)
    assert any("ICALAB's own files" in text for text in page.of("p"))
    assert len([text for text in page.of("th") if "N = " in text]) == 8
    assert "stand-in" not in (real / "separation_table.svg").read_text()


# ---- in a browser ----


@pytest.mark.parametrize("width", [320, 380, 768, 1280])
def test_it_opens_alone_without_complaint_and_never_scrolls_sideways(open_page, stand_ins, width):
    page = open_page(stand_ins / "report.html", width)
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith("data:")] == [page.url]
    widths = page.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert len(widths) == len(FILES) / 2
    assert min(widths) > 700
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERFLOWING) == []
    shown = page.evaluate("[...document.images].map(i => i.getBoundingClientRect().width)")
    assert min(shown) >= 600  # narrower, and letters are too small to read


def test_links_lead_to_every_experiment(open_page, stand_ins):
    page = open_page(stand_ins / "report.html")
    links = page.get_by_role("navigation").get_by_role("link")
    assert links.count() == len(EXPERIMENTS)
    for number, name in enumerate(EXPERIMENTS):
        links.nth(number).click()
        assert page.url.endswith(f"#{name}")
        assert abs(page.locator(f"#{name}").bounding_box()["y"]) < 700


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_background(open_page, stand_ins, scheme):
    """Contrast of at least 4.5 (WCAG 2.1, AA) for all text."""
    pairs = open_page(stand_ins / "report.html", scheme=scheme).evaluate(INKS)
    assert len(pairs) > 200
    for words, ink, back in pairs:
        assert contrast(ink, back) >= 4.5, (words, ink, back)


def test_it_prints_on_a_few_sheets(open_page, stand_ins):
    pypdf = pytest.importorskip("pypdf")
    page = open_page(stand_ins / "report.html", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(
        "[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth + 1)"
    )
    printed_page = pypdf.PdfReader(BytesIO(page.pdf(prefer_css_page_size=True)))
    assert 6 <= len(printed_page.pages) <= 14
    text = "".join(sheet.extract_text() for sheet in printed_page.pages)
    for heading in ("Distributions of the model", "Recovery of sparse directions"):
        assert heading in text
