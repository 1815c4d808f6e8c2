"""Writes and inspects Hive's full-ACID storage on a local file system, without network calls.

These are the modules, in the order in which rows pass through them:

- `constraints` finds decoded rows that the table cannot store.
- `routing` splits a batch by partition and bucket. `partitions` computes the names and values of Hive's partitions, and
  `buckets` computes Hive's hash functions.
- `writer_pool` buffers rows in memory and limits the number of open files.
- `writer` defines the contract of a writer and selects the writer that each row needs: `pyarrow_writer` (columnar) or
  `pyorc_writer` (row by row, for values that pyarrow corrupts). `encoding` derives the settings of both from the
  table's `orc.*` properties.
- `appendable` writes a file to which several transactions append while readers read it.
- `sink` is the file object that both ORC libraries write to. `text_statistics` bounds the statistics of texts in a
  closed file, `footer` adds Hive's metadata to it, and `orc_proto` decodes and encodes the metadata of an ORC file.
- `layout` defines the names of directories and files. `visibility` determines which directories and how many rows a
  reader sees.
"""
