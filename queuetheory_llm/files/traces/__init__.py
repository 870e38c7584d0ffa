"""Request traces: one small file a format, one registry, one streaming reader."""
