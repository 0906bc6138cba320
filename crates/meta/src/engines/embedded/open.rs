//! Opening of an embedded store: finds the batch log and replays the changes in the log into the database table.

use super::guard::{Guarded, guarded};
use super::memtable::Memtable;
use super::table::Snapshot;
use super::writer::Writer;
use super::{ANCHOR, Free, LOG, Shared, StoreError, TABLE, record_checksum};
use crate::engine::{MergeFn, Value};
use crate::log::{Anchor, Changes, Log, LogDisk};
use redb::{Database, Durability, ReadableDatabase, Table, TableError, WriteTransaction};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use types::limits;

/// The components from which a store is opened: the open database, the merge function, the path, and the query for free
/// space.
pub(super) struct Base {
    pub(super) database: Guarded,
    pub(super) merge: MergeFn,
    pub(super) path: PathBuf,
    pub(super) free: Box<Free>,
}

/// Replays the log of a store and returns the store's writer, which can then append log records.
///
/// If the storage is empty and an `id` is given, creates an empty store with this id.
pub(super) fn attach(
    base: Base,
    id: Option<[u8; 16]>,
    disk: impl FnOnce() -> Result<Box<dyn LogDisk>, StoreError>,
) -> Result<Writer, StoreError> {
    let Base { database, merge, path, free } = base;
    let from_log = |cause| StoreError::from_log(&path, cause);
    let found = guarded(|| find(&database, &path)).map_err(|broken| StoreError::damaged(&path, broken))?;
    let mut log = match (found?, id) {
        (Some(anchor), _) => Log::open(disk()?, anchor).map_err(from_log)?,
        (None, Some(id)) => Log::format(disk()?, id).map_err(|cause| StoreError::from_io(&path, cause))?,
        (None, None) => return Err(StoreError::Unfinished(path)),
    };
    guarded(|| replay(&database, &mut log, &path)).map_err(|broken| StoreError::damaged(&path, broken))??;
    let table = guarded(|| snapshot(&database)).map_err(|broken| StoreError::damaged(&path, broken))?;
    let recent = Memtable::new(table.map_err(|error| StoreError::from_redb(&path, error))?);
    let (queue, state) = (Arc::default(), Mutex::default());
    let id = log.anchor().store;
    let shared = Shared { recent, database, queue, merge, state, corrupt: Default::default(), free, path, id };
    Ok(Writer::new(Arc::new(shared), log))
}

/// Returns the log's anchor (the position after which a replay begins) from a database; `None` if the database is
/// empty.
fn find(database: &Database, path: &Path) -> Result<Option<Anchor>, StoreError> {
    let from_redb = |error: redb::StorageError| StoreError::from_redb(path, error);
    let damaged = |cause: String| StoreError::damaged(path, cause);
    let transaction = database.begin_read().map_err(|error| damaged(error.to_string()))?;
    let table = match transaction.open_table(LOG) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => {
            return match transaction.open_table(TABLE) {
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(TableError::Storage(error)) => Err(from_redb(error)),
                Ok(_) | Err(_) => Err(StoreError::Old(path.to_owned())),
            };
        }
        Err(TableError::Storage(error)) => return Err(from_redb(error)),
        Err(error) => return Err(damaged(error.to_string())),
    };
    let sealed = table.get(ANCHOR).map_err(from_redb)?;
    let sealed = sealed.ok_or_else(|| damaged("it does not say where its batch log stands".into()))?;
    let anchor = record_checksum::open(ANCHOR, sealed.value());
    let anchor = anchor.ok_or_else(|| damaged("the record of its batch log does not match its checksum".into()))?;
    Anchor::from_bytes(anchor).map(Some).map_err(|cause| damaged(cause.to_string()))
}

