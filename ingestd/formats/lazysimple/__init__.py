"""How Hive's LazySimpleSerDe reads the fields of text records; used by the delimited and the regex format.

`values` reads one field: it defines the meaning. `columns` reads whole columns of fields with the same result: Arrow
converts the common spellings, `values` the rest.
"""
