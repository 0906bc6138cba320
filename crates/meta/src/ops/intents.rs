//! The intents of files: storing, listing and removing them.

use super::Plan;
use crate::engine::{Expect, Walk};
use crate::schema::{self, Body, FileIntent, Intent, Record};
use crate::tx::Tx;
use types::{FileId, Status};

/// Returns up to `max` intents after the intent `after`, in the order of files and intent kinds. Skips damaged records,
/// which `weir fsck` reports.
pub(crate) fn read(tx: &Tx<'_>, after: Option<FileIntent>, max: usize) -> Result<Vec<FileIntent>, Status> {
    let mut from = schema::intent_key(FileId(0), 0);
    if let Some(after) = after {
        from = schema::intent_key(after.file, after.intent.kind());
        from.push(0);
    }
    let mut intents = Vec::new();
    tx.survey(&from, &schema::past_all(&from), usize::MAX, &mut |key, value| {
        match (schema::intent_of(key), value.and_then(Intent::look)) {
            (Ok((file, kind)), Some(intent)) if intent.kind() == kind => intents.push(FileIntent { file, intent }),
            _ => tracing::error!(key = %key.escape_ascii(), "the intent of a file is damaged: run `weir fsck`"),
        }
        if intents.len() < max { Walk::On } else { Walk::Stop }
    })?;
    Ok(intents)
}

/// Returns all intents of a file.
pub(crate) fn of(tx: &Tx<'_>, file: FileId) -> Result<Vec<Intent>, Status> {
    let mut intents = Vec::new();
    let (from, to) = (schema::intent_key(file, 0), schema::intents_end(file));
    tx.survey(&from, &to, usize::from(u8::MAX), &mut |_, value| {
        intents.extend(value.and_then(Intent::look));
        Walk::On
    })?;
    Ok(intents)
}

/// Stores an intent of a regular file; `Stale` if the file does not exist.
pub(crate) fn plan(tx: &mut Tx<'_>, intent: FileIntent) -> Plan<()> {
    // Deleting an inode deletes its intents. The precondition on the core record ensures that the inode still exists at
    // the commit.
    let core = tx.rely_on(intent.file)?;
    let Body::Regular { .. } = core.body else { return Err(Status::WrongType) };
    // Write the intent even if an equal one exists, because a concurrent batch may remove the existing intent before
    // this batch commits.
    tx.put(schema::intent_key(intent.file, intent.intent.kind()), intent.intent.to_value());
    super::known(())
}

/// Removes intents from the store; keeps an intent whose stored value differs from the given value. Set `durable` if
/// it would do harm to complete a removed intent a second time after a crash.
pub(crate) fn remove(tx: &mut Tx<'_>, done: &[FileIntent], durable: bool) -> Plan<()> {
    tx.frees();
    if !durable {
        tx.not_durable();
    }
    for intent in done {
        let (key, value) = (schema::intent_key(intent.file, intent.intent.kind()), intent.intent.to_value());
        if tx.get(&key)?.as_ref() == Some(&value) {
            tx.expect(Expect::Reads(key.clone(), value));
            tx.delete(key);
        }
    }
    super::known(())
}
