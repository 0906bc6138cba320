//! Identifiers of file systems, metadata stores, data servers, files and objects.

use std::fmt;
use std::str::FromStr;

/// The UUID of a file system; also the NFS server scope of the whole cluster (RFC 8881 §2.10.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fsid(pub [u8; 16]);

/// The UUID of a data server (iod), chosen when its store is formatted; also the device id (`deviceid4`) in layouts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IodId(pub [u8; 16]);

/// The UUID of a metadata store, chosen when the store is formatted. A copy of the store has the same UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreId(pub [u8; 16]);

/// An inode number, which identifies a file within one file system. The mgr never uses the number of a removed file
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId(pub u64);

impl FileId {
    /// The inode number of the root directory.
    pub const ROOT: FileId = FileId(1);
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The identity of an object inside one file system: a file, and a stream of this file.
///
/// An iod has at most one object of each stream of a file. The layout record of a file says which stream has the
/// bytes of the file. So the mgr can move a file from the objects of one stream to the objects of another stream,
/// even on the same iods.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectId {
    /// The file that the object's bytes belong to.
    pub file: FileId,
    /// The stream of the file; the bytes of a new file are in stream 0.
    pub stream: u32,
}

/// The smallest stream number of the data logs of a log file: data log `n` is in stream `LOG_STREAMS + n`.
pub const LOG_STREAMS: u32 = 1 << 31;
/// The stream of the objects that hold the index of a log file, one shard on each iod of the file.
pub const INDEX_STREAM: u32 = u32::MAX;

impl ObjectId {
    /// Returns the object that holds the shard of a log file's index on an iod.
    pub const fn index(file: FileId) -> Self {
        ObjectId { file, stream: INDEX_STREAM }
    }

    /// Returns the object of a data log of a file. `log` is below 2^21.
    pub const fn log(file: FileId, log: u32) -> Self {
        ObjectId { file, stream: LOG_STREAMS + log }
    }

    /// Returns whether the object belongs to a data log or to the index of a log file. One capability, for the index,
    /// is valid for all these objects of a file.
    pub const fn is_of_logs(self) -> bool {
        self.stream >= LOG_STREAMS
    }

    /// Returns the object of a file in the given stream.
    pub const fn new(file: FileId, stream: u32) -> Self {
        ObjectId { file, stream }
    }

    /// Returns the object of a file in stream 0.
    pub const fn stream_0(file: FileId) -> Self {
        ObjectId { file, stream: 0 }
    }
}

/// Prints the file number. For a stream other than stream 0, also prints a dot and the stream number.
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stream {
            0 => self.file.fmt(f),
            stream => write!(f, "{}.{stream}", self.file),
        }
    }
}

/// The fencing generation of a file's objects, which each fence increases. An iod refuses capabilities with an older
/// generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Generation(pub u32);

/// A write verifier (`verifier4`). A daemon that may have lost unstable writes starts with a new verifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Verifier(pub [u8; 8]);

/// The error for text that is not a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a UUID (expected 32 hexadecimal digits, dashes allowed)")]
pub struct NotAUuid;

fn write_uuid(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, b) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            f.write_str("-")?;
        }
        write!(f, "{b:02x}")?;
    }
    Ok(())
}

fn parse_uuid(text: &str) -> Result<[u8; 16], NotAUuid> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    if digits.len() != 32 {
        return Err(NotAUuid);
    }
    let mut out = [0; 16];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let hex = |b: u8| (b as char).to_digit(16).ok_or(NotAUuid);
        *byte = (hex(pair[0])? << 4 | hex(pair[1])?) as u8;
    }
    Ok(out)
}

macro_rules! uuid_text {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_uuid(&self.0, f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
        impl FromStr for $name {
            type Err = NotAUuid;
            fn from_str(text: &str) -> Result<Self, NotAUuid> {
                parse_uuid(text).map($name)
            }
        }
    )*};
}
uuid_text!(Fsid, IodId, StoreId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_ordered_by_file_and_then_by_stream() {
        let id = |file, stream| ObjectId::new(FileId(file), stream);
        let mut ids = [id(2, 0), id(1, 7), id(10, 1), id(1, 0)];
        ids.sort();
        assert_eq!(ids.map(|id| id.to_string()), ["1", "1.7", "2", "10.1"]);
        assert_eq!(ids[0], ObjectId::stream_0(FileId(1)));
    }

    #[test]
    fn uuids_round_trip_as_text_and_invalid_text_is_refused() {
        let id = Fsid([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 254, 255]);
        let text = id.to_string();
        assert_eq!(text, "00010203-0405-0607-0809-0a0b0c0dfeff");
        assert_eq!(text.parse(), Ok(id));
        for bad in ["", "0001", "zz010203-0405-0607-0809-0a0b0c0dfeff", "é0010203-0405-0607-0809-0a0b0c0dfe"] {
            assert_eq!(bad.parse::<Fsid>(), Err(NotAUuid), "{bad:?}");
        }
    }
}
