"""Decodes JSON records into Arrow batches.

- `decoder`: `JsonDecoder`, and the table of the values that each column type accepts and rejects.
- `record`: decodes one record, value by value, which defines its meaning; also pre-checks single records.
- `types`, `times`, `nested`: convert a value of each column type and, for primitive types, a whole column.
- `arrow_reader`: decodes many records with pyarrow's JSON reader. `framing` excludes input that pyarrow misreads.
"""
