//! Errors when an embedded store is created or opened.

use crate::log::LogError;
use redb::{DatabaseError, StorageError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The reason why a store could not be created or opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the error text documents each variant
pub enum StoreError {
    #[error("no metadata store at {0}; make one with `weir mkfs mgr`")]
    Missing(PathBuf),
    #[error("{0} is already a metadata store")]
    Exists(PathBuf),
    #[error(
        "another mgr is using the metadata store {0}; stop that mgr first, because two mgrs would destroy the store"
    )]
    InUse(PathBuf),
    #[error("{path} is not a metadata store, or is damaged: {cause}")]
    Damaged { path: PathBuf, cause: String },
    #[error("the metadata store {path} cannot be used: {cause}")]
    Unusable { path: PathBuf, cause: String },
    #[error(
        "the metadata store {0} is incomplete, because `weir mkfs` was interrupted; remove it and run `weir mkfs` again"
    )]
    Unfinished(PathBuf),
    #[error(
        "the metadata store {0} has a format that this version of weir cannot read; copy its files out with the version \
         that made it"
    )]
    Old(PathBuf),
    #[error(
        "the batch log {log} of the metadata store {store} is missing; put it back, because it contains the last durable changes"
    )]
    LogMissing { store: PathBuf, log: PathBuf },
    #[error("the batch log of the metadata store {path} cannot be used: {cause}")]
    Log { path: PathBuf, cause: LogError },
    #[error(
        "no space left on the disk of the metadata store {0}: nothing is lost; free space, then start the mgr again"
    )]
    Full(PathBuf),
}

impl StoreError {
    pub(super) fn damaged(path: &Path, cause: impl ToString) -> Self {
        StoreError::Damaged { path: path.to_owned(), cause: cause.to_string() }
    }

    pub(super) fn from_redb(path: &Path, error: impl Into<DatabaseError>) -> Self {
        match error.into() {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(path.to_owned()),
            DatabaseError::Storage(StorageError::Io(cause)) => Self::from_io(path, cause),
            other => StoreError::Damaged { path: path.to_owned(), cause: other.to_string() },
        }
    }

    pub(super) fn from_io(path: &Path, cause: io::Error) -> Self {
        let path = path.to_owned();
        match cause.kind() {
            ErrorKind::NotFound => StoreError::Missing(path),
            ErrorKind::AlreadyExists => StoreError::Exists(path),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full(path),
            ErrorKind::InvalidData => StoreError::Damaged { path, cause: cause.to_string() },
            _ => StoreError::Unusable { path, cause: cause.to_string() },
        }
    }

    pub(super) fn from_log(path: &Path, cause: LogError) -> Self {
        match cause {
            LogError::Io(cause) if cause.kind() == ErrorKind::StorageFull => StoreError::Full(path.to_owned()),
            cause => StoreError::Log { path: path.to_owned(), cause },
        }
    }
}
