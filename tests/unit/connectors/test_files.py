"""The files source without Spark: quotes in csv files, and the folders that it reads."""

from __future__ import annotations

import pytest

from mzplan.connectors.files.named_folders import depth_of, is_read, open_quote


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('1,a\n2,"b"\n3,"c\nd"\n', None),
        ('"a ""b"" c",""\n"",""""\n"x" ,"y"', None),
        ('"a\n""b""\n",1\r\n"c\r\n"\r\n', None),
        ('1,5" disk\n2,a"b"c\n3,""\n', None),  # only a field that begins with a quote is quoted
        ('1,"a" b\n', None),
        ('\ufeff"id","x"\n1,"a\nb"\n', None),
        ("", None),
        ('1,a\n2,"open\n3,b\n', 2),
        ('1,"open', 1),
        ('\ufeff"open,1\n2', 1),
        ('1,"a"",b\n', 1),
        ('1,a\n2,"open\n3,"b"\n4,c\n', 2),  # closed by the quote of the next row
        ('1,"5" disk\n2,"open\n', 2),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_quotes_that_swallow_rows(text: str, line: int | None, size: int) -> None:
    data = text.encode()
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert open_quote(chunks, {"quote": '"', "delimiter": ","}) == line
    other = [chunk.replace(b'"', b"'").replace(b",", b";") for chunk in chunks]
    assert open_quote(other, {"quote": "'", "delimiter": ";"}) == line


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.json", True),
        ("day=1/a.json", True),
        ("x/day=1/y/a.json", True),
        ("x/a.json", False),
        ("x/a=b", False),
    ],
)
def test_files_that_a_source_reads(name: str, read: bool) -> None:
    assert is_read(name) == read


@pytest.mark.parametrize(
    ("folder", "depth"),
    [("/", 0), ("/a/../b/", 1), ("/a/./b=1//c", 3), ("file:///a/b", 2), ("s3a://bucket/a/../b", 2)],
)
def test_the_depth_of_a_folder(folder: str, depth: int) -> None:
    assert depth_of(folder) == depth
