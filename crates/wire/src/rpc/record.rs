//! Record marking of ONC RPC over byte streams (RFC 5531 §11): a record consists of fragments. Before each fragment is
//! a record mark with the fragment's length and a "last fragment" bit.

use bytes::Bytes;
use xdr::{Malformed, Segments};

const LAST: u32 = 1 << 31;

/// A record mark: the four bytes before a fragment, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Whether this fragment is the last one of its record.
    pub last: bool,
    /// Length of the fragment in bytes, without the mark.
    pub len: usize,
}

impl Mark {
    /// Decodes a mark from its four bytes.
    pub fn from_bytes(bytes: [u8; 4]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Mark { last: word & LAST != 0, len: (word & !LAST) as usize }
    }
}

/// The progress of a record that a peer sends. The receiver checks each record mark against the limits of the record
/// before it allocates memory for the fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Maximum length of the whole record in bytes.
    pub bytes_max: usize,
    /// Maximum number of fragments in the record.
    pub fragments_max: usize,
    /// Sum of the fragment lengths in the record marks that have arrived, in bytes.
    pub bytes: usize,
    /// Number of record marks that have arrived.
    pub fragments: usize,
}

impl Progress {
    /// Returns the progress of a record before its first record mark has arrived.
    pub fn new(bytes_max: usize, fragments_max: usize) -> Self {
        Progress { bytes_max, fragments_max, bytes: 0, fragments: 0 }
    }

    /// Counts the fragment that `mark` announces.
    ///
    /// Fails if the record exceeds its limits on length or fragments, or if an empty fragment is not the last
    /// fragment of the record.
    pub fn begin(&mut self, mark: Mark) -> Result<(), Malformed> {
        self.fragments += 1;
        self.bytes += mark.len;
        if self.bytes > self.bytes_max {
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            return Err(Malformed::TooLong { len: number(self.bytes), max: number(self.bytes_max) });
        }
        match mark {
            _ if self.fragments > self.fragments_max => Err(Malformed::Invalid("record of too many fragments")),
            Mark { last: false, len: 0 } => Err(Malformed::Invalid("empty fragment inside a record")),
            _ => Ok(()),
        }
    }
}

/// Returns `message` as a record that consists of one fragment.
///
/// # Panics
/// If the message has 2 GiB or more. No limit of Weir allows such a message.
pub fn mark(message: Segments) -> Segments {
    let len = u32::try_from(message.len()).ok().filter(|len| len & LAST == 0).expect("message below 2 GiB");
    let mut record = Segments::from(Bytes::copy_from_slice(&(len | LAST).to_be_bytes()));
    record.extend(message);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_marks_have_the_bytes_of_the_rfc() {
        let record = mark(Bytes::from_static(b"abcd").into()).to_bytes();
        assert_eq!(record, b"\x80\0\0\x04abcd"[..]);
        assert_eq!(Mark::from_bytes([0x80, 0, 0, 4]), Mark { last: true, len: 4 });
        assert_eq!(Mark::from_bytes([0, 1, 0, 0]), Mark { last: false, len: 65536 });
    }

    #[test]
    fn size_limits_apply_to_the_whole_record() {
        let part = |len| Mark { last: false, len };
        let mut record = Progress::new(10, 3);
        assert_eq!(record.begin(part(6)), Ok(()));
        assert_eq!(record.begin(part(4)), Ok(()));
        assert_eq!(record.begin(part(1)), Err(Malformed::TooLong { len: 11, max: 10 }));
        let mut record = Progress::new(10, 2);
        assert_eq!((record.begin(part(1)), record.begin(part(1))), (Ok(()), Ok(())));
        assert!(record.begin(Mark { last: true, len: 1 }).is_err());
        assert!(Progress::new(10, 2).begin(part(0)).is_err());
        assert_eq!(Progress::new(10, 2).begin(Mark { last: true, len: 0 }), Ok(()));
    }
}
