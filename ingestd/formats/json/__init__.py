"""Decodes JSON records into Arrow batches.

- `options`: `JsonOptions`, the keys of the format.
- `decoder`: `JsonDecoder`, and the table of the values that each column type accepts and rejects.
- `several`: `SeveralDecoder`, for records that contain several objects.
- `record`: decodes one record, value by value, which defines its meaning; also pre-checks single records.
- `layout`, `envelope`: where a record contains the values of columns. `timestamp_formats`: how timestamps are written.
- `lenient`: converts values as Hive's JsonSerDe does.
- `types`, `times`, `nested`: convert a value of each column type and, for primitive types, a whole column.
- `arrow_reader`: decodes many records with pyarrow's JSON reader, the fastest way if few records are unusual.
  `arrow_fields` converts what it has read, `map_texts` reads maps, and `framing` excludes input that pyarrow misreads.
- `tape_reader`: decodes many records of any shape, and tells which ones must be decoded one by one. `tape` finds the
  tokens of their text.
"""
