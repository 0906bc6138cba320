//! The namespace: one file per operation, as closed batches over an ordered key-value engine.
