"""JSON records become Arrow batches.

- `decoder`: `JsonDecoder`, and the table of what each column accepts and rejects.
- `record`: one record, value by value; it defines the meaning. Also the pre-check of single records.
- `types`, `times`, `nested`: how each column type reads a value and, for primitive types, a whole column.
- `arrow_reader`: many records by pyarrow's JSON reader; `framing` keeps out what that reader misreads.
"""
