//! The `FORMAT` file of a store, which holds the identity of the store and the lock that keeps a second iod from
//! opening it.

use std::io;
use std::path::{Path, PathBuf};

use types::{Fsid, IodId};
use wire::native::crc32c;

use crate::disks::{Disk, DiskFile, read_full, write_all};

const MAGIC: [u8; 8] = *b"WEIRIOD\0";
/// The newest store format that this build can open. Version 1 has no optional feature. Version 2 has block checksums.
/// Version 3 may have objects of streams other than 0. Version 4 has block checksums and may have objects of streams
/// other than 0.
const VERSION: u32 = 4;
const LEN: usize = 56;
const CHECKED: usize = 52;

pub(crate) const FORMAT: &str = "FORMAT";
const FORMAT_NEW: &str = "FORMAT.new";
/// The folder in the store's directory that holds all object files.
pub(crate) const OBJECTS: &str = "objects";

/// The reason why a store cannot be created or opened. The message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory of the store does not exist.
    #[error("{}: no such directory; make it and format it with `weir mkfs`, or check the path", .0.display())]
    Missing(PathBuf),
    /// The path of the store is not a directory.
    #[error("{}: not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// The directory holds no object store.
    #[error("{}: no object store here; format it with `weir mkfs`, or check the path", .0.display())]
    NotFormatted(PathBuf),
    /// The directory already holds an object store, so it cannot be formatted.
    #[error("{}: holds an object store already; nothing was changed. To start afresh, empty the directory first", .0.display())]
    AlreadyFormatted(PathBuf),
    /// The directory contains files that belong to no object store, so it cannot be formatted.
    #[error("{}: not empty (it has {found:?}); give an empty directory", .dir.display())]
    NotEmpty {
        /// The directory that cannot be formatted.
        dir: PathBuf,
        /// The name of a file or folder in the directory, for the error message.
        found: String,
    },
    /// Another process has opened the store and holds its lock.
    #[error("{}: another iod is using this store; stop it first, or give this one a directory of its own", .0.display())]
    InUse(PathBuf),
    /// A later version of Weir wrote the store, in a format that this build cannot open.
    #[error("{}: the store has format version {found}, this build knows up to {VERSION}; use a newer weir", .dir.display())]
    NewerVersion {
        /// The directory of the store.
        dir: PathBuf,
        /// The format version of the store.
        found: u32,
    },
    /// The `FORMAT` file of the store is damaged.
    #[error("{}: the FORMAT file is damaged ({reason}); restore it from a backup, the objects are untouched", .dir.display())]
    Damaged {
        /// The directory of the store.
        dir: PathBuf,
        /// What is wrong with the `FORMAT` file, for people.
        reason: &'static str,
    },
    /// The `STORE` file of the store is damaged.
    #[error("{}: the STORE file is damaged ({reason}); if the metadata store is the newest one, remove the file: the mgr \
             then claims the objects again, unless they have numbers that it has not allocated", .dir.display())]
    DamagedClaim {
        /// The directory of the store.
        dir: PathBuf,
        /// What is wrong with the `STORE` file, for people.
        reason: &'static str,
    },
    /// The store belongs to another file system than the one that the iod should serve.
    #[error("{}: the store belongs to file system {found}, not to {wanted}; check the directory and the cluster file", .dir.display())]
    OtherFileSystem {
        /// The directory of the store.
        dir: PathBuf,
        /// The id of the file system in the `FORMAT` file.
        found: Fsid,
        /// The id of the file system that the iod should serve, from the cluster file.
        wanted: Fsid,
    },
    /// The process has no permission to write to the store's directory.
    #[error("{}: cannot write ({source}); check owner, mode and mount options of the directory", .dir.display())]
    NotWritable {
        /// The directory of the store.
        dir: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The disk of the store is full.
    #[error("{}: no space left; free some or use another disk", .0.display())]
    Full(PathBuf),
    /// The operating system returned an error for which this type has no other variant.
    #[error("{}: cannot {doing}: {source}", .path.display())]
    Io {
        /// The file or directory on which the operation failed.
        path: PathBuf,
        /// The operation that failed, for people.
        doing: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

pub(super) fn error(dir: &Path, doing: &'static str, source: io::Error) -> StoreError {
    let dir = dir.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreError::NotWritable { dir, source },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(dir),
        io::ErrorKind::NotADirectory => StoreError::NotADirectory(dir),
        _ => StoreError::Io { path: dir, doing, source },
    }
}

/// The content of a `FORMAT` file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    pub(crate) fsid: Fsid,
    pub(crate) iod: IodId,
    /// Time at which the store was formatted, as Unix time in seconds.
    pub(crate) created: u64,
    /// Whether new objects get block checksums.
    pub(crate) sums: bool,
    /// Whether the store may have objects of streams other than 0.
    pub(crate) streams: bool,
}

