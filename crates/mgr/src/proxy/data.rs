//! Assembly of data from several objects into one buffer in file order.

use bytes::{Bytes, BytesMut};
use types::ByteRange;
use xdr::Segments;

/// If the [`Stretch`] values of a range have fewer bytes of data than this on average, the mgr copies the data into one
/// buffer. Otherwise the data of each value become one segment of the reply, without a copy.
const SEGMENT_MIN: usize = 4096;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Data at an offset of a file. Bytes of a range without a `Stretch` are zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stretch {
    pub(super) offset: u64,
    pub(super) data: Bytes,
}

/// Returns the bytes of `range`, assembled from `stretches`, which lie within the range and do not overlap.
pub(super) fn assemble(range: ByteRange, mut stretches: Vec<Stretch>) -> Segments {
    let total: usize = stretches.iter().map(|s| s.data.len()).sum();
    if stretches.len() > 1 && total / stretches.len() < SEGMENT_MIN {
        let mut all = BytesMut::zeroed(range.len as usize);
        for stretch in stretches {
            let at = (stretch.offset - range.offset) as usize;
            all[at..at + stretch.data.len()].copy_from_slice(&stretch.data);
        }
        return all.freeze().into();
    }
    stretches.sort_unstable_by_key(|s| s.offset);
    let mut out = Segments::default();
    let mut at = range.offset;
    for stretch in stretches {
        push_zeros(&mut out, stretch.offset - at);
        at = stretch.offset + stretch.data.len() as u64;
        out.push(stretch.data);
    }
    push_zeros(&mut out, range.end() - at);
    out
}

fn push_zeros(out: &mut Segments, mut len: u64) {
    while len > 0 {
        let part = len.min(ZEROS.len() as u64);
        out.push(Bytes::from_static(&ZEROS[..part as usize]));
        len -= part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn assembled_data_equal_a_flat_buffer(
            offset in 0u64..1000,
            parts in prop::collection::vec((0usize..9000, 1usize..9000), 0..8),
            tail in 0u64..200_000,
            seed in 0usize..8,
        ) {
            let mut stretches = Vec::new();
            let mut flat = Vec::new();
            for (i, (gap, len)) in parts.into_iter().enumerate() {
                flat.resize(flat.len() + gap, 0);
                let data = Bytes::from(vec![i as u8 + 1; len]);
                stretches.push(Stretch { offset: offset + flat.len() as u64, data: data.clone() });
                flat.extend_from_slice(&data);
            }
            flat.resize(flat.len() + tail as usize, 0);
            // Iods reply in any order, so `assemble` must accept unsorted `stretches`.
            if !stretches.is_empty() {
                let n = stretches.len();
                stretches.rotate_left(seed % n);
            }
            let range = ByteRange { offset, len: flat.len() as u64 };
            prop_assert!(assemble(range, stretches).to_bytes() == flat);
        }
    }
}
