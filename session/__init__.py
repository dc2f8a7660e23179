"""Session core: ids, wire format, sans-IO state machines and the journal."""
