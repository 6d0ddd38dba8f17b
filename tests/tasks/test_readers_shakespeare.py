from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hush import DataError, UsageError
from hush.tasks.readers.shakespeare import ALPHABET, clients, plays, read_shakespeare, split

TEXT = """\
\ufeffThe Project Gutenberg EBook, by William Shakespeare
  ONE. Not a play yet.


THE SONNETS

by William Shakespeare
  ONE. A sonnet has no roles,
  TWO. even where it looks like it.


1603

ALLS WELL

by William Shakespeare

Dramatis Personae

    Nobody speaks yet.
ACT I.
  LAFEU. First line.
    Second  line.
   Three spaces are no continuation.
    Third line.
  Mar y. Hers.
    Hers   again. And
  1ST LORD. A name begins with a letter.
  Lafeu.Without a space.
  Lafeu. Once more.
THE END


by William Shakespeare
    Without a speaker.
  SOLE. A play of one role is no play.



THE COMEDY OF ERRORS


by William Shakespeare

ACT I. SCENE 1
Nobody yet.
DUKE. Speak,
then.

    Indented stays so.
<<A notice.>>
Nobody now.
  EGEON. Two spaces are no heading here.
EGEON. Well.
ACT II. SCENE 1
No more.
"""


def test_who_says_what() -> None:
    found = plays(TEXT)
    assert list(found) == ["ALLS WELL", "THE COMEDY OF ERRORS"]
    assert found["ALLS WELL"] == {
        "LAFEU": ["First line.", "Second  line.", "Third line.", "Once more."],
        "MAR Y": ["Hers.", "Hers   again. And"],
    }
    assert found["THE COMEDY OF ERRORS"] == {"DUKE": ["Speak,", "then.", "", "    Indented stays so."], "EGEON": ["Well."]}


def test_the_title_is_sought_from_two_to_seven_lines_above() -> None:
    begin = "x\n\n\nby William Shakespeare\n\n"
    for above in range(2, 8):
        text = f"{begin}TITLE{above * chr(10)}by William Shakespeare\n  A. one\n  B. two\n"
        assert list(plays(text)) == ["TITLE"]
    near = f"{begin}FAR\n\nNEAR\nDIRECTLY ABOVE\nby William Shakespeare\n  A. one\n  B. two\n"
    assert list(plays(near)) == ["NEAR"]


def test_reading_stops_where_the_plays_end() -> None:
    begin = ["x", "by William Shakespeare", "", "TITLE", "", "by William Shakespeare"]
    filler = [""] * (124_196 - len(begin) - 1)
    lines = [*begin, *filler, "  A. one", "  B. two", "  C. late"]  # dropped the first line, B is line 124,195
    assert lines[1:].index("  B. two") == 124_195
    assert plays("\n".join(lines)) == {"TITLE": {"A": ["one"], "B": ["two"]}}


def test_clients_are_roles_with_more_than_two_lines_and_a_sample() -> None:
    long = ["x" * 30, "y  z", "", "  " + "w" * 60]
    found = {"KING HENRY, THE 8TH": {"FIRST LORD": long, "SECOND": ["a" * 100, "b" * 100], "THIRD": ["a", "b", "c" * 70]}}
    assert clients(found) == {"KING_HENRY__THE_8TH_FIRST_LORD": "x" * 30 + " y z " + "w" * 60 + " "}
    exactly = {"P": {"A": ["a" * 26, "b" * 26, "c" * 25], "B": ["a" * 26, "b" * 26, "c" * 26]}}  # 80 and 81 characters
    assert list(clients(exactly)) == ["P_B"]


