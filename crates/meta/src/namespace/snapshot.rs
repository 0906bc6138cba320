//! The random id of the metadata store, and dumps of a consistent snapshot of all records in the store.

use super::Namespace;
use crate::dump::{DumpHead, Encoder};
use crate::engine::{Broken, Engine, Key, Unreadable, Walk};
use types::StoreId;

/// The reason why a dump failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the error text documents each variant
pub enum DumpError {
    #[error("record {} of the metadata store is damaged; run `weir fsck`", .0.escape_ascii())]
    Damaged(Key),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("the dump was cancelled")]
    Unwanted,
}

impl From<Unreadable> for DumpError {
    fn from(cause: Unreadable) -> Self {
        match cause {
            Unreadable::Corrupt(key) => DumpError::Damaged(key),
            Unreadable::Broken(broken) => DumpError::Broken(broken),
        }
    }
}

/// What a dump passes to the caller's sink: the start of the dump, or the next bytes of the dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DumpPart {
    /// The snapshot was taken; the dump contains no change that is committed after this event.
    Begun,
    /// The next bytes of the dump, with the number of records in them.
    Bytes {
        /// The next bytes of the dump, in order.
        bytes: Vec<u8>,
        /// Number of records in `bytes`.
        records: u64,
    },
}

impl<E: Engine> Namespace<E> {
    /// Returns the id that the store received at its creation; zeros for a store in memory.
    pub fn identity(&self) -> StoreId {
        StoreId(self.shared.engine.identity())
    }

    /// Dumps every record of one consistent snapshot and passes the bytes of the dump to `sink`, in order.
    ///
    /// `store` is the store id for the dump's header. `created` is the time of the dump in seconds since the Unix
    /// epoch.
    pub fn dump_into(
        &self,
        store: StoreId,
        created: u64,
        sink: &mut dyn FnMut(DumpPart) -> Walk,
    ) -> Result<(), DumpError> {
        let view = self.shared.engine.view()?;
        let mut tell = |part| match sink(part) {
            Walk::On => Ok(()),
            Walk::Stop => Err(DumpError::Unwanted),
        };
        tell(DumpPart::Begun)?;
        let (mut encoder, bytes) = Encoder::new(&DumpHead { fsid: self.fsid(), store, created });
        tell(DumpPart::Bytes { bytes, records: 0 })?;
        let mut outcome = Ok(());
        view.survey(&b""[..]..&[0xff; 1][..], usize::MAX, &mut |key, value| {
            outcome = match value {
                Some(value) => match encoder.add(key, value) {
                    Some((bytes, records)) => tell(DumpPart::Bytes { bytes, records }),
                    None => Ok(()),
                },
                None => Err(DumpError::Damaged(key.to_vec())),
            };
            if outcome.is_ok() { Walk::On } else { Walk::Stop }
        })?;
        outcome?;
        let (bytes, records) = encoder.end();
        tell(DumpPart::Bytes { bytes, records })
    }
}
