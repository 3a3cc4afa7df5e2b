"""hack/check_wording.py: what it reports, and what it accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hack.check_wording import GUIDE, findings, main, readable_text, rules

if TYPE_CHECKING:
    from pathlib import Path

RULES = rules(GUIDE.read_text(encoding="utf-8"))


def reported(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text, encoding="utf-8")
    return [(finding.line, finding.rule.phrase) for finding in findings(path, readable_text(path), RULES)]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.py", '"""The kubelet\nis told of it."""\n', 2),  # wording: ok
        ("a.py", "x = 1\n# and whoever\n", 2),  # wording: ok
        ("a.py", 'text = (\n    "which is "\n    "told to the kubelet"\n)\n', 2),  # wording: ok
        ("a.md", "A device that\nfell\nill.\n", 2),  # wording: ok
        ("a.yaml", "# Not this one's matter\n", 1),  # wording: ok
    ],
)
def test_a_phrase_is_reported_with_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    assert {number for number, _ in reported(tmp_path / name, text)} == {line}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def nobody(anew: int) -> int:\n    return anew\n"),  # wording: ok
        ("a.py", '"""The user nobody."""  # wording: ok\n'),
        ("a.md", "The village anewly built looks fine.\n"),
    ],
)
def test_code_and_marked_lines_and_other_words_are_accepted(tmp_path: Path, name: str, text: str) -> None:
    assert reported(tmp_path / name, text) == []


def test_the_command_names_file_line_phrase_and_usual_wording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.md"
    file.write_text("Fine.\nThe device is ill.\n", encoding="utf-8")  # wording: ok
    assert main([str(file)]) == 1
    assert capsys.readouterr().out == f'{file}:2: "is ill": write unhealthy\n'  # wording: ok
    file.write_text("The device is unhealthy.\n", encoding="utf-8")
    assert main([str(file)]) == 0
