"""Expressions of `select` that reach out of the row, or try to: $X is a file that a shell would make, $F one
that somebody would like to read. None of them may run."""

from __future__ import annotations

SHELL = "(select first(x) from (select transform(1) using 'sh -c \"touch $X\"' as (x string)))"
FILE = "(select first(value) from text.`$F`)"

HOSTILE = [
    # Two lexers: what follows is a comment to one of them.
    f"note /* was: /*+ upper(note) */ || {SHELL}) as n -- */",
    f"note -- \\\n /*\n || {SHELL} -- */\n as n",
    f"note /* /* */ || {SHELL} -- */ */ as n",
    f"note /* a /* b */ c */ || {FILE} as n",
    f"note /*+ x */ || {FILE} as n",
    f"/*+ broadcast(a) */ {FILE} as n",
    f"note --\r || {FILE}\n as n",
    f"'a\\' || {FILE} || 'b' as n",
    f"r'a\\' || {FILE} || '' as n",
    f'"a" || {FILE} || "b" as n',
    f"`a\\` || {FILE} as `b`",
    f"$$'$$ || {FILE} || $$'$$ as n",
    f"$a$ ' $a$ || {FILE} || $a$ ' $a$ as n",
    f"a://b/*c || {FILE} -- */ as n",
    f"x'1F\\' || {FILE} || '' as n",
    f"note */ || {FILE} /* as n",
    f"note // {FILE} as n",
    f"{{{{ note }}}} || {FILE} as n",
    f"note \x00 || {FILE} as n",
    f"note || {FILE} as n",
    # Other words for a query.
    f"{SHELL} as n",
    f"{FILE} as n",
    "(from text.`$F` select first(value)) as n",
    "(with a as (select * from text.`$F`) select first(value) from a) as n",
    "(values 1) as n",
    "(map note using 'touch $X') as n",
    "(reduce note using 'touch $X' as (a string)) as n",
    "exists(select 1 from text.`$F`) as n",
    "note in (select value from text.`$F`) as n",
    "note not in (table x) as n",
    "array(select value from text.`$F`) as n",
    "lateral (select 1) as n",
    "note, (select first(value) from text.`$F`)",
    "note from text.`$F`",
    "note union select value from text.`$F`",
    "xpath_string('<!DOCTYPE a SYSTEM \"file://$F\"><a>&secret;</a>', 'a') as n",
    "transform(array(1), x -> `xpath`(note, 'a')) as n",
    "from_json('{}', system.builtin.xpath_boolean(note, 'a')) as n",
    "struct(*) as n",
    "to_json(struct(* except (note))) as n",
    # Other code.
    "reflect('java.lang.Runtime', 'getRuntime') as n",
    "`java_method`('java.lang.System', 'exit', 1) as n",
    "system.builtin.try_reflect('java.lang.System', 'nanoTime') as n",
    "identifier('reflect')('java.lang.System', 'nanoTime') as n",
    "${spark.app.name} as n",
    "count(*) as n",
    "row_number() over (order by note) as n",
    "explode(array(1, 2)) as n",
]

# What mzplan alone can't know to be hostile: Spark's own trees say it.
ONLY_SPARK_KNOWS = [
    "(table x) as n",
    "`default`.evil(note) as n",
    "evil(note) as n",
    "a.b.c(note) as n",
    "from_xml(note, 'a INT', map('rowValidationXSDPath', '$F')) as n",
    "from_protobuf(note, 'm', '$F') as n",
    "from_avro(cast(note as binary), '\"int\"', map('avroSchemaUrl', 'file:$F')) as n",
]
