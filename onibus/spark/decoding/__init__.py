"""Decoding of bodies into columns, batch by batch: text, JSON, Avro, Protobuf, CloudEvents."""
