//! Backup of the metadata store: dump and restore of a store that no mgr has open.

use crate::cluster_file::ClusterFile;
use crate::error::{Error, io_error, random};
use crate::store::{self, STORE};
use meta::dump::{BadDump, Decoder, DumpHead, RestoreError};
use meta::engine::Walk;
use meta::{DumpError, DumpPart, Embedded, Namespace};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use types::StoreId;

/// Name that the metadata store file has during a restore. The mgr opens no store with this name, so it never opens an
/// incomplete store.
pub(crate) const RESTORING: &str = "restoring.redb";
/// Name of the batch log that belongs to the store file [`RESTORING`].
pub(crate) const RESTORING_LOG: &str = "restoring.log";
/// Name of the batch log in the mgr's directory, beside the metadata store.
pub(crate) const LOG: &str = "meta.log";

/// The result of [`check_dump`] or [`restore`]: a dump file that was read to its end without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dumped {
    /// The header of the dump, with the identities of the dumped file system and metadata store.
    pub head: DumpHead,
    /// Number of records in the dump.
    pub records: u64,
}

fn bad(path: &Path, cause: &BadDump) -> Error {
    Error::BadFile { path: path.to_owned(), reason: format!("{cause}; nothing was restored: use another dump") }
}

fn decoder(path: &Path) -> Result<Decoder<BufReader<File>>, Error> {
    let hint = "give a file that `weir dump` wrote";
    let file = File::open(path).map_err(|e| io_error(path, "read the dump", hint, e))?;
    Decoder::new(BufReader::new(file)).map_err(|e| bad(path, &e))
}

/// Reads a dump file to its end and checks it.
pub fn check_dump(path: &Path) -> Result<Dumped, Error> {
    let mut dump = decoder(path)?;
    while dump.next_block().map_err(|e| bad(path, &e))?.is_some() {}
    Ok(Dumped { head: *dump.head(), records: dump.records() })
}

/// Writes a dump of the metadata store in `dir` to `out`. No mgr may have the store open.
pub async fn dump(dir: &Path, cluster: &ClusterFile, cluster_file: &Path, out: &mut dyn Write) -> Result<(), Error> {
    let namespace = store::open(dir, cluster, cluster_file).await?;
    let store = store::identity(&namespace).map_err(Error::Metadata)?;
    let mut failed = None;
    let dumped = namespace.dump_into(store, net::clock::unix_now(), &mut |part| {
        let DumpPart::Bytes { bytes, .. } = part else { return Walk::On };
        match out.write_all(&bytes) {
            Ok(()) => Walk::On,
            Err(e) => {
                failed = Some(e);
                Walk::Stop
            }
        }
    });
    match (dumped, failed) {
        (Ok(()), _) => Ok(()),
        (Err(DumpError::Unwanted), Some(source)) => {
            Err(Error::Io { path: dir.to_owned(), action: "write the dump of the metadata store", source })
        }
        (Err(cause), _) => Err(Error::BadFile { path: dir.to_owned(), reason: cause.to_string() }),
    }
}

/// Restores a dump as a metadata store in `dir`, which must be missing or empty. Checks the whole dump before it
/// creates any file. Renames the complete store file to its final name at the end.
pub async fn restore(path: &Path, dir: &Path, cluster: &ClusterFile, cluster_file: &Path) -> Result<Dumped, Error> {
    let dumped = check_dump(path)?;
    let (fsid, store) = (dumped.head.fsid, dumped.head.store);
    if fsid != cluster.fsid {
        let file = cluster_file.to_owned();
        return Err(Error::ForeignStore { store: path.to_owned(), found: fsid, file, expected: cluster.fsid });
    }
    if let Some(expected) = cluster.store.filter(|expected| *expected != store) {
        let file = cluster_file.to_owned();
        return Err(Error::OtherStore { store: path.to_owned(), found: store, file, expected });
    }
    prepare(dir)?;
    let new = dir.join(RESTORING);
    fill(path, &new, store).await?;
    let io = |action| move |e| io_error(dir, action, "another process removed it meanwhile", e);
    let rename = |from: &str, to: &str| std::fs::rename(dir.join(from), dir.join(to));
    // Rename the batch log before the store file: the mgr refuses a store file without its batch log as damaged.
    rename(RESTORING_LOG, LOG).and_then(|()| rename(RESTORING, STORE)).map_err(io("name the metadata store"))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync the directory"))?;
    Ok(dumped)
}

/// Creates the directory `dir` if it is missing, and removes the files that an interrupted restore has left there.
fn prepare(dir: &Path) -> Result<(), Error> {
    let io = |action| move |e| io_error(dir, action, "make the directory above it first", e);
    match net::files::make_way(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io("make the directory")(e)),
        _ => store::narrow(dir),
    }
    for entry in std::fs::read_dir(dir).map_err(io("list the directory"))? {
        let name = entry.map_err(io("list the directory"))?.file_name();
        let is_left = name == RESTORING || name == RESTORING_LOG;
        if is_left {
            std::fs::remove_file(dir.join(name)).map_err(io("remove what an earlier attempt has left"))?;
        } else if name != "lost+found" {
            let hint = "give an empty or missing directory: a restore overwrites nothing";
            return Err(Error::Exists { path: dir.join(name), hint });
        }
    }
    Ok(())
}

/// Creates a metadata store file at `new` from the dump file at `path`.
async fn fill(path: &Path, new: &Path, store: StoreId) -> Result<(), Error> {
    // Give the batch log of the new store a new identity. Otherwise the mgr could replay the batch log of the dumped
    // store into the new store.
    let engine = Embedded::create(new, random()?, meta::merge)?;
    meta::dump::restore(&engine, decoder(path)?).await.map_err(|e| match e {
        RestoreError::Bad(cause) => bad(path, &cause),
        RestoreError::Full => Error::Full,
        RestoreError::Failed(cause) => Error::BadFile { path: new.to_owned(), reason: cause },
    })?;
    let namespace = Namespace::open(engine)?;
    store::name(&namespace, store).await.map_err(Error::Metadata)?;
    namespace.settle().await.map_err(Error::Metadata)
}
