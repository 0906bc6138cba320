//! A commit group: batches that the store commits together. Each batch sees the changes of earlier batches in the
//! commit group, and is applied completely or not at all.

use super::{Batch, Broken, Expect, Key, MergeFn, Merged, Unreadable, Value, View, Walk, Write};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The result of applying a batch to a commit group.
pub(crate) enum Verdict {
    /// The preconditions held, and the commit group contains the changes of the batch.
    Applied(Vec<Merged>),
    /// A precondition did not hold, or a delta could not be applied. The variant contains the index of the failed
    /// precondition or change; preconditions count first, then changes.
    Conflict(usize),
    /// The batch depends on the record with this key, which is damaged.
    Corrupt(Key),
}

/// The changes of the batches in a commit group, applied to a view of the store as it was before the commit group.
pub(crate) struct CommitGroup<'a> {
    base: &'a dyn View,
    merge: MergeFn,
    changes: BTreeMap<Key, Option<Value>>,
}

impl<'a> CommitGroup<'a> {
    /// Returns a commit group without batches, whose batches will be applied to the view `base`.
    pub(crate) fn new(base: &'a dyn View, merge: MergeFn) -> Self {
        CommitGroup { base, merge, changes: BTreeMap::new() }
    }

    /// Returns every changed key with its new value, in key order; `None` means that the key is deleted.
    pub(crate) fn into_changes(self) -> BTreeMap<Key, Option<Value>> {
        self.changes
    }

    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.base.get(key),
        }
    }

    fn is_clear(&self, from: &[u8], to: &[u8]) -> Result<bool, Unreadable> {
        if from >= to {
            return Ok(true);
        }
        let mut changed = self.changes.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
        if changed.any(|(_, value)| value.is_some()) {
            return Ok(false);
        }
        let mut clear = true;
        self.base.survey(from..to, usize::MAX, &mut |key, _| {
            // The commit group sets no value in this range. So it deletes a record of the range if it has a change for
            // the record's key.
            clear = self.changes.contains_key(key);
            if clear { Walk::On } else { Walk::Stop }
        })?;
        Ok(clear)
    }

    fn holds(&self, expect: &Expect) -> Result<bool, Unreadable> {
        Ok(match expect {
            Expect::Absent(key) => self.get(key)?.is_none(),
            Expect::Reads(key, value) => self.get(key)?.as_ref() == Some(value),
            Expect::NoneIn(from, to) => self.is_clear(from, to)?,
        })
    }

    /// Applies `batch` to the commit group if all its preconditions hold.
    pub(crate) fn apply(&mut self, batch: &Batch) -> Result<Verdict, Broken> {
        match self.try_apply(batch) {
            Ok(verdict) => Ok(verdict),
            Err(Unreadable::Corrupt(key)) => Ok(Verdict::Corrupt(key)),
            Err(Unreadable::Broken(broken)) => Err(broken),
        }
    }

    fn try_apply(&mut self, batch: &Batch) -> Result<Verdict, Unreadable> {
        for (index, expect) in batch.expects.iter().enumerate() {
            if !self.holds(expect)? {
                return Ok(Verdict::Conflict(index));
            }
        }
        let mut staged: Vec<(Key, Option<Value>)> = Vec::with_capacity(batch.writes.len());
        let mut merged = Vec::new();
        for (index, (key, write)) in batch.writes.iter().enumerate() {
            let value = match write {
                Write::Put(value) => Some(value.clone()),
                Write::Delete => None,
                Write::Merge(delta) => {
                    let before = match staged.iter().rev().find(|(staged, _)| staged == key) {
                        Some((_, value)) => value.clone(),
                        None => self.get(key)?,
                    };
                    let Some(after) = (self.merge)(before.as_deref(), delta) else {
                        return Ok(Verdict::Conflict(batch.expects.len() + index));
                    };
                    merged.push((before, after.clone()));
                    Some(after)
                }
            };
            staged.push((key.clone(), value));
        }
        self.changes.extend(staged);
        Ok(Verdict::Applied(merged))
    }
}
