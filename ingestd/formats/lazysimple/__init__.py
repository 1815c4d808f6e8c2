"""Decodes the fields of text records as Hive's LazySimpleSerDe does; used by the delimited and the regex formats.

`values` decodes one field and defines its meaning. `columns` decodes whole columns of fields with the same result:
Arrow converts the common notations, and `values` converts the rest.
"""
