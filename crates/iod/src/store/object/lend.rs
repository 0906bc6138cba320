//! Lending the file of an object to a process of the same machine, which reads it by itself.
//!
//! Who has it goes by two signs, after each read: the beginning of the file is what it was when the file was lent, and the
//! file has a name. FENCE writes another beginning, and REMOVE takes the name away, before either is answered; so what was
//! read while both signs were there was read before that.

use std::fs::File;

use types::{Generation, Status};
use wire::native::Failure;

use super::Object;
use crate::counters::Counters;
use crate::store::{Store, failure};

/// A file on its way to who reads it.
pub(crate) struct Lent {
    /// Open for reading alone.
    pub(crate) file: File,
    /// How it begins as long as capabilities of the generation asked with are good.
    pub(crate) mark: Vec<u8>,
}

impl Object {
    /// Opens its file for somebody else to read; nothing while there is no object. Not where blocks have checksums: nobody else can
    /// verify them.
    pub(crate) fn lend(&self, store: &Store, generation: Generation) -> Result<Option<Lent>, Failure> {
        let state = self.shared(store)?;
        let Some(open) = state.checked(generation)? else { return Ok(None) };
        let no = |why: &str| Failure { status: Status::NotSupp, detail: Some(why.into()) };
        if open.sums.is_some() {
            return Err(no("the store has block checksums, which the iod verifies"));
        }
        // As long as it is shared nobody removes it, makes it anew or changes its generation: the name is that of this very
        // object, and this is what its file begins with.
        let opened = store.open_to_lend(self.id).map_err(|e| failure(&e, "open the object to lend it"))?;
        let file = opened.ok_or_else(|| no("the store has no files that could be lent"))?;
        Counters::add(&store.counters().objects_lent, 1);
        Ok(Some(Lent { file, mark: open.head().mark() }))
    }
}
