"""Numbers in the documentation are those of the committed results."""

import json
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="not in a checkout")


def test_tables_of_the_paper_are_those_of_the_results():
    text = (DOCS / "paper.md").read_text("utf-8")
    results = json.loads((DOCS / "results" / "results.json").read_text("utf-8"))
    filled_in = runpy.run_path(str(DOCS / "fill_in.py"))["filled_in"]
    assert filled_in(text, results) == text
    for name in ("verification", "directions", "separation"):
        assert len(results[name]["cells"]) == rows_of(text, name)


def rows_of(text, name):
    table = re.search(rf"<!-- table {name} -->(.*?)<!-- end -->", text, re.S)[1]
    return table.count("\n|") - 2


def test_links_lead_somewhere():
    for page in [DOCS / "paper.md", DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), target
