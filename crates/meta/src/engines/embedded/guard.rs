//! A guard against panics of redb, which can occur when a page of the database is damaged.

use crate::engine::Broken;
use redb::Database;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the result of `work`, or an error if `work` panicked.
///
/// Records have checksums, but the inner pages of redb's B-tree have none, and redb trusts their content. So redb may
/// panic when such a page is damaged.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Broken::new(format_args!("its file is damaged: {text}"))
    })
}

/// A database that can be closed even after redb has panicked.
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
        // redb need not write unsaved changes when the database is closed, because the next open replays these changes
        // from the batch log.
        if let Err(broken) = guarded(|| drop(database)) {
            tracing::error!(%broken, "cannot close the metadata store");
        }
    }
}
