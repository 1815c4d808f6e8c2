"""Hive's full-ACID storage on a local file system: directories, ORC files and partitions. Makes no network calls.

Where things are, in the order in which rows pass through:

- `constraints`: which decoded rows the table cannot store.
- `routing`: splits a batch by partition and bucket; `partitions` has Hive's names and values of partitions, `buckets`
  Hive's hash functions.
- `writer_pool`: holds rows in memory and keeps a bounded number of files open.
- `writer`: the contract of a writer, and which rows need which of `pyarrow_writer` (columnar) and `pyorc_writer` (row
  by row, for values that pyarrow corrupts). `encoding` is how they encode, by the table's `orc.*` properties.
- `appendable`: a file to which several transactions append while readers read it.
- `sink`: the file that both ORC libraries write to. `footer` adds Hive's metadata to a closed file, `orc_proto` reads
  and encodes the tail of an ORC file.
- `layout`: names of directories and files. `visibility`: which of them, and how many rows, a reader sees.
"""
