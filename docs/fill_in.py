"""Writes the tables of paper.md anew, from what `spikeslab reproduce -o docs/results` found."""

import json
import re
from pathlib import Path

from spikeslab.experiments.tables import Table, short_tables

HERE = Path(__file__).parent
TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.S)


def filled_in(text: str, results: dict) -> str:
    """The text with the tables of the results between its marks."""
    amount = "a quick run" if results["quick"] else "the full protocol"
    tables = short_tables(results)
    return TABLE.sub(
        lambda mark: f"{mark[1]}\n{markdown(tables[mark[2]], amount)}\n{mark[3]}", text
    )


def markdown(table: Table, amount: str) -> str:
    head = [" ".join(name.split()) for name in table.head]
    rows = [head, ["---", *["--:"] * (len(head) - 1)], *table.rows]
    lines = [f"| {' | '.join(cell.strip() for cell in row)} |" for row in rows]
    return "\n".join([*lines, "", f"*{table.title} ({amount}).*", ""])


if __name__ == "__main__":
    page = HERE / "paper.md"
    results = json.loads((HERE / "results" / "results.json").read_text("utf-8"))
    page.write_text(filled_in(page.read_text("utf-8"), results), "utf-8")
