"""Spark DDL, parsed without Spark."""

from __future__ import annotations

import pytest

from mzplan.schema.columns import MAX_LENGTH, DdlError, canonical, check_storable, parse_columns


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("id long, n int", "id BIGINT, n INT"),
        ("a decimal, b dec(5), c numeric(10 , 2)", "a DECIMAL(10,0), b DECIMAL(5,0), c DECIMAL(10,2)"),
        ("a STRING NOT NULL COMMENT 'it\\'s'", "a STRING NOT NULL"),
        ("`a b` date, `c``d` timestamp_ntz", "`a b` DATE, `c``d` TIMESTAMP_NTZ"),
        ("m map<string, array<double>>", "m MAP<STRING,ARRAY<DOUBLE>>"),
        ("s struct<a: int, `b c`: string NOT NULL>", "s STRUCT<a: INT,`b c`: STRING NOT NULL>"),
        ("v varchar(20), c char(1)", "v VARCHAR(20), c CHAR(1)"),
        ("  id\n\tBIGINT ,\n x  FLOAT ", "id BIGINT, x FLOAT"),
        ("select INT, from INT", "select INT, from INT"),
        ("größe INT", "größe INT"),
    ],
)
def test_a_schema_has_one_canonical_form(ddl: str, expected: str) -> None:
    assert canonical(ddl) == expected
    assert canonical(expected) == expected


@pytest.mark.parametrize(
    ("ddl", "offset", "word"),
    [
        ("", 0, "column name"),
        ("id", 2, "a type"),
        ("id BIGNIT", 3, "unknown type 'BIGNIT'"),
        ("id BIGINT name STRING", 10, "a comma separates"),
        ("id BIGINT, ID INT", 11, "twice"),
        ("a INT, _position STRUCT<a: INT>", 7, "reserved"),
        ("a DECIMAL(39,2)", 2, "38"),
        ("a DECIMAL(5,6)", 2, "s <= p"),
        ("a DECIMAL(x)", 10, "a number"),
        ("a DECIMAL(1,2,3)", 16, "at most two"),
        ("a ARRAY<INT", 11, "'>'"),
        ("a VARCHAR", 2, "length"),
        ("a INT NOT", 9, "NULL"),
        ("a INT; b INT", 5, "unexpected ';'"),
        ("a `b", 2, "unexpected"),
        ("a STRING COMMENT 'it''s'", 22, "unexpected 's'"),
        ("a " + "ARRAY<" * 40, 194, "nested"),
        ("x" * (MAX_LENGTH + 1), 0, "characters"),
    ],
)
def test_a_wrong_schema_is_an_error_at_its_offset(ddl: str, offset: int, word: str) -> None:
    with pytest.raises(DdlError) as caught:
        parse_columns(ddl)
    assert caught.value.offset == offset and word in str(caught.value)
    assert len(str(caught.value)) < 400
    assert canonical(ddl) == ddl


@pytest.mark.parametrize(
    ("ddl", "offset", "message"),
    [
        ("id INT, `first name` STRING", 9, "'first name' contains ' '"),
        ("id INT, _Change_Type INT", 8, "change feed"),
        ("_mzplan_at INT", 0, "is reserved"),
        ("s STRUCT<a: INT, t: STRUCT<B: INT, b: INT>>", 35, "field 'b' is declared twice"),
        ("`user-id` INT, `a.b` INT, _change STRING, _committed INT", None, ""),
        ("a INT, s STRUCT<a: INT, t: STRUCT<a: INT>, _change_type: INT>, t STRUCT<a: INT>", None, ""),
    ],
)
def test_a_column_that_no_table_can_hold_is_refused(ddl: str, offset: int | None, message: str) -> None:
    parse_columns(ddl)  # what was committed stays readable
    if offset is None:
        return check_storable(ddl)
    with pytest.raises(DdlError) as caught:
        check_storable(ddl)
    assert caught.value.offset == offset and message in str(caught.value)
    return None