/// Replays the log into the table of records and begins a new run of the log, in one durable transaction. A run is the
/// time between two opens of the store; each run has its own number.
fn replay(database: &Database, log: &mut Log, path: &Path) -> Result<(), StoreError> {
    let first = log.anchor().index;
    let transaction = begin(database).map_err(|error| StoreError::from_redb(path, error))?;
    {
        // Create the table of records if it is missing, because snapshots require the table.
        let mut table = open(&transaction, TABLE).map_err(|error| StoreError::from_redb(path, error))?;
        let mut together = Changes::new();
        let mut bytes = 0;
        while let Some(changes) = log.read_on().map_err(|cause| StoreError::from_log(path, cause))? {
            bytes +=
                changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |v| v.len())).sum::<usize>();
            together.extend(changes);
            if bytes >= limits::META_GROUP_BYTES {
                bytes = 0;
                write(&mut table, &together).map_err(|error| StoreError::from_redb(path, error))?;
                together.clear();
            }
        }
        write(&mut table, &together).map_err(|error| StoreError::from_redb(path, error))?;
    }
    let records = log.anchor().index - first;
    log.begin();
    commit(transaction, &log.anchor(), true).map_err(|error| StoreError::from_redb(path, error))?;
    log.applied();
    if records > 0 {
        tracing::info!(store = %path.display(), records, "replayed the batch log into the metadata store");
    }
    Ok(())
}

pub(super) fn begin(database: &Database) -> Result<WriteTransaction, redb::StorageError> {
    database.begin_write().map_err(|error| match error {
        redb::TransactionError::Storage(error) => error,
        other => redb::StorageError::Corrupted(other.to_string()),
    })
}

/// Returns a snapshot of the table of records as of the last commit to the database.
pub(super) fn snapshot(database: &Database) -> Result<Snapshot, redb::StorageError> {
    let transaction = database.begin_read().map_err(|error| match error {
        redb::TransactionError::Storage(error) => error,
        other => redb::StorageError::Corrupted(other.to_string()),
    })?;
    transaction.open_table(TABLE).map_err(from_table)
}

fn from_table(error: TableError) -> redb::StorageError {
    match error {
        TableError::Storage(error) => error,
        other => redb::StorageError::Corrupted(other.to_string()),
    }
}

type Open<'t> = Table<'t, &'static [u8], &'static [u8]>;

/// Opens a table of the database in a transaction.
pub(super) fn open(transaction: &WriteTransaction, table: super::Table) -> Result<Open<'_>, redb::StorageError> {
    transaction.open_table(table).map_err(from_table)
}

/// Writes changes to the table of records, with the checksum of each record.
pub(super) fn write(table: &mut Open<'_>, changes: &Changes) -> Result<(), redb::StorageError> {
    let mut sealed = Vec::new();
    changes.iter().try_for_each(|(key, value)| change(table, key, value.as_ref(), &mut sealed))
}

/// Writes one change to the table of records; `sealed` is a scratch buffer for the record with its checksum.
pub(super) fn change(
    table: &mut Open<'_>,
    key: &[u8],
    value: Option<&Value>,
    sealed: &mut Vec<u8>,
) -> Result<(), redb::StorageError> {
    match value {
        Some(value) => {
            record_checksum::seal(key, value, sealed);
            table.insert(key, &sealed[..])?;
        }
        None => drop(table.remove(key)?),
    }
    Ok(())
}

/// Commits a transaction together with the log's anchor (the position after which a replay begins).
///
/// If `durable` is set, this commit and all earlier commits are durable on return. The transaction then also contains
/// redb's quick-repair data, so that the next open need not read the whole database. Otherwise the changes are
/// durable only in the log.
pub(super) fn commit(
    mut transaction: WriteTransaction,
    anchor: &Anchor,
    durable: bool,
) -> Result<(), redb::StorageError> {
    let mut sealed = Vec::new();
    record_checksum::seal(ANCHOR, &anchor.to_bytes(), &mut sealed);
    open(&transaction, LOG)?.insert(ANCHOR, &sealed[..])?;
    transaction.set_quick_repair(durable);
    let durability = if durable { Durability::Immediate } else { Durability::None };
    transaction.set_durability(durability).map_err(|error| redb::StorageError::Corrupted(error.to_string()))?;
    transaction.commit().map_err(|error| match error {
        redb::CommitError::Storage(error) => error,
        other => redb::StorageError::Corrupted(other.to_string()),
    })
}
