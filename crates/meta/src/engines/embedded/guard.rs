//! A guard against damaged pages of the database, on which redb may panic.

use crate::engine::Broken;
use redb::Database;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the result of `work`; an error if it panicked.
///
/// Checksums reveal a damaged record, but a page that leads to the record may be damaged too, and redb trusts what it
/// reads from a page.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Broken::new(format_args!("its file is damaged: {text}"))
    })
}

/// A database that can be closed after it has panicked.
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
        // The next open of the store repeats the changes that this close could not write.
        if let Err(broken) = guarded(|| drop(database)) {
            tracing::error!(%broken, "cannot close the metadata store");
        }
    }
}