impl Format {
    fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&(1 + u32::from(self.sums) + 2 * u32::from(self.streams)).to_be_bytes());
        out[12..28].copy_from_slice(&self.fsid.0);
        out[28..44].copy_from_slice(&self.iod.0);
        out[44..52].copy_from_slice(&self.created.to_be_bytes());
        let crc = crc32c(&out[..CHECKED]);
        out[CHECKED..].copy_from_slice(&crc.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8], dir: &Path) -> Result<Self, StoreError> {
        let damaged = |reason| StoreError::Damaged { dir: dir.to_owned(), reason };
        let field = |from: usize, to: usize| bytes.get(from..to).ok_or(damaged("it is cut off"));
        if field(0, 8)? != MAGIC {
            return Err(damaged("wrong magic number"));
        }
        let version = be(field(8, 12)?) as u32;
        if version > VERSION || version == 0 {
            return Err(StoreError::NewerVersion { dir: dir.to_owned(), found: version });
        }
        if be(field(CHECKED, LEN)?) != u64::from(crc32c(field(0, CHECKED)?)) {
            return Err(damaged("its checksum does not match"));
        }
        let (mut fsid, mut iod) = ([0; 16], [0; 16]);
        fsid.copy_from_slice(field(12, 28)?);
        iod.copy_from_slice(field(28, 44)?);
        let (sums, streams) = (version.is_multiple_of(2), version > 2);
        Ok(Format { fsid: Fsid(fsid), iod: IodId(iod), created: be(field(44, 52)?), sums, streams })
    }

    /// Replaces the content of an open `FORMAT` file durably. The content fits into one sector, which disks write
    /// atomically.
    pub(crate) fn write(&self, file: &dyn DiskFile) -> io::Result<()> {
        write_all(file, &self.encode(), &[], 0)?;
        file.sync()
    }
}

/// Decodes a big-endian number.
pub(super) fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Creates a store in an empty or missing directory. The `FORMAT` file appears last and atomically, so a caller can
/// format the directory again after an interrupted call of this function.
pub(crate) fn format(disk: &dyn Disk, format: &Format) -> Result<(), StoreError> {
    let dir = disk.path();
    let fail = |doing| move |source| error(dir, doing, source);
    disk.prepare().map_err(fail("make the directory"))?;
    for name in disk.list("").map_err(fail("list the directory"))? {
        match name.as_str() {
            FORMAT => return Err(StoreError::AlreadyFormatted(dir.to_owned())),
            FORMAT_NEW | OBJECTS | "lost+found" => {}
            _ => return Err(StoreError::NotEmpty { dir: dir.to_owned(), found: name }),
        }
    }
    disk.make_folder(OBJECTS).map_err(fail("make the objects folder"))?;
    if let Some(found) = disk.list(OBJECTS).map_err(fail("list the objects folder"))?.first() {
        return Err(StoreError::NotEmpty { dir: dir.to_owned(), found: format!("{OBJECTS}/{found}") });
    }
    match disk.remove(FORMAT_NEW) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(error(dir, "remove an unfinished FORMAT file", e)),
        _ => {}
    }
    let file = disk.create_new(FORMAT_NEW).map_err(fail("make the FORMAT file"))?;
    format.write(&*file).map_err(fail("write the FORMAT file"))?;
    disk.rename(FORMAT_NEW, FORMAT).map_err(fail("name the FORMAT file"))?;
    disk.sync_folder("").map_err(fail("sync the directory"))
}

/// Reads the `FORMAT` file and locks the store. The lock lasts as long as the returned file is open.
pub(crate) fn open(disk: &dyn Disk) -> Result<(Format, Box<dyn DiskFile>), StoreError> {
    let dir = disk.path();
    let file = match disk.open(FORMAT) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound && !disk.is_folder("") => {
            return Err(StoreError::Missing(dir.to_owned()));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(StoreError::NotFormatted(dir.to_owned())),
        Err(e) => return Err(error(dir, "open the FORMAT file", e)),
    };
    if !file.lock().map_err(|e| error(dir, "lock the FORMAT file", e))? {
        return Err(StoreError::InUse(dir.to_owned()));
    }
    let mut bytes = [0; LEN];
    let len = read_full(&*file, &mut bytes, 0).map_err(|e| error(dir, "read the FORMAT file", e))?;
    Ok((Format::decode(&bytes[..len], dir)?, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Format {
        let (fsid, iod) = (Fsid(*b"0123456789abcdef"), IodId([0xaa; 16]));
        Format { fsid, iod, created: 0x6000_0000, sums: false, streams: false }
    }

    #[test]
    fn the_format_file_has_its_golden_bytes_and_damage_is_detected() {
        let bytes = sample().encode();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "57454952494f4400",
                "00000001",
                "30313233343536373839616263646566",
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "0000000060000000",
                "60db3a92"
            )
        );
        let dir = Path::new("/d");
        assert_eq!(Format::decode(&bytes, dir).unwrap(), sample());
        for (version, sums, streams) in [(2, true, false), (3, false, true), (4, true, true)] {
            let format = Format { sums, streams, ..sample() };
            assert_eq!((format.encode()[11], format.encode().len()), (version, LEN));
            assert_eq!(Format::decode(&format.encode(), dir).unwrap(), format);
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            Format::decode(&bad, dir).unwrap_err();
        }
        for len in 0..bytes.len() {
            assert!(matches!(Format::decode(&bytes[..len], dir), Err(StoreError::Damaged { .. })));
        }
    }

    #[test]
    fn a_newer_format_version_is_reported_whatever_follows_it() {
        let mut bytes = sample().encode();
        bytes[11] = 5;
        let error = Format::decode(&bytes, Path::new("/d")).unwrap_err();
        assert!(matches!(error, StoreError::NewerVersion { found: 5, .. }), "{error}");
        assert!(error.to_string().contains("newer weir"));
    }
}
