"""How a batch is formed: one file a rule, one registry, one protocol."""
