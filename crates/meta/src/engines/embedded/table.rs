//! The table of the store as a view of keys and values, every one of them checked.

use super::guard::guarded;
use super::seal;
use crate::engine::{Broken, Key, Survey, Unreadable, Value, View, Walk};
use redb::{ReadOnlyTable, ReadableTable, StorageError};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A table as a view: the writer's own inside a transaction, or a snapshot. Damaged records are counted.
pub(super) struct Reading<'t, T>(pub(super) &'t T, pub(super) &'t AtomicU64);

fn damaged(key: &[u8], count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
    tracing::error!(key = %key.escape_ascii(), "a record of the metadata store does not match its checksum");
}

impl<T: ReadableTable<&'static [u8], &'static [u8]>> Reading<'_, T> {
    fn find(&self, key: &[u8]) -> Result<Option<Option<Value>>, StorageError> {
        let found = self.0.get(key)?;
        Ok(found.map(|sealed| seal::open(key, sealed.value()).map(Value::copy_from_slice)))
    }
}

impl<T: ReadableTable<&'static [u8], &'static [u8]>> View for Reading<'_, T> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable> {
        match guarded(|| self.find(key)) {
            Ok(Ok(None)) => Ok(None),
            Ok(Ok(Some(Some(value)))) => Ok(Some(value)),
            Ok(Ok(Some(None))) | Err(_) => {
                damaged(key, self.1);
                Err(Unreadable::Corrupt(key.to_vec()))
            }
            Ok(Err(error)) => Err(Broken::new(error).into()),
        }
    }

    fn survey(&self, range: Range<&[u8]>, limit: usize, visit: &mut Survey<'_>) -> Result<Option<Key>, Unreadable> {
        if range.start >= range.end {
            return Ok(None);
        }
        let mut at = range.start.to_vec();
        let damage = |at: &[u8]| {
            damaged(at, self.1);
            Unreadable::Corrupt(at.to_vec())
        };
        let entries = guarded(|| self.0.range::<&[u8]>(range)).map_err(|_| damage(&at))?;
        let mut entries = entries.map_err(Broken::new)?;
        let mut shown = 0;
        loop {
            let entry = match guarded(|| entries.next()) {
                Ok(None) => return Ok(None),
                Ok(Some(entry)) => entry.map_err(Broken::new)?,
                // Nobody knows where it would go on.
                Err(_) => return Err(damage(&at)),
            };
            let (key, sealed) = entry;
            // Looking at them is what reads the page.
            let Ok((key, sealed)) = guarded(|| (key.value(), sealed.value())) else { return Err(damage(&at)) };
            if shown == limit {
                return Ok(Some(key.to_vec()));
            }
            let value = seal::open(key, sealed);
            if value.is_none() {
                damaged(key, self.1);
            }
            at.clear();
            at.extend_from_slice(key);
            shown = if visit(key, value) == Walk::Stop { limit } else { shown + 1 };
        }
    }
}

pub(super) struct Snapshot<'s>(pub(super) ReadOnlyTable<&'static [u8], &'static [u8]>, pub(super) &'s AtomicU64);

impl View for Snapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable> {
        Reading(&self.0, self.1).get(key)
    }

    fn survey(&self, range: Range<&[u8]>, limit: usize, visit: &mut Survey<'_>) -> Result<Option<Key>, Unreadable> {
        Reading(&self.0, self.1).survey(range, limit, visit)
    }
}
