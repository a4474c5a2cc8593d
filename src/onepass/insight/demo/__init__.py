"""The demonstration: a real sentence-embedding model over the language reference that ships inside Python."""
