//! A guard against panics of redb, which can occur when a page of the database is damaged.

use crate::engine::Broken;
use redb::Database;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the result of `work`, or an error if `work` panicked.
///
/// Checksums protect records, but not the inner pages of the B-tree. redb trusts the content of these pages.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Broken::new(format_args!("its file is damaged: {text}"))
    })
}

/// A database that stays closable after redb has panicked.
pub(super) struct Guarded(Option<Database>);

impl Guarded {
    pub(super) fn new(database: Database) -> Self {
        Guarded(Some(database))
    }
}

impl Deref for Guarded {
    type Target = Database;

    fn deref(&self) -> &Database {
        match &self.0 {
            Some(database) => database,
            None => unreachable!("it is taken when this is dropped"),
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let database = self.0.take();
        // redb need not write unsaved changes when it closes, because the next open replays them from the batch log.
        if let Err(broken) = guarded(|| drop(database)) {
            tracing::error!(%broken, "cannot close the metadata store");
        }
    }
}
