//! The redb table of the embedded store: keys and values, with a checksum that every read verifies.

use super::guard::guarded;
use super::record_checksum;
use crate::engine::{Broken, Key, Unreadable, Value};
use redb::{AccessGuard, ReadOnlyTable, StorageError};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A read-only snapshot of the table of records, as of a commit to the database.
pub(super) type Snapshot = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// A snapshot of the table of records, with a counter that each read of a damaged record increments.
#[derive(Clone, Copy)]
pub(super) struct Reading<'t>(pub(super) &'t Snapshot, pub(super) &'t AtomicU64);

impl<'t> Reading<'t> {
    fn damaged(&self, key: &[u8]) -> Unreadable {
        self.1.fetch_add(1, Relaxed);
        tracing::error!(key = %key.escape_ascii(), "a record of the metadata store does not match its checksum");
        Unreadable::Corrupt(key.to_vec())
    }

    fn find(&self, key: &[u8]) -> Result<Option<Option<Value>>, StorageError> {
        let found = self.0.get(key)?;
        Ok(found.map(|sealed| record_checksum::open(key, sealed.value()).map(Value::copy_from_slice)))
    }

    /// Returns the value of `key`; `None` if the snapshot has no such record.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable> {
        match guarded(|| self.find(key)) {
            Ok(Ok(None)) => Ok(None),
            Ok(Ok(Some(Some(value)))) => Ok(Some(value)),
            Ok(Ok(Some(None))) | Err(_) => Err(self.damaged(key)),
            Ok(Err(error)) => Err(Broken::new(error).into()),
        }
    }

    /// Returns an iterator over the records of `range`, in key order.
    pub(super) fn walk(self, range: Range<&[u8]>) -> Result<Walker<'t>, Unreadable> {
        let at = range.start.to_vec();
        let entries = guarded(|| self.0.range::<&[u8]>(range)).map_err(|_| self.damaged(&at))?;
        Ok(Walker { table: self, entries: entries.map_err(Broken::new)?, at })
    }
}

/// An iterator over the records of a key range in a snapshot of the table.
pub(super) struct Walker<'t> {
    table: Reading<'t>,
    entries: redb::Range<'static, &'static [u8], &'static [u8]>,
    /// Key of the last record that the iterator returned. The error names this key if damage hides the next record.
    at: Key,
}

impl<'t> Walker<'t> {
    /// Returns the next record. If damage hides the next record, the error names the last key before the damage.
    pub(super) fn step(&mut self) -> Result<Option<Entry<'t>>, Unreadable> {
        let next = guarded(|| self.entries.next()).map_err(|_| self.table.damaged(&self.at))?;
        let Some((key, sealed)) = next.transpose().map_err(Broken::new)? else { return Ok(None) };
        // redb reads the database page only when the key and the value are accessed, so guard this access against
        // panics too.
        guarded(|| (key.value(), sealed.value())).map_err(|_| self.table.damaged(&self.at))?;
        self.at.clear();
        self.at.extend_from_slice(key.value());
        Ok(Some(Entry { table: self.table, key, sealed }))
    }
}

/// A record that an iterator over the table has returned.
pub(super) struct Entry<'t> {
    table: Reading<'t>,
    key: AccessGuard<'static, &'static [u8]>,
    sealed: AccessGuard<'static, &'static [u8]>,
}

impl Entry<'_> {
    /// Returns the key of the record.
    pub(super) fn key(&self) -> &[u8] {
        self.key.value()
    }

    /// Returns the value. If the checksum does not match, counts the damaged record and returns `None`.
    pub(super) fn value(&self) -> Option<&[u8]> {
        let value = record_checksum::open(self.key.value(), self.sealed.value());
        if value.is_none() {
            self.table.damaged(self.key.value());
        }
        value
    }
}
