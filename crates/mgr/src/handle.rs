//! Filehandles: version, file system, inode number, the export that it was reached by, and an authenticator.
//!
//! A handle is good for what its export allows, so nobody may be able to make one.

use bytes::{BufMut, Bytes, BytesMut};
use types::{FileId, Fsid, Status};
use wire::native::Key;

const VERSION: u8 = 2;
/// Version and three zero bytes, fsid, inode number, root directory of the export.
const SIGNED_LEN: usize = 4 + 16 + 8 + 8;
const LEN: usize = SIGNED_LEN + 16;
const _: () = assert!(LEN <= types::limits::FILEHANDLE_MAX);

/// The handle of a file in the export with this root directory; see `docs/FORMATS.md`.
pub(crate) fn encode(key: &Key, fsid: Fsid, file: FileId, root: FileId) -> Bytes {
    let mut handle = BytesMut::with_capacity(LEN);
    handle.put_slice(&[VERSION, 0, 0, 0]);
    handle.put_slice(&fsid.0);
    handle.put_u64(file.0);
    handle.put_u64(root.0);
    let mac = key.file_handle_mac(&handle);
    handle.put_slice(&mac);
    handle.freeze()
}

/// The file of a handle and the root directory of its export: `BadHandle` for anything that [`encode`] does not make, `Stale`
/// for another file system's.
pub(crate) fn decode(key: &Key, fsid: Fsid, handle: &[u8]) -> Result<(FileId, FileId), Status> {
    let handle: &[u8; LEN] = handle.try_into().map_err(|_| Status::BadHandle)?;
    let (body, mac) = handle.split_at(SIGNED_LEN);
    let number = |at: usize| body[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    if body[..4] != [VERSION, 0, 0, 0] {
        return Err(Status::BadHandle);
    }
    if body[4..20] != fsid.0 {
        return Err(Status::Stale);
    }
    if !key.is_file_handle_mac(body, mac) {
        return Err(Status::BadHandle);
    }
    Ok((FileId(number(20)), FileId(number(28))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSID: Fsid = Fsid([7; 16]);

    fn key() -> Key {
        Key::new([3; 32])
    }

    #[test]
    fn bytes_are_these() {
        let handle = encode(&key(), FSID, FileId(0x0102_0304_0506_0708), FileId(9));
        let mut want = vec![2, 0, 0, 0];
        want.extend([7; 16]);
        want.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        want.extend([0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(handle[..36], want);
        assert_eq!(handle.len(), 52);
        assert_eq!(decode(&key(), FSID, &handle), Ok((FileId(0x0102_0304_0506_0708), FileId(9))));
    }

    #[test]
    fn what_was_not_made_here_is_refused() {
        let handle = encode(&key(), FSID, FileId(9), FileId(1));
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
