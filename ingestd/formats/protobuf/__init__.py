"""Decodes Protobuf messages into Arrow batches.

- `decoder`: `ProtobufDecoder`, and the table of the types that each column type accepts.
- `schema`: reads the descriptors of messages. `framing` finds the type of the message in a record.
- `scan`: finds the fields of many messages at once, in any order.
- `scalars`: reads the values of fields that are not messages. `readers` compile a message type and the columns to a
  plan of reads. `well_known` reads the messages that have a meaning of their own, such as timestamps.
- `options`: the keys of the configuration.
"""
