//! Background jobs of the mgr: work that no request waits for.

pub(crate) mod collect_orphans;
pub(crate) mod delete_objects;
pub(crate) mod delete_unused;
pub(crate) mod finish_intents;
pub(crate) mod rebuild_copies;
pub(crate) mod recall_layouts;
pub(crate) mod scrub;
