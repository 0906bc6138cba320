//! Errors at the start of a mgr, with messages that say what the user must do.

use std::io;
use std::path::PathBuf;

/// Why the mgr's files could not be created, or why a mgr could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory or file does not exist.
    #[error("{path}: there is no such file or directory; {hint}")]
    Missing {
        /// The path that does not exist.
        path: PathBuf,
        /// What the user can do about the path that does not exist.
        hint: &'static str,
    },
    /// The path that the mgr was to create exists already.
    #[error("{path} exists already; {hint}")]
    Exists {
        /// The path that exists already.
        path: PathBuf,
        /// What the user can do about the path that exists already.
        hint: &'static str,
    },
    /// The operating system returned an error for a file operation.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// The path of the failed operation.
        path: PathBuf,
        /// The failed operation, as a verb phrase for the message.
        action: &'static str,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// A file has invalid content.
    #[error("{path}: {reason}")]
    BadFile {
        /// The path of the file with the invalid content.
        path: PathBuf,
        /// What is wrong with the content of the file, and what the user must do.
        reason: String,
    },
    /// A setting in the configuration file has an invalid value.
    #[error("{name}: {reason}")]
    BadConfig {
        /// Name of the setting in the configuration file.
        name: &'static str,
        /// What is wrong with the value of the setting.
        reason: String,
    },
    /// The metadata store cannot be opened.
    #[error(transparent)]
    Store(#[from] meta::StoreError),
    /// The namespace in the metadata store cannot be opened.
    #[error(transparent)]
    Namespace(#[from] meta::OpenError),
    /// The metadata store failed while the mgr was running.
    #[error("{0}; no change that was reported as durable is lost: repair its disk, then start the mgr again")]
    StoreFailed(meta::engine::Broken),
    /// The metadata store and the cluster file belong to different file systems.
    #[error(
        "the metadata store {store} is of file system {found}, but the cluster file {file} is of {expected}: give the \
         cluster file that this store was formatted with"
    )]
    ForeignStore {
        /// Path of the metadata store.
        store: PathBuf,
        /// File system identity in the metadata store.
        found: types::Fsid,
        /// Path of the cluster file.
        file: PathBuf,
        /// File system identity in the cluster file.
        expected: types::Fsid,
    },
    /// The cluster file names another metadata store.
    #[error(
        "the metadata store {store} is {found}, but the cluster file {file} names the store {expected}; give the directory of \
         that store, or the cluster file of this one"
    )]
    OtherStore {
        /// Path of the metadata store.
        store: PathBuf,
        /// Identity of the metadata store.
        found: types::StoreId,
        /// Path of the cluster file.
        file: PathBuf,
        /// Identity of the metadata store that the cluster file names.
        expected: types::StoreId,
    },
    /// An iod belongs to another metadata store, or to a later state of this metadata store. So the mgr must not use
    /// the iod.
    #[error("iod {address}: {refusal}")]
    IodRefused {
        /// Address of the iod.
        address: String,
        /// Why the mgr must not use the iod, and what the user must do.
        refusal: crate::iods::Refusal,
    },
    /// With `--recover-old-store`, an iod did not reply. The mgr accepts an older copy of the metadata store only when
    /// all iods reply.
    #[error(
        "--recover-old-store needs every iod of the file system, and {iod} cannot be asked ({reason}); start it, or name it in \
         the configuration, then start the mgr again"
    )]
    RecoverUnreached {
        /// Identity or address of the iod.
        iod: String,
        /// Why the iod did not reply.
        reason: String,
    },
    /// The mgr cannot listen on an address.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// The disk of the metadata store has too little free space for a start.
    #[error("no space left on the disk of the metadata store: nothing is lost; free space, then start the mgr again")]
    Full,
    /// An operation on the metadata store failed during the start.
    #[error("the metadata store failed: {0}")]
    Metadata(types::Status),
    /// The operating system returned no random numbers.
    #[error("the operating system returned no random numbers: {0}")]
    Random(getrandom::Error),
}

/// Returns the error for a failed file operation. `hint` says what to do if the file is missing.
pub(crate) fn io_error(path: &std::path::Path, action: &'static str, hint: &'static str, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => Error::Missing { path: path.to_owned(), hint },
        _ => Error::Io { path: path.to_owned(), action, source },
    }
}

/// Returns `N` random bytes from the operating system, suitable for keys.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes)
}
