"""Decodes Avro records into Arrow batches.

- `decoder`: `AvroDecoder`, and the table of the types that each column type accepts.
- `schema`: parses the schemas with which records were written. `framing` finds their ids in the records.
- `cursor`: reads one part of many records at once. `skip` moves behind values, and finds the items of arrays and maps.
- `readers`: compile a schema and the columns to a plan of reads. `conversions` finds the conversion to a Hive type.
- `resolution`: adapts the schema of records to the reader schema, if there is one. `defaults` encodes its defaults.
- `options`: the keys of the configuration.
"""
