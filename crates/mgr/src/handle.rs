//! Filehandles: inode number, file system, export and epoch of a file, signed with the key of the file system.
//!
//! A filehandle gives access to the files of its export, so clients must not be able to forge one.

use bytes::{BufMut, Bytes, BytesMut};
use types::{FileId, Fsid, Status};
use wire::native::Key;

const VERSION: u8 = 2;
/// Largest epoch of an export in a filehandle: the epoch has three bytes.
pub(crate) const EPOCH_MAX: u32 = 0xff_ffff;
/// Length of the signed bytes of a filehandle: version and epoch, fsid, inode number, root directory of the export.
const SIGNED_LEN: usize = 4 + 16 + 8 + 8;
const LEN: usize = SIGNED_LEN + 16;
const _: () = assert!(LEN <= types::limits::FILEHANDLE_MAX);

/// The content of a filehandle: the file, the export through which the client reached the file, and the epoch of this
/// export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) file: FileId,
    /// The root directory of the export through which the client reached the file.
    pub(crate) root: FileId,
    /// The epoch that the export had when the client looked up the file, at most [`EPOCH_MAX`].
    pub(crate) epoch: u32,
}

/// Encodes and signs the filehandle of a file; `docs/FORMATS.md` describes the format.
pub(crate) fn encode(key: &Key, fsid: Fsid, Named { file, root, epoch }: Named) -> Bytes {
    let mut handle = BytesMut::with_capacity(LEN);
    handle.put_u8(VERSION);
    handle.put_uint(epoch.min(EPOCH_MAX).into(), 3);
    handle.put_slice(&fsid.0);
    handle.put_u64(file.0);
    handle.put_u64(root.0);
    let mac = key.file_handle_mac(&handle);
    handle.put_slice(&mac);
    handle.freeze()
}

/// Decodes a filehandle and checks its signature.
///
/// # Errors
/// `BadHandle` for bytes that are no filehandle of Weir, and `Stale` for a filehandle of another file system.
pub(crate) fn decode(key: &Key, fsid: Fsid, handle: &[u8]) -> Result<Named, Status> {
    let handle: &[u8; LEN] = handle.try_into().map_err(|_| Status::BadHandle)?;
    let (body, mac) = handle.split_at(SIGNED_LEN);
    let number = |at: usize, len: usize| body[at..at + len].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    if body[0] != VERSION {
        return Err(Status::BadHandle);
    }
    if body[4..20] != fsid.0 {
        return Err(Status::Stale);
    }
    if !key.is_file_handle_mac(body, mac) {
        return Err(Status::BadHandle);
    }
    Ok(Named { file: FileId(number(20, 8)), root: FileId(number(28, 8)), epoch: number(1, 3) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSID: Fsid = Fsid([7; 16]);

    fn key() -> Key {
        Key::new([3; 32])
    }

    #[test]
    fn a_handle_has_its_golden_bytes() {
        let named = Named { file: FileId(0x0102_0304_0506_0708), root: FileId(9), epoch: 0x0a_0b0c };
        let handle = encode(&key(), FSID, named);
        let mut want = vec![2, 10, 11, 12];
        want.extend([7; 16]);
        want.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        want.extend([0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(handle[..36], want);
        assert_eq!(handle.len(), 52);
        assert_eq!(decode(&key(), FSID, &handle), Ok(named));
    }

    #[test]
    fn changed_handles_and_those_of_another_key_or_file_system_are_refused() {
        let handle = encode(&key(), FSID, Named { file: FileId(9), root: FileId(1), epoch: 3 });
        for bit in 0..LEN * 8 {
            let mut bad = handle.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let why = if (4..20).contains(&(bit / 8)) { Status::Stale } else { Status::BadHandle };
            assert_eq!(decode(&key(), FSID, &bad), Err(why), "bit {bit}");
        }
        for len in 0..LEN {
            assert_eq!(decode(&key(), FSID, &handle[..len]), Err(Status::BadHandle), "{len} bytes");
        }
        assert_eq!(decode(&key(), Fsid([8; 16]), &handle), Err(Status::Stale));
        assert_eq!(decode(&Key::new([4; 32]), FSID, &handle), Err(Status::BadHandle));
    }
}
