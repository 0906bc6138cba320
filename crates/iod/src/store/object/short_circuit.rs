//! Lending the file of an object to a local process for short-circuit reads.
//!
//! After each read, the reader checks two conditions: the beginning of the file is unchanged since the file was lent,
//! and the file has a name. FENCE changes the beginning and REMOVE removes the name, each before its answer. So if both
//! conditions hold after a read, the read happened before any FENCE or REMOVE took effect.

use std::fs::File;

use types::{Generation, Status};
use wire::native::Failure;

use super::Object;
use crate::counters::Counters;
use crate::store::{Store, failure};

/// A file to pass to a short-circuit reader.
pub(crate) struct Lent {
    /// Open for reading only.
    pub(crate) file: File,
    /// The first bytes of the file. They change when a FENCE invalidates the capabilities of the requested generation.
    pub(crate) mark: Vec<u8>,
}

impl Object {
    /// Opens the object's file for a short-circuit reader; returns `None` if the object does not exist. Fails if blocks
    /// have checksums, because the reader cannot verify them.
    pub(crate) fn lend(&self, store: &Store, generation: Generation) -> Result<Option<Lent>, Failure> {
        let state = self.shared(store)?;
        let Some(open) = state.checked(generation)? else { return Ok(None) };
        let no = |why: &str| Failure { status: Status::NotSupp, detail: Some(why.into()) };
        if open.sums.is_some() {
            return Err(no("the store has block checksums, which the iod verifies"));
        }
        // While this thread holds the shared lock, no other thread can remove or create the object or change its
        // generation. So the name belongs to this object, and the head below is the beginning of its file.
        let opened = store.open_to_lend(self.id).map_err(|e| failure(&e, "open the object for short-circuit reads"))?;
        let file = opened.ok_or_else(|| no("the store keeps no files that a client could read itself"))?;
        Counters::add(&store.counters().objects_short_circuit, 1);
        Ok(Some(Lent { file, mark: open.head().mark() }))
    }
}
