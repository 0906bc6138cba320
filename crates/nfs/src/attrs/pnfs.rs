//! pNFS attributes: the layout types that the server offers, and the size thresholds for their use (`mdsthreshold`).

use super::form::put_u32;
use super::{Row, row};
use crate::fs::Threshold;
use types::limits::BITMAP_WORDS_MAX;
use xdr::{Malformed, Reader, Writer};

/// Largest number of layout types or thresholds that the decoder accepts from a peer. Fewer layout types exist, so a
/// longer list is malformed.
const TYPES_MAX: usize = 64;

fn put_types(out: &mut Writer, types: &[u32]) {
    out.array(types, put_u32);
}

fn take_types(input: &mut Reader) -> Result<Vec<u32>, Malformed> {
    input.array(TYPES_MAX, Reader::u32)
}

/// Encodes `mdsthreshold4` (RFC 8881 §3.3.22). The encoding lists the thresholds of one layout type in ascending order
/// of their bit numbers.
fn put_thresholds(out: &mut Writer, items: &[Threshold]) {
    out.array(items, |out, item| {
        let hints = [item.read_size, item.write_size, item.read_iosize, item.write_iosize];
        let bits = hints.iter().enumerate().fold(0, |bits, (i, h)| bits | u32::from(h.is_some()) << i);
        out.u32(item.kind);
        out.array(&[bits], put_u32);
        out.nested(|out| hints.iter().flatten().for_each(|h| out.u64(*h)));
    });
}

fn take_thresholds(input: &mut Reader) -> Result<Vec<Threshold>, Malformed> {
    input.array(TYPES_MAX, |input| {
        let kind = input.u32()?;
        let bits = input.array(BITMAP_WORDS_MAX, Reader::u32)?.first().copied().unwrap_or(0);
        let mut list = Reader::new(input.opaque(1024)?);
        let mut hint = |bit: u32| if bits >> bit & 1 == 1 { list.u64().map(Some) } else { Ok(None) };
        Ok(Threshold { kind, read_size: hint(0)?, write_size: hint(1)?, read_iosize: hint(2)?, write_iosize: hint(3)? })
    })
}

pub(super) const FS_LAYOUT_TYPES: Row =
    row!(FATTR4_FS_LAYOUT_TYPES, "fs_layout_types", fs_layout_types, put_types, take_types);
pub(super) const LAYOUT_BLKSIZE: Row =
    row!(FATTR4_LAYOUT_BLKSIZE, "layout_blksize", layout_blksize, put_u32, Reader::u32);
pub(super) const MDSTHRESHOLD: Row =
    row!(FATTR4_MDSTHRESHOLD, "mdsthreshold", mdsthreshold, put_thresholds, take_thresholds);
