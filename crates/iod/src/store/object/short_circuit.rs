//! Short-circuit reads on the iod: the opening of an object file for a local process.
//!
//! After each read, the client checks two conditions: the header of the file has not changed after the loan, and the
//! file still has a name. FENCE changes the header and REMOVE removes the name, each before the iod replies. So if both
//! conditions hold after a read, the read happened before any FENCE or REMOVE took effect.

use std::fs::File;

use types::{Generation, Status};
use wire::native::Failure;

use super::Object;
use crate::counters::Counters;
use crate::store::{Store, failure};

/// An object file for a short-circuit reader, and the bytes by which the reader validates the file.
pub(crate) struct ShortCircuitFile {
    /// The object file, opened read-only.
    pub(crate) file: File,
    /// The first bytes of the object file. These bytes change when a FENCE makes the capability of the reader invalid.
    pub(crate) mark: Vec<u8>,
}

impl Object {
    /// Opens the object's file for a short-circuit reader; returns `None` if the object does not exist. Fails if the
    /// object has block checksums, because the reader cannot verify them.
    pub(crate) fn lend(&self, store: &Store, generation: Generation) -> Result<Option<ShortCircuitFile>, Failure> {
        let state = self.shared(store)?;
        let Some(open) = state.checked(generation)? else { return Ok(None) };
        let no = |why: &str| Failure { status: Status::NotSupp, detail: Some(why.into()) };
        if open.sums.is_some() {
            return Err(no("the store has block checksums, which the iod verifies"));
        }
        // While this thread holds the shared lock, no other thread can remove or create the object, or change its
        // generation. So the opened file is the object's file, and it begins with the header that this function
        // returns.
        let opened = store.open_to_lend(self.id).map_err(|e| failure(&e, "open the object for short-circuit reads"))?;
        let file = opened.ok_or_else(|| no("the store keeps no files that a client could read itself"))?;
        Counters::add(&store.counters().objects_short_circuit, 1);
        Ok(Some(ShortCircuitFile { file, mark: open.head().mark() }))
    }
}
