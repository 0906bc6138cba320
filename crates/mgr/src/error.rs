//! Errors that keep a mgr from starting, with messages that say what to do.

use std::io;
use std::path::PathBuf;

/// Why a mgr or its files could not be created, or why a mgr could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory or file does not exist.
    #[error("{path}: there is no such file or directory; {hint}")]
    Missing {
        /// The path that was expected.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// The path to be created exists already.
    #[error("{path} exists already; {hint}")]
    Exists {
        /// The existing path.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// The operating system returned an error.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// The path of the failed operation.
        path: PathBuf,
        /// The failed operation.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file has invalid content.
    #[error("{path}: {reason}")]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// A setting has an invalid value.
    #[error("{name}: {reason}")]
    BadConfig {
        /// The setting's name in the configuration file.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The metadata store cannot be used.
    #[error(transparent)]
    Store(#[from] meta::StoreError),
    /// The content of the metadata store cannot be used.
    #[error(transparent)]
    Namespace(#[from] meta::OpenError),
    /// The metadata store failed while the mgr ran.
    #[error("{0}; no change that was reported as durable is lost: repair its disk, then start the mgr again")]
    StoreFailed(meta::engine::Broken),
    /// Store and cluster file belong to different file systems.
    #[error(
        "the metadata store {store} is of file system {found}, but the cluster file {file} is of {expected}: give the \
         cluster file that this store was formatted with"
    )]
    ForeignStore {
        /// The store.
        store: PathBuf,
        /// File system of the store.
        found: types::Fsid,
        /// The cluster file.
        file: PathBuf,
        /// File system of the cluster file.
        expected: types::Fsid,
    },
    /// The cluster file names another metadata store.
    #[error(
        "the metadata store {store} is {found}, but the cluster file {file} names the store {expected}; give the directory of \
         that store, or the cluster file of this one"
    )]
    OtherStore {
        /// The store.
        store: PathBuf,
        /// The identity of the store.
        found: types::StoreId,
        /// The cluster file.
        file: PathBuf,
        /// The store that it names.
        expected: types::StoreId,
    },
    /// An iod must not be used with this metadata store.
    #[error("iod {address}: {refusal}")]
    IodRefused {
        /// The address of the iod.
        address: String,
        /// Why, and what to do.
        refusal: crate::iods::Refusal,
    },
    /// An older copy of the metadata store is accepted only when all its iods answer.
    #[error(
        "--recover-old-store needs every iod of the file system, and {iod} cannot be asked ({reason}); start it, or name it in \
         the configuration, then start the mgr again"
    )]
    RecoverUnreached {
        /// The iod.
        iod: String,
        /// Why.
        reason: String,
    },
    /// The mgr cannot listen at an address.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// A start needs a little free space on the metadata disk.
    #[error("no space left on the disk of the metadata store: nothing is lost; free space, then start the mgr again")]
    Full,
    /// The metadata store failed while starting.
    #[error("the metadata store failed: {0}")]
    Metadata(types::Status),
    /// The operating system returned no random numbers.
    #[error("the operating system returned no random numbers: {0}")]
    Random(getrandom::Error),
}

/// Returns the error of a file operation, with a hint for missing files.
pub(crate) fn io_error(path: &std::path::Path, action: &'static str, hint: &'static str, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => Error::Missing { path: path.to_owned(), hint },
        _ => Error::Io { path: path.to_owned(), action, source },
    }
}

/// Returns `N` unpredictable random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes)
}
