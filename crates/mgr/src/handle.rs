//! Filehandles: version, file system, inode number and a checksum against damage.

use bytes::{BufMut, Bytes, BytesMut};
use types::{FileId, Fsid, Status};
use wire::native::crc32c;

const VERSION: u8 = 1;
/// Version and three zero bytes, fsid, inode number, CRC-32C of all before.
const LEN: usize = 4 + 16 + 8 + 4;
const _: () = assert!(LEN <= types::limits::FILEHANDLE_MAX);

/// The handle of a file; see `docs/FORMATS.md`.
pub(crate) fn encode(fsid: Fsid, file: FileId) -> Bytes {
    let mut handle = BytesMut::with_capacity(LEN);
    handle.put_slice(&[VERSION, 0, 0, 0]);
    handle.put_slice(&fsid.0);
    handle.put_u64(file.0);
    let sum = crc32c(&handle);
    handle.put_u32(sum);
    handle.freeze()
}

/// The file of a handle: `BadHandle` for anything that [`encode`] does not make, `Stale` for another file system's.
pub(crate) fn decode(fsid: Fsid, handle: &[u8]) -> Result<FileId, Status> {
    let handle: &[u8; LEN] = handle.try_into().map_err(|_| Status::BadHandle)?;
    let (body, sum) = handle.split_at(LEN - 4);
    if body[..4] != [VERSION, 0, 0, 0] || sum != crc32c(body).to_be_bytes() {
        return Err(Status::BadHandle);
    }
    if body[4..20] != fsid.0 {
        return Err(Status::Stale);
    }
    let id: [u8; 8] = body[20..].try_into().map_err(|_| Status::BadHandle)?;
    Ok(FileId(u64::from_be_bytes(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSID: Fsid = Fsid([7; 16]);

    #[test]
    fn bytes_are_these() {
        let handle = encode(FSID, FileId(0x0102_0304_0506_0708));
        let mut want = vec![1, 0, 0, 0];
        want.extend([7; 16]);
        want.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(handle[..28], want);
        assert_eq!(handle[28..], crc32c(&want).to_be_bytes());
        assert_eq!(decode(FSID, &handle), Ok(FileId(0x0102_0304_0506_0708)));
    }

    #[test]
    fn damage_is_noticed() {
        let handle = encode(FSID, FileId(9));
        for bit in 0..LEN * 8 {
            let mut bad = handle.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(FSID, &bad), Err(Status::BadHandle), "bit {bit}");
        }
        for len in 0..LEN {
            assert_eq!(decode(FSID, &handle[..len]), Err(Status::BadHandle), "{len} bytes");
        }
        assert_eq!(decode(Fsid([8; 16]), &handle), Err(Status::Stale));
    }
}