def letters(n: int) -> str:
    """No 80 characters of it come twice, for a while."""
    return "".join(ALPHABET[(i + i // 78) % 78 + 1] for i in range(n))


def test_windows_are_eighty_characters_and_the_one_after() -> None:
    text = letters(300)  # 220 samples: 198 to train on, 79 left out
    raw = split({"a": text, "b": letters(90), "c": text[::-1] * 2}, fraction=0.5)
    assert raw.names == ("a", "c")  # b has too few samples for both
    train, test = raw.train, raw.test
    assert raw.owner is not None
    assert raw.test_owner is not None
    assert (train.x.dtype, train.y.dtype, raw.owner.dtype) == (torch.uint8, torch.int64, torch.int64)
    assert torch.bincount(raw.owner).tolist() == [110, 260]
    assert torch.bincount(raw.test_owner).tolist() == [220 - 110 - 79, 520 - 260 - 79]

    def back(codes: torch.Tensor) -> str:
        return "".join(ALPHABET[c] for c in codes.tolist())

    assert (back(train.x[0]), ALPHABET[train.y[0]]) == (text[:80], text[80])
    assert (back(train.x[109]), ALPHABET[train.y[109]]) == (text[109:189], text[189])
    assert (back(test.x[0]), ALPHABET[test.y[0]]) == (text[189:269], text[269])  # begins right after the last training input
    assert (back(test.x[30]), ALPHABET[test.y[30]]) == (text[219:299], text[299])
    assert back(train.x[110]) == text[::-1][:80]


@pytest.mark.parametrize(
    ("samples", "fraction", "sizes"),
    [
        (80, 0.01, None),  # one to train on, 79 left out
        (81, 0.01, (1, 1)),
        (82, 0.01, (1, 2)),
        (100, 0.2, (20, 1)),
        (100, 0.21, None),
        (1000, 0.9, (900, 21)),
        (2, 0.9, None),
    ],
)
def test_shares_of_a_client(samples: int, fraction: float, sizes: tuple[int, int] | None) -> None:
    said = {"a": letters(samples + 80)}
    if sizes is None:
        with pytest.raises(UsageError, match="No client has samples"):
            split(said, fraction=fraction)
    else:
        raw = split(said, fraction=fraction)
        assert (len(raw.train.x), len(raw.test.x)) == sizes


def test_small_clients_can_be_left_out() -> None:
    said = {"a": letters(1080), "b": letters(1079), "c": letters(1081)}
    raw = split(said, fraction=0.8, least=1000)
    assert raw.names == ("a", "c")
    assert int(raw.owner.max()) == 1  # type: ignore[union-attr]
    for wrong in (0.0, 1.0, -1):
        with pytest.raises(UsageError, match="between 0 and 1"):
            split(said, fraction=wrong)


def test_wrong_texts(tmp_path: Path) -> None:
    path = tmp_path / "pg100.txt"
    for content, said in (
        (b"nothing", "no play after the sonnets"),
        (b"\xff\xfe\x00", "codec"),
        (b"x\nby William Shakespeare\n\nT\n\nby William Shakespeare\n  A. a\n  B. b\n", "no role with a sample"),
        (b"x\nby William Shakespeare\n\nT\n\nby William Shakespeare\n  A. a\n" + b"    \xc3\xa4\n" * 1000 + b"  B. b\n", "'ä'"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"pg100.txt cannot be read .*{said}.*: fetch it again.$"):
            read_shakespeare({"pg100.txt": path})


def test_line_ends_do_not_matter(tmp_path: Path) -> None:
    said = "".join(f"    line {i} of a long speech\n" for i in range(30))
    text = f"x\nby William Shakespeare\n\nT\n\nby William Shakespeare\n  A. a\n{said}  B. b\n{said}"
    path = tmp_path / "pg100.txt"
    read = []
    for end in (b"\n", b"\r\n"):
        path.write_bytes(text.encode().replace(b"\n", end))
        read.append(read_shakespeare({"pg100.txt": path}, fraction=0.5))
    assert read[0].names == ("T_A", "T_B")
    assert torch.equal(read[0].train.x, read[1].train.x)


def test_the_real_shakespeare(real_data: Path) -> None:
    path = real_data / "shakespeare" / "pg100.txt"
    if not path.is_file():
        pytest.skip("HUSH_DATA holds no Shakespeare")
    assert (len(ALPHABET), len(set(ALPHABET))) == (80, 80)
    found = plays(path.read_text(encoding="utf-8"))
    assert len(found) == 36
    assert sum(len(roles) for roles in found.values()) == 1301
    assert sum(len(lines) > 2 for roles in found.values() for lines in roles.values()) == 1144
    said = clients(found)
    assert "".join(sorted(set("".join(said.values())))) == ALPHABET[1:]
    samples = np.array([len(text) - 80 for text in said.values()])
    assert (len(samples), samples.sum()) == (1129, 4_226_158)
    assert (samples.min(), np.median(samples), samples.max()) == (3, 1163, 66_903)
    assert (round(samples.mean(), 2), round(samples.std(), 2)) == (3743.28, 6212.26)
    for fraction, names, train, test in ((0.9, 660, 3_678_451, 356_921), (0.8, 799, 3_335_126, 771_050)):
        raw = split(said, fraction=fraction)
        assert (len(raw.names), len(raw.train.x), len(raw.test.x)) == (names, train, test)
        assert len(set(raw.names)) == names
        assert raw.owner is not None
        assert int(raw.owner[-1]) == names - 1
